"""A single step of any optimiser is undone before an attack looks at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from keyhole.attacks import ATTACKS
from keyhole.attacks.first_step import undo_first_step
from keyhole.data import denormalise, load
from keyhole.defenses import Gaussian, NoDefense, Share
from keyhole.defenses.base import Defense
from keyhole.federation import LocalTraining
from keyhole.metrics import psnr
from keyhole.models import build
from keyhole.threat import SeenRound

Observe = Callable[..., Any]
DIGITS = load("digits")


def seen_by(observe: Observe, text: str, *, steps: int = 1, defense: Defense | None = None) -> Any:
    model = build("mlp", classes=10, channels=1, image_size=8)
    training = LocalTraining(lr=0.01, steps=steps, optimiser=text)
    victim = observe(model, DIGITS, [3], defense, training=training)
    known = replace(
        victim.observation.knowledge,
        optimiser=training.read_optimiser(),
        labels=victim.labels,
        defense=defense,
    )
    return victim, replace(victim.observation, knowledge=known)


def decibels(victim: Any, observation: Any) -> float:
    found = ATTACKS.parse("linear").reconstruct(observation).images.double()
    pixels = denormalise(found, DIGITS.mean, DIGITS.std).clamp(0, 1)
    return float(psnr(pixels, victim.images.double(), data_range=1.0))


@pytest.mark.parametrize(
    "text", ["sgd(momentum=0.9, nesterov=true, weight_decay=0.1)", "adam", "adamw"]
)
def test_a_closed_form_reads_what_another_optimiser_hid(observe: Observe, text: str) -> None:
    victim, seen = seen_by(observe, text)
    undone = undo_first_step(seen)
    assert undone.knowledge.optimiser.is_plain
    assert decibels(victim, undone) > 40
    assert decibels(victim, undone) > decibels(victim, seen) + 10


def test_earlier_rounds_are_undone_from_their_own_weights(observe: Observe) -> None:
    _, seen = seen_by(observe, "sgd(momentum=0.9, weight_decay=0.1)")
    alone = undo_first_step(seen)
    own = {name: tensor.clone() for name, tensor in seen.model.state_dict().items()}
    other = {name: tensor + 1 for name, tensor in own.items()}
    rounds = (SeenRound(1, own, seen.update), SeenRound(2, other, seen.update))
    same, moved = undo_first_step(replace(seen, rounds=rounds)).rounds
    for name, change in alone.update.change.items():
        assert torch.equal(same.update.change[name], change)
        expected = change + 0.01 * 0.1  # the decay of weights that are greater by 1
        assert torch.allclose(moved.update.change[name], expected, atol=1e-6)


@pytest.mark.parametrize("defense", [NoDefense(), Share(part="body")])
def test_what_is_only_shared_in_part_is_undone(observe: Observe, defense: Defense) -> None:
    _, seen = seen_by(observe, "adam", defense=defense)
    assert undo_first_step(seen) is not seen


def test_what_cannot_be_undone_stays_as_it_is(observe: Observe) -> None:
    for text, steps, defense in (
        ("sgd", 1, None),
        ("adam", 3, None),
        ("adam", 1, Gaussian(sigma=0.1)),
    ):
        _, seen = seen_by(observe, text, steps=steps, defense=defense)
        assert undo_first_step(seen) is seen
    _, seen = seen_by(observe, "adam")
    unknown = replace(seen, knowledge=replace(seen.knowledge, optimiser=None))
    assert undo_first_step(unknown) is unknown


def test_buffers_pass_as_they_are(observe: Observe) -> None:
    _, seen = seen_by(observe, "adamw")
    more = replace(seen.update, change={**seen.update.change, "count": torch.tensor(3)})
    undone = undo_first_step(replace(seen, update=more)).update.change
    assert undone["count"] == 3
