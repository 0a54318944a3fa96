from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import MjpInversion, MjpSpan, PatchLeastSquares
from keyhole.attacks.mjp.reading import Reading
from keyhole.attacks.mjp.span import smooth_patches
from keyhole.defenses import Gaussian, Mjp
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.models.anatomy import InputLayer
from keyhole.threat import Server
from keyhole.update import Update

Puzzle = Callable[..., Any]
QUARTER = Mjp(gamma=0.25)
QUICK = MjpSpan(rounds=3, turns=30)
BOTH = pytest.mark.parametrize("attack", [MjpSpan(), MjpInversion()], ids=lambda a: a.name)


def test_it_reads_more_than_least_squares_and_smoothing_tells_the_rest(
    puzzle: Puzzle, vit: nn.Module
) -> None:
    seen = [puzzle(vit, QUARTER, index) for index in (0, 1, 2)]
    smooth, rough, plain = (
        [s.decibels(attack(s.observation)) for s in seen]
        for attack in (QUICK, MjpSpan(rounds=0), PatchLeastSquares())
    )
    assert mean(smooth) > mean(plain) + 3
    assert mean(smooth) > mean(rough) + 3
    assert all(one > other for one, other in zip(smooth, plain, strict=True))


@pytest.mark.parametrize("index", [0, 1])
def test_several_updates_hold_the_image(puzzle: Puzzle, vit: nn.Module, index: int) -> None:
    seen = puzzle(vit, QUARTER, index, rounds=5)
    assert not torch.stack(seen.covered).all(0).any()
    found = QUICK(seen.observation)
    assert seen.decibels(found) > 50
    assert found.diagnostics["updates"] == 5
    assert found.diagnostics["hidden"] == 0
    assert float(found.confidence) > 0.99
    alone = QUICK(replace(seen.observation, earlier=()))
    assert seen.decibels(alone) < 40
    assert float(alone.confidence) < float(found.confidence)


def test_the_order_of_rounds_does_not_matter(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, QUARTER, 0, rounds=4).observation
    first, *others = seen.earlier
    turned = replace(seen, update=first, earlier=(seen.update, *others))
    torch.testing.assert_close(QUICK(turned).images, QUICK(seen).images, atol=1e-3, rtol=0)


def test_diagnostics_tell_what_was_read(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, QUARTER, 0)
    found = QUICK(seen.observation).diagnostics
    assert found["covered"] == found["hidden"] == int(seen.covered[0].sum())
    assert found["residual"] < 1e-5


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_nothing_or_everything_may_be_covered(puzzle: Puzzle, vit: nn.Module, gamma: float) -> None:
    seen = puzzle(vit, Mjp(gamma=gamma), 0)
    found = QUICK(seen.observation)
    assert found.images is not None
    assert found.images.isfinite().all()
    assert (seen.decibels(found) > 50) == (gamma == 0)


def test_seen_cells_are_smoothed_before_the_covered_ones(puzzle: Puzzle, vit: nn.Module) -> None:
    """Covered cells, of which nothing is known, must not spoil the others."""
    seen = puzzle(vit, QUARTER, 0)
    space = torch.linalg.qr(seen.patches[seen.covered[0]].T)[0].T
    rest = seen.patches - (seen.patches @ space.T) @ space
    reading = Reading(seen.covered[0], space, rest, 0.0)
    layout = torch.arange(3072).view(3, 4, 8, 4, 8).permute(1, 3, 0, 2, 4).reshape(16, 192)
    cells = InputLayer("", layout)
    options = {"rounds": 3, "turns": 30}
    found = smooth_patches(reading, cells, seen.observation.knowledge, **options)
    nowhere = replace(reading, covered=torch.zeros(16, dtype=torch.bool))
    at_once = smooth_patches(nowhere, cells, seen.observation.knowledge, **options)
    known = ~seen.covered[0]
    errors = [(p - seen.patches)[known].norm() for p in (found, at_once, rest)]
    assert errors[0] < errors[2]
    assert not torch.allclose(found, at_once)
    torch.testing.assert_close(found - (found @ space.T) @ space, rest)


