"""Lists in a plan: which audits they stand for, and what a plan may not list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keyhole.auditing import Plan, Stage, expand_plan, read_plan, read_sweep
from keyhole.errors import BadValue

PLAN = """
title = "Noise"
seed = [0, 1]

[[stage]]
model = ["mlp", "lenet"]
data = "digits"
defenses = ["none", { name = "gaussian", sigma = [1e-5, 1e-4] }, "topk(k=[.1,.01])"]
batch_size = [1, 2]
attacks = ["linear"]
"""


MANY = list(range(100))


def plan_of(**stage: Any) -> dict[str, Any]:
    return {"stage": [stage]}


def test_a_file_lists_seeds_models_batches_and_parameters(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    sweep = read_sweep(file)
    assert sweep.seeds == (0, 1)
    assert set(sweep.swept) == {"seed", "model", "batch_size", "gaussian.sigma", "topk.k"}
    stages = sweep.plans[0].stage
    assert [(s.model, s.batch_size) for s in stages] == [
        *(("mlp", 1), ("mlp", 2), ("lenet", 1), ("lenet", 2)),
    ]
    names = ("none", "gaussian(sigma=1e-05)", "gaussian(sigma=0.0001)", "topk(k=0.1)")
    assert all(s.defenses == (*names, "topk(k=0.01)") for s in stages)
    assert sweep.plans[1].stage == stages
    assert (sweep.plans[1].seed, sweep.title) == (1, "Noise")


def test_a_plan_without_lists_is_the_plan_itself(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('seed = 3\n[[stage]]\nmodel = "mlp"\ndefenses = ["none", "gaussian"]\n')
    sweep = read_sweep(file)
    assert sweep.plans == (read_plan(file),)
    assert sweep.swept == ()
    assert sweep.to_json() == read_plan(file).to_json()
    assert sweep.digest == read_plan(file).digest


def test_a_list_of_one_value_is_no_sweep() -> None:
    sweep = expand_plan(plan_of(batch_size=[2], defenses="gaussian(sigma=[1e-3])"))
    assert sweep.swept == ()
    assert sweep.plans == (
        Plan(stage=(_stage(batch_size=2, defenses=("gaussian(sigma=0.001)",)),)),
    )


def _stage(**values: Any) -> Any:

    return Stage(**values)


def test_means_and_metrics_stay_one_value() -> None:
    sweep = expand_plan(plan_of(mean=[0.4, 0.5, 0.6], std=[0.1, 0.1, 0.1]))
    assert sweep.swept == ()
    assert sweep.plans[0].stage[0].mean == (0.4, 0.5, 0.6)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"batch_size": []}, "batch-size: an empty list"),
        ({"batch_size": [[1]]}, "batch-size: a list in a list"),
        ({"batch_size": [1, "x"]}, "batch-size: input should be a valid integer"),
        ({"defenses": ["gaussian(sigma=[])"]}, "sigma of .* is an empty list"),
        ({"batch_size": list(range(1, 500)), "victims": list(range(1, 500))}, "more than 100,000"),
        ({"batch_size": list(range(1, 999)), "defenses": ["none"] * 999}, "more than 100,000"),
        ({"model": [f"m(a={MANY}, b={MANY}, c={MANY})"]}, "more than 100,000 combinations"),
        ({"defenses": [" + ".join([f"half(a={MANY})"] * 8)]}, "more than 100,000 combinations"),
        ({"attacks": []}, "attacks: an empty list"),
    ],
)
def test_what_cannot_be_listed_is_said(stage: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        expand_plan(plan_of(**stage))


def test_unknown_keys_are_still_named() -> None:
    with pytest.raises(Exception, match="did you mean defenses"):
        expand_plan(plan_of(defences=["none", "gaussian"]))
    with pytest.raises(Exception, match="did you mean stage"):
        expand_plan({"stages": []})


@pytest.mark.parametrize("stages", [None, [], "x", 3, {}])
def test_a_plan_without_stages_says_how_to_write_them(stages: Any) -> None:
    with pytest.raises(BadValue, match=r"stage in a.toml: write one \[\[stage\]\] table or more"):
        expand_plan({"stage": stages}, where=" in a.toml")
    with pytest.raises(BadValue, match=r"write \[\[stage\]\] tables, got 'x'"):
        expand_plan({"stage": ["x"]})


def test_a_row_of_defenses_may_have_parameters_in_any_part() -> None:
    row = "topk(k=[0.5, 0.1]) + half"
    sweep = expand_plan(plan_of(defenses=[row, "pruning(ratio=0.5) + half"]))
    (plan,) = sweep.plans
    expected = ("topk(k=0.5) + half", "topk(k=0.1) + half", "pruning(ratio=0.5) + half")
    assert plan.stage[0].defenses == expected
    assert sweep.swept == ("topk.k",)
