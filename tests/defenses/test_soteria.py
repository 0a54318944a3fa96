"""Soteria: which features are pruned, and that nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import ClientSide, Soteria
from keyhole.defenses.soteria import score_features
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.update import Update

digits = load("digits")
IMAGES = [1, 2, 3]


def network() -> nn.Module:
    """Two linear layers, and dropout that is off."""
    torch.manual_seed(0)
    first, last = nn.Linear(64, 20), nn.Linear(20, 10)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Dropout(0.5), last).eval()


def gradient_of(model: nn.Module) -> Update:
    loss = F.cross_entropy(model(digits.normalise(digits.images(IMAGES))), digits.labels[IMAGES])
    found = torch.autograd.grad(loss, list(model.parameters()))
    return Update.from_gradient(found, model=model, batch_size=len(IMAGES))


def side_of(model: nn.Module) -> ClientSide:
    return ClientSide(model=model, images=digits.images(IMAGES), normalise=digits.normalise)


def scores_by_hand(model: nn.Module, inputs: Tensor) -> Tensor:
    """One feature of one image at a time."""
    body = model[:-1].eval()
    scores = torch.zeros(20)
    for image in inputs:
        for i in range(20):
            x = image[None].clone().requires_grad_()
            feature = body(x)[0, i]
            slope = torch.autograd.grad(feature, x)[0].norm()
            scores[i] += float(feature.detach().abs() / slope)
    return scores


def test_features_are_scored_by_their_size_over_their_slope() -> None:
    model = network()
    inputs = digits.normalise(digits.images(IMAGES))
    torch.testing.assert_close(score_features(model, "4", inputs), scores_by_hand(model, inputs))


@pytest.mark.parametrize("ratio", [0.1, 0.55, 0.99])
def test_the_features_of_highest_score_are_pruned_and_nothing_else(ratio: float) -> None:
    model = network()
    update, side = gradient_of(model), side_of(model)
    sent = Soteria(ratio=ratio).on_update(update, side)
    scores = scores_by_hand(model, digits.normalise(digits.images(IMAGES)))
    pruned = scores.argsort(descending=True)[: int(ratio * 20)]
    expected = update.change["4.weight"].clone()
    expected[:, pruned] = 0
    assert torch.equal(sent.change["4.weight"], expected)
    for name in set(update.change) - {"4.weight"}:
        assert torch.equal(sent.change[name], update.change[name])
    assert side.telemetry == {"pruned": len(pruned), "features": 20}


def test_what_was_pruned_is_what_an_attacker_is_told_to_leave_out() -> None:
    model = network()
    defense = Soteria(ratio=0.5)
    sent = defense.on_update(gradient_of(model), side_of(model))
    told = defense.misleading_values(sent, model)
    assert set(told) == {"4.weight"}
    assert torch.equal(told["4.weight"], sent.change["4.weight"] == 0)
    assert int(told["4.weight"][0].sum()) == 10
    assert Soteria(ratio=0).misleading_values(sent, model) == {}


def test_another_layer_can_be_named() -> None:
    model = network()
    update = gradient_of(model)
    sent = Soteria(ratio=0.5, layer="1").on_update(update, side_of(model))
    assert torch.equal(sent.change["4.weight"], update.change["4.weight"])
    assert int((sent.change["1.weight"] == 0).all(0).sum()) >= 32


def test_pixels_that_no_feature_depends_on_are_pruned_last() -> None:
    """A feature with no slope has no score: a dead ReLU says nothing of the image."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
    with torch.no_grad():
        model[1].bias[:2] = -1e3
        model[1].bias[2:] = 1e3
    inputs = digits.normalise(digits.images(IMAGES))
    scores = score_features(model, "3", inputs)
    assert scores[:2].tolist() == [0, 0]
    assert bool((scores[2:] > 0).all())


def test_a_model_without_such_a_layer_does_not_fit() -> None:
    flat = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    assert Soteria().incompatibilities(flat) == [
        "it has no linear layer whose gradient could be pruned"
    ]
    assert Soteria(layer="1").incompatibilities(network()) == []
    with pytest.raises(DoesNotFit, match="no linear layer named '2'"):
        Soteria(layer="2").validate(network())


def test_it_needs_the_images() -> None:
    model = network()
    with pytest.raises(DoesNotFit, match=r"pass ClientSide\(model=..., images=...\)"):
        Soteria().on_update(gradient_of(model), ClientSide(model=model))


def test_a_transformer_s_head_is_pruned() -> None:
    model = build("vit-small", classes=10, channels=1, image_size=8)
    sent = Soteria(ratio=0.25).on_update(gradient_of(model), side_of(model))
    assert int((sent.change["head.weight"] == 0).all(0).sum()) == 64
