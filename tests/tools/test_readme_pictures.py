"""README's pictures are drawn from a run, and are small enough for a page that people open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browsers import needs_chromium
from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.errors import BadValue
from scripts import ROOT, load_script
from synthetic_runs import make_run

MOST_BYTES = 350_000
PICTURES = re.findall(r"!\[(.+)\]\((docs/img/\w+\.png)\)", (ROOT / "README.md").read_text())


def read_size(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("tools/readme_pictures.py")


def test_the_readme_has_a_picture_and_a_screenshot_each_with_words() -> None:
    assert [Path(file).stem for _, file in PICTURES] == ["tour", "report"]
    for words, file in PICTURES:
        assert len(words) > 40
        assert (ROOT / file).stat().st_size < MOST_BYTES
        assert read_size(ROOT / file)[0] >= 1600  # sharp on a screen of twice the density


def test_a_run_of_something_else_is_refused(script: Any, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="no run of the tour"):
        script.render_strip(make_run(tmp_path / "run", victims=2, side=8))


@pytest.mark.slow
@needs_chromium
def test_the_pictures_are_drawn_from_a_run(script: Any, tmp_path: Path) -> None:
    stage = Stage(
        model=script.MODEL,
        data="photos",
        victims=1,
        defenses=("none", "gaussian(sigma=0.001)"),
        attacks=(script.ATTACK,),
    )
    run_plan(Plan(stage=(stage,)), out=tmp_path / "run")
    result = AuditResult.load(tmp_path / "run")
    page = script.render_strip(result)
    assert "no defense" in page
    assert '<span class="read">1 of 1 read</span>' in page
    assert '<span class="unread">0 of 1 read</span>' in page
    strip, report = script.draw(result, tmp_path)
    width, height = read_size(strip)
    assert width > height
    assert read_size(report)[0] == 1680
