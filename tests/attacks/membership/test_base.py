from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.membership import LossThreshold, MembershipProblem
from keyhole.attacks.membership.base import compute_logits, confidence, cross_entropy
from keyhole.defenses import Defense
from keyhole.errors import DoesNotFit


def some_logits(scale: float) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(3, 50, 5, generator=draw, dtype=torch.float64)
    return logits, torch.randint(5, (50,), generator=draw)


def test_the_confidence_is_the_log_odds_of_the_true_class() -> None:
    logits, labels = some_logits(2.0)
    p = logits.softmax(-1).gather(-1, labels.expand(3, 50)[..., None]).squeeze(-1)
    assert torch.allclose(confidence(logits, labels), (p / (1 - p)).log())


def test_the_confidence_never_saturates() -> None:
    logits, labels = some_logits(1000.0)
    phi = confidence(logits, labels)
    assert phi.isfinite().all()
    assert len(phi.unique()) == phi.numel()


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_loss_is_the_cross_entropy(scale: float) -> None:
    logits, labels = some_logits(scale)
    expected = F.cross_entropy(logits[0], labels, reduction="none")
    assert torch.allclose(cross_entropy(confidence(logits, labels))[0], expected)


def test_every_model_sees_the_same_views_and_every_view_is_another(
    problem: MembershipProblem, negative: Defense
) -> None:
    aware = replace(problem, training=replace(problem.training, defense=negative))
    images = problem.candidates.images
    first, again, second = (aware.inputs(images, view) for view in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, second)
    assert torch.allclose(first, (1 - images - 0.5) / 0.25, atol=1.5)
    assert torch.equal(aware.inputs(images, None), (images - 0.5) / 0.25)
    logits = aware.query([aware.model, aware.model], aware.candidates, 3)
    assert logits.shape == (2, 3, len(images), 4)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0, 1], compute_logits(aware.model, second))


def test_images_that_are_augmented_in_training_have_views_as_well(
    problem: MembershipProblem, same_rng: Callable[[], bool]
) -> None:
    local = replace(problem.training.local, augment=True)
    aware = replace(problem, training=replace(problem.training, local=local))
    assert (problem.useful_views(5), aware.useful_views(5), aware.useful_views(0)) == (0, 5, 0)
    views = [aware.inputs(problem.candidates.images, view) for view in (0, 0, 1)]
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert same_rng()


def test_where_all_views_are_alike_there_is_one(problem: MembershipProblem) -> None:
    assert problem.query([problem.model], problem.candidates, 7).shape[1] == 1
    one, seven = (LossThreshold(views=views)(problem) for views in (0, 7))
    assert torch.equal(one, seven)


def test_a_model_is_asked_as_it_is_used_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    inputs = torch.rand(600, 1, 2, 2)
    found = compute_logits(model, inputs)
    assert model.training
    assert torch.allclose(found, model[2](inputs.flatten(1)).double(), atol=1e-6)
    assert found.dtype == torch.float64


def test_a_model_that_learned_nothing_but_infinity_is_refused() -> None:
    broken = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    nn.init.constant_(broken[1].weight, torch.nan)
    with pytest.raises(DoesNotFit, match=r"not finite.*lower --lr"):
        compute_logits(broken, torch.rand(3, 1, 2, 2))
