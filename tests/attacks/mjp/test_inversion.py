from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import (
    ATTACKS,
    Attack,
    InvertingGradients,
    MjpInversion,
    PatchLeastSquares,
    Reconstruction,
)
from keyhole.attacks.matching.parts.unknowns import ConfinedPixels
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.mjp.reading import read_update, require_embedding
from keyhole.defenses import Mjp
from keyhole.errors import DoesNotFit
from keyhole.models.puzzle import cut_patches, join_patches

Puzzle = Callable[..., Any]
QUARTER = Mjp(gamma=0.25)


def close(found: Reconstruction, seen: Any) -> None:
    """Asserts that an image agrees with what can be read off the update."""
    assert found.images is not None
    reading = read_update(seen.observation)
    patches = found.images.double().flatten()[
        require_embedding(seen.observation).input_layer.layout
    ]
    rest = patches - (patches @ reading.space.T) @ reading.space
    torch.testing.assert_close(rest, reading.rest, atol=1e-4, rtol=0)


def test_it_reads_more_than_who_ignores_the_puzzle(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = [puzzle(vit, QUARTER, index) for index in (1, 2)]

    def decibels(attack: Attack) -> float:
        found = attack.on_many([s.observation for s in seen])
        return mean(s.decibels(f) for s, f in zip(seen, found, strict=True))

    informed = decibels(MjpInversion(iterations=10))
    assert informed > decibels(PatchLeastSquares()) + 4
    assert informed > decibels(InvertingGradients(iterations=10)) + 4


def test_the_gradient_of_the_truth_is_matched(puzzle: Puzzle, vit: nn.Module) -> None:
    """With the mask read and the localiser's part off, the true image has next to no loss.

    Its covered patches lie in order, the client's did not: that makes no difference.
    """
    seen = puzzle(vit, replace(QUARTER, dal_weight=30.0), 1)
    inputs = seen.data.normalise(seen.images)

    class AtTheTruth(MjpInversion):
        def extra_inputs(self, observation: Any) -> dict[str, Tensor]:
            free = {"rest": torch.zeros(16, 192), "space": torch.eye(192)}
            return {**free, "start.pixels": inputs}

    class WithLocalisation(AtTheTruth):
        def target_gradient(self, observation: Any) -> dict[str, Tensor]:
            return dict(observation.update.gradient())

    def first_loss(attack: type[MjpInversion], **options: Any) -> float:
        made = attack(iterations=1, tv=0, mask_weight=0, **options)
        return made(seen.observation).loss_curve[0][1]

    for backend in ("auto", "factored", "vmap", "loop"):
        assert abs(first_loss(AtTheTruth, backend=backend)) < 1e-6
    assert first_loss(WithLocalisation) > 1e-4
    assert first_loss(AtTheTruth, masks="ignored") > 1e-4


def test_it_starts_from_the_smooth_image(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, QUARTER, 0).observation
    attack = MjpInversion()
    known = attack.extra_inputs(seen)
    assert known["start.pixels"].shape == (1, 3, 32, 32)
    assert known["rest"].shape == (16, 192)
    assert known["space"].shape == (16, 192)  # as many rows as cells, whatever was covered
    filled = known["space"].any(1)
    assert filled.tolist() == [True] * 4 + [False] * 12
    assert replace(attack, confined=False).extra_inputs(seen) == {}


def test_confining_can_be_left_out(puzzle: Puzzle, vit: nn.Module) -> None:
    problem = MatchingProblem.from_observation(puzzle(vit, QUARTER, 0).observation)
    assert isinstance(MjpInversion().build_parts(problem).images, ConfinedPixels)
    free = MjpInversion(confined=False).build_parts(problem)
    assert free.images == InvertingGradients().build_parts(problem).images


def test_covered_patches_are_put_in_order_at_the_end(puzzle: Puzzle, vit: nn.Module) -> None:
    """Only they: the others stay where they are, and no patch is lost."""
    seen = puzzle(vit, Mjp(gamma=0.4), 2)
    covered = seen.covered[0]
    truth = seen.data.normalise(seen.images)
    order = torch.arange(16)
    order[covered] = order[covered].roll(1)
    shuffled = join_patches(cut_patches(truth, (4, 4))[:, order], truth.shape, (4, 4))
    solved = MjpInversion().postprocess(shuffled, seen.observation)
    before, after, right = (cut_patches(x, (4, 4)).flatten(2)[0] for x in (shuffled, solved, truth))
    assert torch.equal(before[~covered], after[~covered])
    assert torch.equal(before.unique(dim=0), after.unique(dim=0))
    assert not (before == right).all(1)[covered].any()
    assert (after == right).all(1)[covered].double().mean() >= 0.5
    assert MjpInversion(solve=False).postprocess(shuffled, seen.observation) is shuffled


def test_images_keep_to_what_was_read_however_much_each_client_covered(
    puzzle: Puzzle, vit: nn.Module
) -> None:
    few, many = (puzzle(vit, Mjp(gamma=gamma), 0) for gamma in (0.1, 0.3))
    alike = replace(many.observation, knowledge=few.observation.knowledge)
    attack = MjpInversion(iterations=2, solve=False)
    found = list(attack.on_many([few.observation, alike]))
    for client, one in zip((few, many), found, strict=True):
        assert one.masks is not None
        assert torch.equal(one.masks[0][0] == 0, client.covered[0])
        close(one, client)
    with pytest.raises(AssertionError, match="not close"):
        close(replace(attack, confined=False)(few.observation), few)


def test_an_update_without_positions_or_patches_is_refused(puzzle: Puzzle, vit: nn.Module) -> None:
    seen = puzzle(vit, QUARTER, 0).observation
    for layer in ("pos_embed", "patch_embed.proj.weight"):
        change = {n: t for n, t in seen.update.change.items() if n != layer}
        for name in ("mjp-ig", "mjp-span"):
            with pytest.raises(DoesNotFit, match=f"attack '{name}' reads '{layer}'"):
                ATTACKS.parse(name)(replace(seen, update=replace(seen.update, change=change)))
