"""A small frontier that is really measured: trained, attacked, searched and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frontiers import make_outcome
from keyhole.auditing import AuditResult
from keyhole.errors import DoesNotFit, UnknownName
from keyhole.frontier import FrontierPlan, FrontierResult, find_frontier, measuring
from keyhole.frontier.pieces import build_setting_piece
from keyhole.scale import open_store
from keyhole.settings import make_settings
from keyhole.spelling import parse_call

SMALL: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "clients": 2,
    "images": 16,
    "rounds": 1,
    "epochs": 1,
    "victims": 1,
    "iterations": 5,
}
PLAN = make_settings(
    FrontierPlan,
    {**SMALL, "defenses": "tip,topk(k=.5)", "search": "dp(sigma=1e-9..1)", "trials": 2},
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pieces")


@pytest.fixture(scope="module")
def result(store: Path) -> FrontierResult:
    pytest.importorskip("optuna")
    return find_frontier(PLAN, open_store(store))


def test_every_setting_that_fits_is_measured_and_the_others_say_why(
    result: FrontierResult,
) -> None:
    labels = [each.label for each in result.settings]
    assert labels == [
        "none",
        "topk(k=0.5)",
        "dp(epsilon=5.0, sigma=1.0)",
        "dp(epsilon=5.0, sigma=1e-09)",
    ]
    assert list(result.unfit) == ["tip"]
    assert "convolution" in result.unfit["tip"]


def test_closed_forms_read_everything_without_a_defense_and_nothing_behind_much_noise(
    result: FrontierResult,
) -> None:
    plain, *_, loud, quiet = result.settings
    assert plain.worst is not None
    assert (plain.worst.read, plain.worst.images) == (1, 1)
    assert {reading.moment for reading in plain.readings} == {"first round", "last round"}
    assert loud.held
    assert not quiet.held
    assert result.searches[0].mildest == "dp(epsilon=5.0, sigma=1.0)"
    assert result.searches[0].broken == "dp(epsilon=5.0, sigma=1e-09)"
    assert loud.searched == quiet.searched == "dp(sigma=1e-9..1)"
    assert plain.searched == ""


def test_iterative_attackers_run_only_where_an_image_was_left_unread(
    result: FrontierResult,
) -> None:
    plain, *_, loud, _ = result.settings
    assert not any(who.startswith("ig ") for who in plain.attackers)
    assert {"linear (naive)", "linear (adaptive)", "ig (naive)", "ig (adaptive)"} <= set(
        loud.attackers
    )
    assert "ig-uploaded (paper)" in loud.attackers


def test_the_audits_of_a_piece_are_ordinary_run_folders(
    result: FrontierResult, store: Path
) -> None:
    work = open_store(store).fetch(build_setting_piece(PLAN, "dp(sigma=1.0)", 0))
    for moment in ("first-round", "last-round"):
        audit = AuditResult.load(work / moment)
        assert [v.status for v in audit.verdicts] == ["not broken"]
        assert {f.attacker for f in audit.findings} == {"naive", "paper", "adaptive"}
    folders = (work / moment for moment in ("first-round", "last-round"))
    first, last = (AuditResult.load(folder).findings[0].recipe for folder in folders)
    assert first["weights"] is None
    assert last["weights"].endswith("checkpoint.safetensors")
    assert first["lr"] == last["lr"] == PLAN.lr


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be measured while this is there."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a setting was measured again")

    monkeypatch.setattr(measuring, "measure_setting", refuse)


@pytest.mark.usefixtures("untouched")
def test_what_was_measured_is_found_again_by_any_frontier_that_contains_it(
    result: FrontierResult, store: Path
) -> None:
    again = find_frontier(PLAN, open_store(store))
    assert again.to_json() == result.to_json()
    part = make_settings(FrontierPlan, {**SMALL, "defenses": "topk(k=0.50)"})
    found = find_frontier(part, open_store(store))
    assert [each.label for each in found.settings] == ["none", "topk(k=0.5)"]


def test_a_frontier_of_which_nothing_could_be_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: Any, defenses: Any, *_: Any, **__: Any) -> Any:
        return {}, dict.fromkeys(defenses, "the disk is full")

    monkeypatch.setattr("keyhole.frontier.run.measure_settings", fail)
    plan = make_settings(FrontierPlan, {**SMALL, "defenses": "tip"})
    with pytest.raises(DoesNotFit, match=r"no setting could be measured: .*the disk is full"):
        find_frontier(plan, open_store(tmp_path))


def test_an_attack_that_is_unknown_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    plan = make_settings(FrontierPlan, {**SMALL, "defenses": "tip", "attacks": "no-such:Attack"})
    with pytest.raises(UnknownName, match="'no-such:Attack' is no attack"):
        find_frontier(plan, open_store(tmp_path))


def test_a_search_of_which_one_strength_fails_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")

    def measure(plan: Any, defenses: Any, *_: Any, **__: Any) -> Any:
        outcomes, failed = {}, {}
        for text in defenses:
            name, values = parse_call(text)
            if values.get("sigma") == 1e-2:
                failed[text] = "the disk is full"
            else:
                outcomes[text] = make_outcome(name, (0.9,), int(values.get("sigma") != 1), **values)
        return outcomes, failed

    monkeypatch.setattr("keyhole.frontier.run.measure_settings", measure)
    ranges = "gaussian(sigma=1e-4..1),gaussian(sigma=1e-6..1, clip=2.0)"
    plan = make_settings(FrontierPlan, {**SMALL, "search": ranges})
    found = find_frontier(plan, open_store(tmp_path))
    first, second = found.searches
    assert first.tried == ("gaussian(sigma=1.0)", "gaussian(sigma=0.0001)")
    assert len(second.tried) == 8
    assert found.unfit == {"gaussian(sigma=0.01)": "the disk is full"}
    of_ranges = {each.searched: each.defense["parameters"] for each in found.settings}
    assert set(of_ranges) == {"", *(each.text for each in plan.ranges)}
    assert "clip" in of_ranges[plan.ranges[1].text]


def test_attacks_that_the_user_names_take_the_place_of_all_others(tmp_path: Path) -> None:
    plan = make_settings(FrontierPlan, {**SMALL, "defenses": "gaussian(sigma=10)", "attacks": "ig"})
    found = find_frontier(plan, open_store(tmp_path))
    assert found.settings[1].attackers == ("ig (naive)", "ig (adaptive)")
