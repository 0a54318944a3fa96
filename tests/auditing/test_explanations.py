"""Heat maps that an audit keeps of clients' networks, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.auditing.explanations import SHOWN
from keyhole.auditing.labels import label_defense
from keyhole.metrics import overlay_heat_maps
from keyhole.report import render, view

DEFENSES = ("none", "dp", "tip(beta=0.05)")


def audit(out: Path, *, model: str = "lenet", lr: float | None = 0.001) -> AuditResult:
    stage = Stage(
        model=model,
        data="faces",
        defenses=DEFENSES if model == "lenet" else ("none", "gaussian"),
        attacks=("labels",),
        victims=4,
        steps=1 if lr is None else 4,
        lr=lr,
    )
    return run_plan(Plan(stage=(stage,)), out=out)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return audit(tmp_path_factory.mktemp("run") / "a")


def test_overlays_of_early_clients_are_kept(result: AuditResult) -> None:
    assert result.store is not None
    kept = [result.store.pictures(finding.key) for finding in result.findings]
    for pictures in kept:
        assert pictures["heat"].shape == (SHOWN, 3, 25, 25)
        assert pictures["heat"].dtype == torch.uint8
        assert torch.equal(pictures["plain"], kept[0]["plain"])
    images = kept[0]["plain"] / 255
    cold = overlay_heat_maps(images, torch.zeros(SHOWN, 25, 25))
    assert not torch.equal(kept[0]["heat"], cold)
    assert not torch.equal(kept[0]["heat"], kept[1]["heat"])


def test_the_page_shows_one_sheet(result: AuditResult) -> None:
    page = render(result, title="t")
    assert page.count("<h3>What the uploaded networks look at") == 1
    for finding in result.findings:
        name = label_defense(finding.defense)
        assert page.count(f'alt="heat map under {name}"') == SHOWN


@pytest.mark.parametrize("changes", [{"lr": None}, {"model": "mlp"}])
def test_there_is_none_where_nothing_can_be_explained(
    changes: dict[str, object], tmp_path: Path
) -> None:
    found = audit(tmp_path / "b", **changes)  # type: ignore[arg-type]
    assert found.store is not None
    assert not any("heat" in found.store.pictures(f.key) for f in found.findings)
    assert "What the uploaded networks look at" not in render(found, title="t")


def test_no_sheet_without_a_defense_on_updates() -> None:
    heat = {"heat": torch.zeros(1, 3, 8, 8), "plain": torch.zeros(1, 1, 8, 8)}
    assert view.arrange_heat_maps({"none": heat, "csvar": {}}) == {}
    assert list(view.arrange_heat_maps({"none": heat, "dp": heat})) == ["image", "none", "dp"]
