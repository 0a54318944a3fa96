"""Measurements: what findings say in one regime, merged by the worst, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.auditing.measured import find_measured, read_shipped
from keyhole.auditing.measurement import (
    Measurement,
    Regime,
    measure_findings,
    merge_measurements,
    read_regime,
)

REGIME = Regime("mlp", "digits", (8, 8), "random weights", 1, 1, 1, "gradient")


def make(read: int, images: int = 8, **changes: Any) -> Measurement:
    facts: dict[str, Any] = {
        "regime": REGIME,
        "defense": {"name": "topk", "parameters": {"k": 0.1}},
        "server": "honest",
        "by": "ig (naive)" if read else None,
        "attackers": ("ig (naive)",),
        **changes,
    }
    return Measurement(read=read, images=images, **facts)


@pytest.fixture(scope="module")
def result() -> AuditResult:
    stages = (
        Stage(
            data="digits",
            defenses=("none", "gaussian(sigma=1e-5)"),
            attacks=("linear", "imprint", "labels"),
            victims=2,
        ),
        Stage(data="digits", attacks=("linear",), victims=1, batch_size=2, steps=2, lr=0.1),
    )
    return run_plan(Plan(stage=stages))


def test_findings_become_one_measurement_for_each_regime_defense_and_server(
    result: AuditResult,
) -> None:
    found = measure_findings(result.findings, date="2026-01-31", source="mine.json")
    identities = [(m.regime.batch_size, m.label, m.server) for m in found]
    assert identities == [
        (1, "none", "honest"),
        (1, "none", "malicious"),
        (1, "gaussian(sigma=1e-05)", "honest"),
        (1, "gaussian(sigma=1e-05)", "malicious"),
        (2, "none", "honest"),
    ]
    noisy = found[2]
    assert noisy.attackers == ("linear (naive)", "linear (adaptive)")
    assert (noisy.read, noisy.images, noisy.date, noisy.source) == (2, 2, "2026-01-31", "mine.json")
    assert noisy.by in noisy.attackers
    assert found[4].regime.facts == (
        "8x8 px, random weights, 2 images per update, weights after 2 steps"
    )


def test_of_several_results_the_worst_counts_and_everybody_who_tried() -> None:
    first = make(0, attackers=("ig (naive)",), source="a")
    second = make(3, attackers=("ig (adaptive)",), by="ig (adaptive)", source="b")
    [merged] = merge_measurements([first, second, first])
    assert (merged.read, merged.by, merged.source) == (3, "ig (adaptive)", "b")
    assert merged.attackers == ("ig (naive)", "ig (adaptive)")
    assert merged.met_adaptive
    assert first.unjudged
    assert not merged.unjudged


def test_of_equal_shares_the_one_over_more_images_counts() -> None:
    [merged] = merge_measurements([make(0, 4, source="few"), make(0, 400, source="many")])
    assert (merged.images, merged.source) == (400, "many")


@pytest.mark.parametrize(
    "change",
    [{"server": "malicious"}, {"regime": dataclasses.replace(REGIME, steps=2)}],
    ids=["server", "regime"],
)
def test_other_servers_and_regimes_are_never_merged(change: dict[str, Any]) -> None:
    assert len(merge_measurements([make(0), make(3, **change)])) == 2


def test_no_defense_needs_no_attacker_who_knows_it() -> None:
    assert not make(8, defense={"name": "none", "parameters": {}}).unjudged


def test_what_is_written_is_read_again() -> None:
    measured = make(3)
    assert Measurement.from_json(json.loads(json.dumps(measured.to_json()))) == measured


@pytest.mark.parametrize(
    "spoil", [{"read": 9}, {"images": 0}, {"read": -1}, {"extra": 1}, {"server": 3}]
)
def test_what_is_no_measurement_is_refused(spoil: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - by pydantic, or by its own check
        Measurement.from_json({**make(3).to_json(), **spoil})


@pytest.mark.parametrize(
    ("recipe", "weights"),
    [
        ({"weights": None}, "random weights"),
        ({"weights": "a.safetensors"}, "given weights"),
        ({"weights": "a.safetensors", "checkpoint_epoch": 5}, "weights after 5 epochs"),
        ({"weights": None, "captured": "seen"}, "captured weights"),
        ({"weights": None, "warm_up": 1}, "weights after 1 round"),
        ({"weights": "a", "warm_up": 2}, "given weights and 2 rounds"),
    ],
)
def test_weights_belong_to_the_regime(recipe: dict[str, Any], weights: str) -> None:
    rest = {"image_size": [8, 8], "batch_size": 1, "steps": 1, "lr": None}
    assert read_regime("mlp", "digits", {**rest, **recipe}).weights == weights


PLAIN = {"image_size": [8, 8], "weights": None, "batch_size": 4, "steps": 1, "lr": 0.1}


@pytest.mark.parametrize(
    ("recipe", "facts"),
    [
        ({"epochs": 2, "local_batch_size": 2}, "weights after 4 steps of 2 images"),
        (
            {"clients_did": "4 steps of adam, lr 0.1, betas (1, 2) (1 epoch in batches of 1)"},
            "weights after 4 steps of 1 image by adam, betas (1, 2)",
        ),
        ({"optimiser": "adam"}, "weights after 1 step by adam"),
        ({"share": "lora(r=8)"}, "weights after 1 step, only lora(r=8) is trained"),
        ({"client_mode": "eval"}, "weights after 1 step, clients in mode eval"),
        ({"warm_up": 3}, "weights after 3 rounds, 4 images per update, weights after 1 step"),
        ({"repeats": 2, "moving": True}, "2 updates of the same images from moving weights"),
    ],
)
def test_whatever_else_decides_how_much_leaks_is_another_regime(
    recipe: dict[str, Any], facts: str
) -> None:
    plain, other = (read_regime("mlp", "digits", {**PLAIN, **more}) for more in ({}, recipe))
    assert other.facts.endswith(facts)
    assert len(merge_measurements([make(0, regime=plain), make(8, regime=other)])) == 2


def test_what_is_spelled_out_and_usual_is_the_same_regime() -> None:
    usual = {"share": "all", "client_mode": "train", "optimiser": "sgd", "local_batch_size": 4}
    same = [read_regime("mlp", "digits", {**PLAIN, **more}) for more in ({}, usual)]
    assert same[0] == same[1]
    assert same[0].facts == "8x8 px, random weights, 4 images per update, weights after 1 step"


def test_the_shipped_table_is_looked_up_by_the_whole_regime() -> None:
    regime = next(each.regime for each in read_shipped() if each.server == "honest")
    found = find_measured(regime, "honest")
    assert found
    assert [m.share for m in found] == sorted(m.share for m in found)
    assert find_measured(dataclasses.replace(regime, batch_size=999), "honest") == []
