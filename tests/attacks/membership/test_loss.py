from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from keyhole.attacks.membership import LossThreshold, MembershipProblem, TargetTraining
from keyhole.defenses import Defense
from keyhole.metrics.membership import auc


def area(scores: torch.Tensor) -> float:
    half = len(scores) // 2
    return auc(scores[:half], scores[half:])


def test_the_score_is_minus_the_loss(problem: MembershipProblem) -> None:
    asked = problem.candidates
    logits = problem.model((asked.images - 0.5) / 0.25)
    expected = -F.cross_entropy(logits, asked.labels, reduction="none")
    assert torch.allclose(LossThreshold()(problem), expected.double(), atol=1e-5)


def test_what_was_learned_by_heart_is_told_from_what_was_not(problem: MembershipProblem) -> None:
    assert area(LossThreshold()(problem)) > 0.95


def test_who_looks_at_clean_images_misses_what_was_learned_from_others(
    training: TargetTraining, ask: Callable[[TargetTraining], MembershipProblem], negative: Defense
) -> None:
    aware = ask(replace(training, defense=negative))
    naive = replace(aware, training=aware.training.undefended())
    assert area(LossThreshold(views=8)(naive)) < 0.75
    assert area(LossThreshold(views=8)(aware)) > 0.95


@pytest.mark.parametrize("reduce", ["mean", "min"])
def test_losses_of_the_views_become_one(
    reduce: str, problem: MembershipProblem, negative: Defense
) -> None:
    aware = replace(problem, training=replace(problem.training, defense=negative))
    asked = problem.candidates
    losses = torch.stack(
        [
            F.cross_entropy(
                aware.model(aware.inputs(asked.images, v)), asked.labels, reduction="none"
            )
            for v in range(4)
        ]
    )
    expected = losses.mean(0) if reduce == "mean" else losses.min(0).values
    scores = LossThreshold(views=4, reduce=reduce)(aware)
    assert torch.allclose(-scores, expected.double(), atol=1e-5)
