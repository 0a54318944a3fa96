import io
import re

import pytest
from rich.console import Console

from keyhole.audit import Plan, Stage, run_plan
from keyhole.report import print_result, render, view, write

PLAN = Plan(
    title="A <test> audit",
    stage=(
        Stage(
            data="faces",
            defenses=("none", *(f"gaussian(sigma={s})" for s in (0.001, 0.01, 0.1))),
            attacks=("linear", "labels"),
            victims=2,
        ),
        Stage(model="vit-small", data="photos", image_size=64, victims=1),
    ),
)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_plan(PLAN, out=tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(result):
    return render(result, title=PLAN.title)


def test_the_page_loads_nothing_from_outside(page):
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all(a.startswith(("data:image/", "#")) for a in addresses)
    assert "@import" not in page
    assert "url(http" not in page


def test_names_are_escaped(page):
    assert "A &lt;test&gt; audit" in page
    assert "A <test> audit" not in page


def test_every_verdict_and_every_row_is_on_the_page(result, page):
    for verdict in result.verdicts:
        assert verdict.words in page
    image_rows = [f for f in result.findings if "read" in f.metrics]
    assert page.count('class="row"') == len(image_rows)
    assert page.count("what the attacker saw") >= len(image_rows)


def test_a_defense_at_several_strengths_is_plotted(result, page):
    faces = view.sections(result)[0]
    ((key, lines),) = view.sweeps(faces).items()
    assert key == ("gaussian", "sigma")
    assert {line.attacker for line in lines} == {"naive", "adaptive"}
    assert all(line.values == (0.001, 0.01, 0.1) for line in lines)
    assert page.count("<svg") == 1
    assert "currentColor" in page


def test_the_page_is_written_into_the_run_folder(result):
    path = write(result, title="x")
    assert path.endswith("report.html")
    assert result.store is not None
    assert (result.store.root / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_shows_each_verdict_within_its_width(result, width):
    out = io.StringIO()
    print_result(result, Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    text = " ".join(out.getvalue().split())
    for verdict in result.verdicts:
        assert verdict.words in text


def test_skipped_attacks_are_explained_once(result):
    (line,) = view.skipped_lines(result.skipped)
    assert line.startswith("linear on vit-small")


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("psnr", 26.349, "26.3"),
        ("ssim", 0.12345, "0.123"),
        ("reid", 0.5, "50%"),
        ("mse", 0, "0.0000"),
    ],
)
def test_numbers_have_the_digits_a_reader_wants(metric, value, text):
    assert view.number(metric, value) == text
