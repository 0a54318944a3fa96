"""Rows that hardly any image fires show single images of a batch."""

from __future__ import annotations

import pytest
import torch

from keyhole.attacks import LinearLeak, TrapWeights
from keyhole.attacks.malicious.trap_weights import choose_factors
from keyhole.data import load
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.threat import PublicKnowledge


def setting(batch: int):
    data = load("digits")
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    model = build("mlp", classes=10, channels=1, image_size=8, seed=0)
    return data, model, PublicKnowledge(data.shape, 10, public, batch_size=batch)


def test_images_of_a_batch_are_read_that_plain_weights_hide(observe):
    data, model, public = setting(batch=16)
    attack = TrapWeights()
    trapped = observe(attack.alter(model, public), data, range(16))
    plain = observe(model, data, range(16))
    caught = sum(d > 40 for d in trapped.best_decibels(attack(trapped.observation)))
    hidden = LinearLeak()(plain.observation)
    assert caught >= 4
    assert hidden.images is None or max(plain.best_decibels(hidden)) < 40


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


def test_factors_are_chosen_so_that_a_share_of_images_fires():
    draw = torch.Generator().manual_seed(0)
    raised, lowered = (torch.rand(5, 400, generator=draw, dtype=torch.double) for _ in range(2))
    factors = choose_factors(raised, -lowered, 0.1)
    fired = (factors[:, None] * raised > lowered).double().mean(1)
    assert torch.allclose(fired, torch.full((5,), 0.1, dtype=torch.double), atol=0.01)


@pytest.mark.parametrize(("name", "why"), [("lenet", "convolution"), ("vit-small", "patches")])
def test_other_first_layers_are_refused(name, why):
    data = load("digits", image_size=32)
    model = build(name, classes=10, channels=1, image_size=32, seed=0)
    public = PublicKnowledge(data.shape, 10, data.normalise(data.images([0, 1])))
    with pytest.raises(DoesNotFit, match=why):
        TrapWeights().alter(model, public)
