from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from keyhole.attacks.membership import MembershipProblem, ShadowModels, TargetTraining
from keyhole.attacks.membership.shadow import extract_features
from keyhole.defenses import Defense
from keyhole.errors import DoesNotFit
from keyhole.metrics.membership import auc

FEW = torch.arange(3)


def area(scores: torch.Tensor) -> float:
    half = len(scores) // 2
    return auc(scores[:half], scores[half:])


@pytest.mark.parametrize("classifier", ["logistic", "mlp"])
@pytest.mark.parametrize("per_class", [False, True])
def test_members_are_told_by_what_shadow_models_do_to_theirs(
    classifier: str, per_class: bool, problem: MembershipProblem
) -> None:
    attack = ShadowModels(shadows=3, classifier=classifier, per_class=per_class)
    scores = attack(problem)
    assert scores.shape == (80,)
    assert area(scores) > 0.9


def test_who_knows_the_defense_looks_through_it(
    training: TargetTraining, ask: Callable[[TargetTraining], MembershipProblem], negative: Defense
) -> None:
    aware = ask(replace(training, defense=negative))
    naive = replace(aware, training=aware.training.undefended())
    assert area(ShadowModels(shadows=3)(naive)) < 0.75
    assert area(ShadowModels(shadows=3, views=4)(aware)) > 0.9


def test_records_are_of_public_images_half_of_them_inside(problem: MembershipProblem) -> None:
    attack = ShadowModels(shadows=3)
    records, labels, members = attack.collect_records(problem, lambda _: None)
    assert records.shape == (3 * 80, 4 + 3)
    assert members.reshape(3, 80).sum(1).tolist() == [40, 40, 40]
    assert set(labels) <= set(problem.public.labels.tolist())
    loss = records[:, 4]
    assert loss[members].mean() < loss[~members].mean() / 2


def test_the_features_are_what_they_are_called() -> None:
    logits = torch.log(torch.tensor([[[0.2, 0.7, 0.1]], [[0.3, 0.3, 0.4]]], dtype=torch.float64))
    (row,) = extract_features(logits, torch.tensor([1]))
    confidences = np.mean([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]], axis=0)
    losses = -np.log([0.7, 0.3])
    odds = np.log([0.7 / 0.3, 0.3 / 0.7])
    expected = [*confidences, losses.mean(), odds.mean(), 0.5, losses.min(), odds.std(ddof=1)]
    assert row == pytest.approx(expected)
    assert extract_features(logits[:1], torch.tensor([1])).shape == (1, 6)


def test_scarce_public_images_are_told(problem: MembershipProblem) -> None:
    attack = ShadowModels(shadows=2)
    assert attack.notes(problem) == []
    scarce = replace(problem, public=problem.public.take(torch.arange(30)))
    assert attack.shadow_size(scarce) == 15
    assert "trained on 15 images" in attack.notes(scarce)[0]
    assert attack(scarce).isfinite().all()
    with pytest.raises(DoesNotFit, match="needs 4 public images or more, and there are 3: pass"):
        attack(replace(problem, public=problem.public.take(FEW)))
