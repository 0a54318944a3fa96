"""What a report shows of attacks that iterate."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.report import print_result, render, view

PLAN = Plan(
    stage=(
        Stage(
            data="digits",
            defenses=("none", "dropout"),
            attacks=("linear", "ig(tv=0.001)", "wiig", "dia"),
            victims=4,
            iterations=100,
        ),
    )
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return run_plan(PLAN, out=tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(result: AuditResult) -> str:
    return render(result, title="Films")


def test_every_iterative_row_has_films_and_a_loss_curve(result: AuditResult, page: str) -> None:
    iterative = [f for f in result.findings if f.attack != "linear"]
    assert len(iterative) == 5
    films = re.findall(r'<ol class="film".*?</ol>', page, re.DOTALL)
    assert len(films) == 3 * len(iterative)
    for film in films:
        assert re.findall(r"<small>(\d+)</small>", film) == ["0", "50", "100"]
        assert film.count('src="data:image/png;base64,') == 3
    assert page.count('class="plot curve"') == len(iterative)
    assert page.count("attacker's loss") + page.count("attacker&#39;s loss") == 2 * len(iterative)


def test_closed_forms_have_neither(result: AuditResult) -> None:
    linear = replace(result, findings=tuple(f for f in result.findings if f.attack == "linear"))
    page = render(linear, title="No films")
    assert 'class="row"' in page
    assert 'class="film"' not in page
    assert 'class="plot' not in page


def test_notes_stand_below_their_row_and_are_escaped(result: AuditResult) -> None:
    noted = tuple(replace(f, notes=("matched by <vmap>",)) for f in result.findings[-1:])
    page = render(replace(result, findings=noted), title="Notes")
    assert '<p class="facts">matched by &lt;vmap&gt;</p>' in page
    assert "<vmap>" not in page


def test_the_page_says_who_was_given_masks_and_how_near_the_others_came(
    result: AuditResult, page: str
) -> None:
    told = [f for f in result.findings if "dropout masks" in view.describe_knowledge(f)]
    assert [f.attack for f in told] == ["wiig"]
    assert "was given the labels, was given the dropout masks" in page
    assert "Mask MSE" in page
    assert "MMD" in page


def test_the_page_names_only_parameters_that_are_not_the_usual_ones(page: str) -> None:
    assert "ig(iterations=100, tv=0.001)" in page
    assert "dia(iterations=100)" in page
    assert "mask_weight" not in page.partition("How to read this")[0]


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_names_only_parameters_that_are_not_the_usual_ones(
    result: AuditResult, width: int
) -> None:
    out = io.StringIO()
    print_result(replace(result, skipped=()), Console(file=out, width=width))
    assert max(len(line) for line in out.getvalue().splitlines()) <= width
    assert "mask_weight" not in "".join(out.getvalue().split())
    if width == 160:
        assert "ig(iterations=100, tv=0.001)" in out.getvalue()


def test_skipped_attacks_are_named_like_those_that_were_tried(result: AuditResult) -> None:
    (line,) = view.list_skipped(result.skipped)
    assert line.startswith("wiig")
    assert "mask_weight" not in line


@pytest.mark.parametrize("frames", [1, view.FRAMES, view.FRAMES + 4])
def test_a_long_film_keeps_its_first_and_its_last_frames(frames: int) -> None:
    pictures = {
        "seen": torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
        "film.1": torch.arange(frames, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8),
        "film.1.at": torch.arange(frames) * 50,
    }
    (film,) = view.choose_films(pictures)
    assert len(film) == min(frames, view.FRAMES)
    assert (film[0][0], film[-1][0]) == (0, 50 * (frames - 1))
    assert all(int(image[0, 0, 0]) * 50 == at for at, image in film)
    assert view.choose_films({}) == []
