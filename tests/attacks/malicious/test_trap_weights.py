"""Rows that hardly any image fires show single images of a batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from keyhole.attacks import LinearLeak, TrapWeights
from keyhole.attacks.malicious.trap_weights import draw_rare_rows, find_constant
from keyhole.data import load
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.threat import PublicKnowledge


def setting(batch: int):
    data = load("digits")
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    model = build("mlp", classes=10, channels=1, image_size=8, seed=0)
    return data, model, PublicKnowledge(data.shape, 10, public, batch_size=batch)


def with_bias() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize("bias", [False, True])
def test_images_of_a_batch_are_read_that_plain_weights_hide(observe, bias):
    """The layer without a bias has no thresholds of its own: pixels that never change serve."""
    data, model, public = setting(batch=32)
    model = with_bias() if bias else model
    attack = TrapWeights()
    trapped = observe(attack.alter(model, public), data, range(32))
    plain = observe(model, data, range(32))
    caught = sum(d > 40 for d in trapped.best_decibels(attack(trapped.observation)))
    shown = LinearLeak()(plain.observation)
    unaided = [] if shown.images is None else plain.best_decibels(shown)
    assert caught >= 16
    assert caught >= 3 * sum(decibels > 40 for decibels in unaided)


def test_the_architecture_stays_as_it_is():
    _, model, public = setting(batch=16)
    changed = TrapWeights().alter(model, public)
    before, after = model.state_dict(), changed.state_dict()
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    assert [k for k in before if not torch.equal(before[k], after[k])] == ["1.weight"]


def test_published_rows_have_a_negative_and_a_damped_positive_half():
    _, model, public = setting(batch=16)
    rows = TrapWeights(scale=0.95).alter(model, public).state_dict()["1.weight"]
    assert torch.equal((rows > 0).sum(1), torch.full((512,), 32))
    ratio = rows.clamp(min=0).sum() / -rows.clamp(max=0).sum()
    assert abs(float(ratio) - 0.95) < 0.02


def test_a_share_of_images_exceeds_the_thresholds():
    data, _, public = setting(batch=16)
    rows, thresholds = draw_rare_rows(200, public.images.flatten(1), 0.1)
    others = data.normalise(data.images(range(400))).flatten(1)
    fired = (others @ rows.T > thresholds).double().mean()
    assert 0.05 < float(fired) < 0.2


def test_a_constant_feature_is_one_for_images_it_was_not_found_on():
    data, _, public = setting(batch=16)
    weights = find_constant(public.images.flatten(1))
    others = data.normalise(data.images(range(400))).flatten(1) @ weights
    assert abs(float(others.mean()) - 1) < 0.02
    assert float(others.std()) < 0.05


@pytest.mark.parametrize(("name", "why"), [("lenet", "convolution"), ("vit-small", "patches")])
def test_other_first_layers_are_refused(name, why):
    data = load("digits", image_size=32)
    model = build(name, classes=10, channels=1, image_size=32, seed=0)
    public = PublicKnowledge(data.shape, 10, data.normalise(data.images([0, 1])))
    with pytest.raises(DoesNotFit, match=why):
        TrapWeights().alter(model, public)
