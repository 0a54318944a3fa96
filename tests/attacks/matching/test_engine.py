from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import ATTACKS
from keyhole.attacks.matching.engine import Engine, make_stepper
from keyhole.attacks.matching.gradients.match import BuiltMatch, Targets
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.state import assign_where, overwrite_rows, select_rows
from keyhole.defenses import Dropout
from keyhole.models.dropout_sites import Site
from keyhole.seeds import generator

Clients = Callable[..., list[Any]]


@pytest.fixture
def problem(clients: Clients) -> MatchingProblem:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 6), nn.Dropout(0.0), nn.Linear(6, 4), nn.Dropout(0.0)),
        nn.Linear(4, 10),
    )
    return MatchingProblem.from_observation(clients(model, [[3]], Dropout(p=0.5))[0].observation)


def engine_of(problem: MatchingProblem, text: str, iterations: int = 4) -> Engine:
    return Engine(ATTACKS.parse(text).build_all_parts(problem), problem, iterations)


def start(engine: Engine, victims: list[int], given: dict[str, Tensor]) -> dict[str, Tensor]:
    draws = [generator(0, "guess", victim) for victim in victims]
    return engine.start(victims, draws, given)


def threes(victims: int) -> Tensor:
    """Targets of victims with one image each, all of class 3."""
    return torch.eye(10)[3].expand(victims, 1, 10)


def make_matcher(losses: list[list[float]]) -> Callable[[Tensor, Tensor, Any], BuiltMatch]:
    """A matcher whose cosine losses are given, one list per iteration; its gradient is 0."""
    angles = iter(torch.tensor(losses))

    def matcher(images: Tensor, targets: Tensor, masks: Any) -> BuiltMatch:
        loss = next(angles)
        gradient = torch.stack([1 - loss, (1 - (1 - loss).square()).clamp(min=0).sqrt()], 1)
        gradient = gradient + 0 * images.sum()
        return BuiltMatch({"w": gradient}, Targets({"w": torch.tensor([[1.0, 0.0]] * len(loss))}))

    return matcher


def test_the_guess_of_least_loss_is_kept(problem: MatchingProblem) -> None:
    engine = engine_of(problem, "ig(tv=0)", iterations=10)
    state = start(engine, [0, 1], {"labels": threes(2)})
    matcher = make_matcher([[0.5, 0.5], [0.2, 0.6], [0.4, 0.3]])
    values = []
    for _ in range(3):
        values.append(state["value.pixels"].clone())
        engine.step(state, matcher)
        state["value.pixels"].add_(0.01)
    assert state["least"].tolist() == pytest.approx([0.2, 0.3])
    assert state["loss"].tolist() == pytest.approx([0.4, 0.3])
    assert torch.equal(state["best.pixels"][0], values[1][0])
    assert torch.equal(state["best.pixels"][1], values[2][1])


def test_a_victim_ends_at_its_last_iteration_and_does_not_change_any_more(
    problem: MatchingProblem,
) -> None:
    engine = engine_of(problem, "ig(tv=0)", iterations=2)
    state = start(engine, [0], {"labels": threes(1)})
    matcher = make_matcher([[0.5], [0.4], [0.1]])
    lives = []
    for _ in range(3):
        engine.step(state, matcher)
        lives.append(bool(state["alive"]))
    assert lives == [True, False, False]
    assert int(state["iterations"]) == 2
    assert float(state["least"]) == pytest.approx(0.4)
    assert float(state["loss"]) == pytest.approx(0.4)


def test_a_victim_ends_when_its_loss_is_small_enough(problem: MatchingProblem) -> None:
    engine = engine_of(problem, "ig(tv=0, stop_below=0.25)", iterations=10)
    state = start(engine, [0, 1], {"labels": threes(2)})
    matcher = make_matcher([[0.5, 0.5], [0.2, 0.6]])
    engine.step(state, matcher)
    engine.step(state, matcher)
    assert state["alive"].tolist() == [False, True]


