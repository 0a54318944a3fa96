import dataclasses
import io
import json
import re
import shutil

import pytest
from rich.console import Console

from keyhole.auditing import Plan, Stage, run_plan
from keyhole.auditing.results import AuditResult
from keyhole.auditing.sections import describe_shared
from keyhole.auditing.verdict import Verdict
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
    faces = result.sections[0]
    ((key, lines),) = view.find_sweeps(faces).items()
    assert key == ("gaussian", "sigma")
    assert {line.attacker for line in lines} == {"naive", "adaptive"}
    assert all(line.values == (0.001, 0.01, 0.1) for line in lines)
    assert page.count('<div class="plot') == 1
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


NOTHING = Verdict(
    {"name": "none", "parameters": {}}, "mlp", "x", "broken", None, (), None, None, None, (), ""
)


def headline(**counts):
    """The headline over so many settings of each status."""
    return view.summarise_verdicts(
        [
            dataclasses.replace(NOTHING, status=status.replace("_", " "))
            for status, count in counts.items()
            for _ in range(count)
        ]
    )


def test_the_headline_words_none_some_and_all_apart():
    read = "at least one private image was read out of what a client shared."
    assert headline(broken=1) == f"The setting was broken: {read}"
    assert headline(broken=3) == f"All 3 settings were broken: in each of them {read}"
    assert headline(broken=1, not_broken=1) == f"1 of 2 settings was broken: {read}"
    assert headline(broken=2, not_broken=1).startswith("2 of 3 settings were broken: in each")
    for none in (headline(not_broken=1), headline(not_broken=4)):
        assert "private image was read" not in none
        assert "no promise of safety" in none
    assert headline(not_broken=4).startswith("None of the 4 settings was broken")


def test_what_was_not_tested_or_not_scored_is_counted_apart():
    assert headline(not_tested=1) == (
        "No setting could be judged. 1 was not tested: no attack on images was run there."
    )
    assert headline(broken=1, not_scored=2).endswith(
        "2 could not be scored: the original images are not known."
    )


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"steps": 1, "lr": None}, "the gradient of one step"),
        ({"steps": 4, "lr": 0.001}, "weights after 4 steps of sgd, lr 0.001"),
        (
            {"steps": 1, "lr": 0.1, "clients_did": "1 step of sgd, lr 0.1 (batches of 4)"},
            "weights after 1 step of sgd, lr 0.1 (batches of 4)",
        ),
        (
            {"steps": 1, "lr": 0.19, "clients_did": "19 steps of sgd, lr 0.01, momentum 0.9 (x)"},
            "weights after 19 steps of sgd, lr 0.01, momentum 0.9 (x); attacks take that for "
            "1 step of sgd, lr 0.19",
        ),
    ],
)
def test_what_clients_did_is_told_beside_what_attacks_take_it_for(recipe, words):
    assert describe_shared(recipe) == words


@pytest.fixture(scope="module")
def untested(tmp_path_factory):
    """Labels alone on one network, and on another an attack that does not fit it."""
    stages = (
        Stage(data="digits", attacks=("labels",), victims=1, steps=1, lr=0.1),
        Stage(model="lenet", data="digits", attacks=("linear",), victims=1),
    )
    return run_plan(Plan(stage=stages), out=tmp_path_factory.mktemp("untested"))


def test_not_tested_is_the_same_word_everywhere(untested):
    out = io.StringIO()
    print_result(untested, Console(file=out, width=100))
    again = AuditResult.load(untested.store.root)
    for result in (untested, again):
        assert [v.status for v in result.verdicts] == ["not tested", "not tested"]
        assert [v["status"] for v in result.to_json()["verdicts"]] == ["not tested"] * 2
        page = render(result, title="x")
        chips = re.findall(r'class="chip (\w+)">([^<]+)<', page)
        assert chips == [("unsure", "not tested")] * 4  # each in the summary and on its card
        assert "No setting could be judged. 2 were not tested" in page
        assert "not broken by" not in page
    text = " ".join(out.getvalue().split())
    assert text.count("not tested:") == 2
    assert "not broken" not in text


def test_a_folder_written_before_there_was_not_tested_is_judged_anew(untested, tmp_path):
    shutil.copytree(untested.store.root, tmp_path / "old")
    for path in (tmp_path / "old").rglob("*.json"):
        found = json.loads(path.read_text())
        if "reads_images" in found:
            del found["reads_images"], found["recipe"]["left_out"]
        if "skipped" in found:
            found["skipped"] = [
                {k: v for k, v in s.items() if k != "data"} for s in found["skipped"]
            ]
            found["verdicts"] = [{**v, "status": "not broken"} for v in found["verdicts"]]
        path.write_text(json.dumps(found))
    result = AuditResult.load(tmp_path / "old")
    assert [v.status for v in result.verdicts] == ["not tested"]
    assert "not tested" in render(result, title="x")


def test_skipped_attacks_are_explained_once(result):
    lines = view.list_skipped(result.skipped)
    assert [line.split(":")[0] for line in lines].count("linear on vit-small") == 1
    assert len(set(lines)) == len(lines)


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
    assert view.format_value(metric, value) == text
