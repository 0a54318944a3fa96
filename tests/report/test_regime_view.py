"""A page shows the map of its own network, and where the audit stands on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole import audit
from keyhole.auditing import AuditResult, regime_map
from keyhole.auditing.regime_map import MappedRegime
from keyhole.report.html import render
from keyhole.report.regime_view import describe_maps

MAP = tuple(
    MappedRegime("mlp", "MLP", "", weights, batch, local, "honest", "cifar10", read, 4, "ig")
    for weights, batch, local, read in (
        ("fresh", 1, "step", 4),
        ("fresh", 4, "step", 1),
        ("70%", 1, "epoch", 0),
    )
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    out = tmp_path_factory.mktemp("map") / "run"
    return audit(model="mlp", data="digits", attacks=["linear"], victims=1, batch_size=2, out=out)


def test_cells_show_shares_and_what_was_not_run_is_no_zero(
    result: AuditResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regime_map, "read_map", lambda: MAP)
    (found,) = describe_maps(result.sections[0])
    assert found["batches"] == [1, 4]
    shown = {
        (row["weights"], row["local"]): [cell["text"] for cell in row["cells"]]
        for row in found["rows"]
    }
    assert shown["fresh", "1 step"] == ["100%", "25%"]
    assert shown["trained to 70%", "1 epoch"] == ["0%", ""]
    assert shown["fresh", "5 steps"] == ["", ""]
    here = [cell["text"] for row in found["rows"] for cell in row["cells"] if cell["here"]]
    assert here == ["100%"]  # two images count as the next smaller batch
    shades = {
        cell["text"]: cell["shade"]
        for row in found["rows"]
        for cell in row["cells"]
        if cell["text"]
    }
    assert shades == {"100%": "read10", "25%": "read3", "0%": "read0"}


def test_the_page_marks_the_audit(result: AuditResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regime_map, "read_map", lambda: MAP)
    page = render(result)
    assert page.count('<table class="regimes">') == 1
    assert page.count(' here"') == 1
    assert "fresh weights, 2 images in a step, 1 step" in page
    assert 'class="unknown"' in page
    assert "style=" not in page.partition("</style>")[2]


def test_without_a_map_of_its_network_there_is_none(
    result: AuditResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regime_map, "read_map", tuple)
    assert "Where this stands" not in render(result)


def test_every_shade_has_its_look() -> None:
    css = Path(str(regime_map.resources.files("keyhole.report") / "regimes.css")).read_text()
    assert all(f".read{tenth} " in css for tenth in range(1, 11))