@BOTH
@pytest.mark.parametrize(
    ("defense", "indices", "training", "reason"),
    [
        (QUARTER, (0, 1), None, "it needs one image per client: several images cover different"),
        (QUARTER, (0,), LocalTraining(steps=2, lr=0.1), "it needs one local step: every step"),
        (Mjp(gamma=0.25, positions="own"), (0,), None, "no position is unknown here"),
        (Mjp(gamma=0.25, positions="none"), (0,), None, "no position is unknown here"),
        (Mjp(gamma=0.25, level="image", patch=8), (0,), None, "no position is unknown here"),
    ],
    ids=["batch of 2", "2 steps", "own positions", "no positions", "image level"],
)
def test_updates_that_do_not_show_the_puzzle_are_refused(
    puzzle: Puzzle,
    vit: nn.Module,
    attack: Any,
    defense: Mjp,
    indices: tuple[int, ...],
    training: LocalTraining | None,
    reason: str,
) -> None:
    observation = puzzle(vit, defense, *indices, training=training).observation
    (why,) = attack.incompatibilities(observation)
    assert why.startswith(reason)
    with pytest.raises(DoesNotFit, match=f"attack '{attack.name}' does not apply: {reason}"):
        attack(observation)


@BOTH
@pytest.mark.parametrize("defense", [None, Gaussian()], ids=["unknown", "another"])
def test_who_does_not_know_of_the_puzzle_is_refused(
    puzzle: Puzzle, vit: nn.Module, attack: Any, defense: Any
) -> None:
    seen = puzzle(vit, QUARTER, 0).observation
    other = replace(seen, knowledge=replace(seen.knowledge, defense=defense))
    assert attack.incompatibilities(other) == ["it needs to know that clients train with MJP"]


@BOTH
def test_every_reason_is_told_at_once(puzzle: Puzzle, vit: nn.Module, attack: Any) -> None:
    seen = puzzle(vit, QUARTER, 0, 1, training=LocalTraining(steps=2, lr=0.1)).observation
    unaware = replace(seen, knowledge=replace(seen.knowledge, defense=None))
    assert [why.partition(":")[0] for why in attack.incompatibilities(unaware)] == [
        "it needs to know that clients train with MJP",
        "it needs one image per client",
        "it needs one local step",
    ]


@pytest.mark.parametrize("attack", [QUICK, MjpInversion(iterations=3)], ids=lambda a: a.name)
def test_what_is_found_follows_from_weights_and_updates_alone(
    puzzle: Puzzle, vit: nn.Module, attack: Any, tmp_path: Path
) -> None:
    """A server that has only files: a model made anew, its weights, and the updates."""
    seen = puzzle(vit, QUARTER, 0, rounds=2).observation
    updates = []
    for number, update in enumerate((*seen.earlier, seen.update)):
        update.save(tmp_path / f"{number}.safetensors")
        updates.append(Update.load(tmp_path / f"{number}.safetensors"))
    anew = QUARTER.prepare_model(copy.deepcopy(vit))
    anew.load_state_dict(seen.model.state_dict())
    torch.manual_seed(99)
    again = Server(anew).receive(updates[-1], seen.knowledge, earlier=updates[:-1])
    found, expected = attack(again), attack(seen)
    assert torch.equal(found.images, expected.images)
    assert found.diagnostics == pytest.approx(expected.diagnostics, rel=1e-4)


def test_a_server_keeps_nothing_of_the_puzzles_that_its_model_laid(
    puzzle: Puzzle, vit: nn.Module
) -> None:
    """Also where the model was trained before, and holds masks that are still to be dealt."""
    model: Any = QUARTER.prepare_model(vit).train()
    model(torch.zeros(2, 3, 32, 32))
    assert model.puzzle.pool.supply is not None
    assert model.puzzle.known_counts is not None
    sent: Any = Server(model).sent
    assert sent.puzzle.pool.supply is None
    assert sent.puzzle.known_counts is None
    assert sent.puzzle.fixed_puzzle is None