def test_a_victim_whose_loss_is_not_finite_is_marked(problem: MatchingProblem) -> None:
    engine = engine_of(problem, "ig(tv=0)", iterations=10)
    state = start(engine, [0, 1], {"labels": threes(2)})
    matcher = make_matcher([[0.5, 0.5], [0.2, float("nan")]])
    engine.step(state, matcher)
    engine.step(state, matcher)
    assert state["broken"].tolist() == [False, True]
    assert state["alive"].tolist() == [True, False]
    assert state["least"].tolist() == pytest.approx([0.2, 0.5])


def test_a_stepper_takes_so_many_steps(problem: MatchingProblem) -> None:
    engine = engine_of(problem, "ig(tv=0)", iterations=10)
    state = start(engine, [0], {"labels": threes(1)})
    make_stepper(engine, state, make_matcher([[0.5], [0.4], [0.1]]))(3)
    assert int(state["iterations"]) == 3


def test_first_guesses_are_each_victims_own(problem: MatchingProblem) -> None:
    engine = engine_of(problem, "dia")
    given = {"labels": threes(2)}
    both = start(engine, [4, 7], given)
    alone = start(engine, [7], {"labels": given["labels"][1:]})
    for name, tensor in alone.items():
        assert torch.equal(both[name][1:], tensor), name
    assert not torch.equal(both["value.pixels"][0], both["value.pixels"][1])
    black, white = problem.box
    assert (both["value.pixels"] >= black).all()
    assert (both["value.pixels"] <= white).all()


def test_masks_are_given_or_sought_or_sought_where_not_given(problem: MatchingProblem) -> None:
    assert problem.sites == (Site(0.5, (6,)), Site(0.5, (4,)))
    sought = torch.rand(1, 1, 10)
    known = torch.cat([torch.tensor([[[1.0, 0, 1, 0, 1, 0]]]), torch.full((1, 1, 4), -1.0)], 2)
    ig, dia = engine_of(problem, "ig"), engine_of(problem, "dia")
    assert ig.masks({}, {}) is None
    given = ig.masks({}, {"given.masks": torch.ones(1, 1, 10)})
    assert given is not None
    assert [mask.shape for mask in given] == [(1, 1, 6), (1, 1, 4)]
    free = dia.masks({"masks": sought}, {})
    assert free is not None
    assert torch.equal(torch.cat(free, 2), sought)
    mixed = dia.masks({"masks": sought}, {"given.masks": known})
    assert mixed is not None
    assert torch.equal(mixed[0], known[..., :6])
    assert torch.equal(mixed[1], sought[..., 6:])


def test_labels_that_are_sought_become_targets_that_sum_to_one(problem: MatchingProblem) -> None:
    engine = engine_of(problem, "ig(labels='sought')")
    state = start(engine, [0], {})
    targets: list[Tensor] = []

    def matcher(images: Tensor, labels: Tensor, masks: Any) -> BuiltMatch:
        targets.append(labels.detach())
        return make_matcher([[0.5]])(images, labels, masks)

    engine.step(state, matcher)
    assert targets[0].shape == (1, 1, 10)
    torch.testing.assert_close(targets[0].sum(-1), torch.ones(1, 1))


def test_victims_are_selected_and_put_back() -> None:
    state = {"a": torch.arange(4.0), "b": torch.arange(8.0).view(4, 2)}
    some = select_rows(state, torch.tensor([3, 1]))
    assert some["a"].tolist() == [3, 1]
    some["b"].zero_()
    assert state["b"].sum() == 28
    overwrite_rows(state, torch.tensor([3, 1]), {"b": some["b"]})
    assert state["b"].sum(1).tolist() == [1, 0, 9, 0]
    assert state["a"].tolist() == [0, 1, 2, 3]


def test_what_is_kept_is_kept_in_place() -> None:
    old = torch.zeros(3, 2)
    place = old.data_ptr()
    assign_where(torch.tensor([True, False, True]), torch.ones(3, 2), old)
    assert old.sum(1).tolist() == [2, 0, 2]
    assert old.data_ptr() == place
