"""What a frontier is asked for: settings, seeds, ranges, and what is refused."""

from __future__ import annotations

import pytest

from keyhole.errors import BadValue
from keyhole.frontier import FrontierPlan
from keyhole.frontier.pieces import build_setting_piece
from keyhole.frontier.plan import QUICK
from keyhole.frontier.ranges import read_range
from keyhole.settings import make_settings


def test_no_defense_comes_first_and_each_value_of_a_list_is_a_setting() -> None:
    plan = make_settings(FrontierPlan, {"defenses": "tip,topk(k=[.1,.01]),none"})
    assert plan.settings == ("none", "tip", "topk(k=0.1)", "topk(k=0.01)")


def test_a_training_has_the_defense_and_the_seed_of_its_setting_and_all_else_of_the_frontier() -> (
    None
):
    plan = FrontierPlan(defenses=("dropout",), model="lenet", rounds=7, lr=0.5, seeds=(3, 4))
    training = plan.training_plan("dropout", 4)
    assert (training.defense, training.seed) == ("dropout", 4)
    assert (training.model, training.rounds, training.lr) == ("lenet", 7, 0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "name defenses to compare"),
        ({"defenses": "dropout", "seeds": "0,one"}, "'one' is no seed"),
        ({"defenses": "dropout", "defense": "gaussian"}, "give defenses and seeds"),
        ({"defenses": "dropout", "seed": 3}, "give defenses and seeds"),
        ({"defenses": "dropout", "trials": 1}, "trials"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(BadValue, match=message) as refused:
        make_settings(FrontierPlan, dict(values))
    assert "\n" not in str(refused.value)


def test_a_range_is_halved_on_a_logarithmic_scale_where_it_spans_a_decade() -> None:
    wide, narrow = read_range("gaussian(sigma=1e-6..1e-2)"), read_range("dropout(p=.1..0.5)")
    assert wide.logarithmic
    assert wide.value_at(0.5) == pytest.approx(1e-4)
    assert not narrow.logarithmic
    assert narrow.value_at(0.5) == pytest.approx(0.3)


def test_a_range_may_fall_and_keeps_the_other_parameters() -> None:
    budget = read_range("dp(clip=2.0, epsilon=500..5)")
    assert (budget.mild, budget.strong) == (500, 5)
    assert budget.defense_at(0.0) == "dp(epsilon=500.0, clip=2.0)"
    assert budget.defense_at(1.0) == "dp(epsilon=5.0, clip=2.0)"
    assert budget.defense_at(0.5) == "dp(epsilon=50.0, clip=2.0)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaussian(sigma=0.1)", "no range"),
        ("gaussian(sigma=1e-3..1e-1, clip=1..2)", "more than one range"),
        ("gaussian(sigma=0.1..0.1)", "two finite values"),
        ("gaussian(sigma=1e-3..1e999)", "two finite values"),
        ("gaussian(sigma=1e-3..1e-1", "cannot read"),
    ],
)
def test_what_is_no_range_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        read_range(text)


def test_the_quick_frontier_is_a_valid_plan_on_built_in_images() -> None:
    plan = make_settings(FrontierPlan, QUICK)
    assert plan.data == "digits"
    assert len(plan.seeds) >= 2
    assert plan.ranges


def test_a_piece_is_the_same_in_any_frontier_that_contains_its_setting() -> None:
    one = FrontierPlan(defenses=("dropout", "topk(k=[.1,.01])"), seeds=(0, 1))
    other = FrontierPlan(
        defenses=("topk( k=0.10 )",), seeds=(1, 2), search=("gaussian(sigma=1..2)",), trials=3
    )
    key = build_setting_piece(one, "topk(k=0.1)", 1).key
    assert build_setting_piece(other, "topk( k=0.10 )", 1).key == key
    assert build_setting_piece(other, "topk(k=0.1)", 2).key != key
    longer = one.model_copy(update={"rounds": 6})
    assert build_setting_piece(longer, "topk(k=0.1)", 1).key != key
