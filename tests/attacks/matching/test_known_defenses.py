"""An attacker who knows the defense compares what the client's own images explain exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole.attacks import DropoutInversion, InvertingGradients
from keyhole.attacks.matching import Matching
from keyhole.attacks.matching.engine import Engine
from keyhole.attacks.matching.gradients.matchers import Backend
from keyhole.attacks.matching.parts.objectives import Cosine, NormsAndRightAngles
from keyhole.attacks.matching.parts.priors import TotalVariation
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.data import load
from keyhole.defenses import DEFENSES, Defense
from keyhole.defenses.instahide import InstaHide
from keyhole.defenses.mixup import Mixup
from keyhole.models import build
from keyhole.seeds import generator

digits = load("digits")
SHARES = torch.tensor([[0.7, 0.3], [0.4, 0.6]])


def loss_at_the_truth(attack: Matching, victim: Any, **values: Tensor) -> float:
    """The attack's loss with the client's own images as its guess."""
    group = VictimGroup(attack, [victim.observation])
    engine = Engine(group.parts, group.problem, 1)
    state = engine.start([0], [generator(0)], group.known_values([0]))
    truth = {"pixels": digits.normalise(victim.images)[None]}
    truth |= {name: value[None] for name, value in values.items()}
    with torch.enable_grad():
        tracked = {name: value.clone().requires_grad_() for name, value in truth.items()}
        return float(engine.loss(tracked, state, group.make_matcher([0])).detach())


@pytest.fixture
def client(observe: Callable[..., Any]) -> Callable[..., Any]:
    """A client with two images, whose labels the attacker is told."""

    def train(text: str, model: str = "lenet") -> Any:
        network = build(model, classes=10, channels=1, image_size=8)
        defense = DEFENSES.parse(text)
        return observe(defense.prepare_model(network), digits, [1, 2], defense).telling("labels")

    return train


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("soteria(ratio=0.5)", "lenet"),
        ("soteria(ratio=0.5, layer='4')", "mlp"),
        ("oasis", "lenet-wide"),
        ("oasis(copies='rotations+shears')", "lenet-wide"),
        ("oasis(copies='flips')", "vit-small"),
        ("censor(trials=1)", "lenet"),
    ],
)
@pytest.mark.parametrize("backend", ["factored", "vmap"])
def test_the_truth_explains_the_update_to_one_who_knows(
    client: Callable[..., Any], text: str, model: str, backend: Backend
) -> None:
    victim = client(text, model)
    attack = InvertingGradients(tv=0, backend=backend)
    assert loss_at_the_truth(attack, victim) < 1e-5
    unaware = type(victim)(victim.unaware, victim.images, victim.labels, victim.data, victim.masks)
    assert loss_at_the_truth(attack, unaware) > 1e-3


@pytest.mark.parametrize("backend", ["factored", "vmap", "loop"])
def test_the_client_s_own_noise_explains_what_precode_sends(
    client: Callable[..., Any], backend: Backend
) -> None:
    """The divergence is a part of the loss that the attacker matches, too."""
    victim = client("precode(width=16, beta=0.5)")
    noise = torch.cat([mask.flatten(1) for mask in victim.masks], 1)
    assert noise.shape == (2, 16)
    attack = DropoutInversion(tv=0, mask_weight=0, backend=backend)
    assert loss_at_the_truth(attack, victim, masks=noise) < 1e-5
    assert loss_at_the_truth(attack, victim, masks=0 * noise) > 1e-4


def test_one_who_is_told_the_noise_need_not_search_for_it(client: Callable[..., Any]) -> None:
    victim = client("precode(width=16)").telling("masks", "labels")
    told = DropoutInversion(tv=0, masks="given")
    assert loss_at_the_truth(told, victim) < 1e-5


def test_ig_leaves_out_what_follows_precode_s_noise(client: Callable[..., Any]) -> None:
    victim = client("precode(width=16)")
    seen, unaware = victim.observation, victim.unaware
    compared = VictimGroup(InvertingGradients(), [seen]).target_gradient(seen)
    assert set(compared) == {f"{n}.{part}" for n in (0, 2, 4) for part in ("weight", "bias")}
    everything = VictimGroup(InvertingGradients(), [unaware]).target_gradient(unaware)
    assert len(everything) == len(compared) + 6


@pytest.mark.parametrize("defense", [Mixup(), InstaHide(k=2, flips=False)], ids=str)
def test_the_true_mixture_explains_what_a_mixed_batch_sends(
    client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, defense: Defense
) -> None:
    monkeypatch.setattr(type(defense), "draw_weights", lambda *_: SHARES)
    victim, attack = client(str(defense)), InvertingGradients(tv=0)
    assert loss_at_the_truth(attack, victim, mixing=SHARES.log()) < 1e-5
    assert loss_at_the_truth(attack, victim, mixing=9 * torch.eye(2)) > 1e-3


def test_one_who_knows_of_flips_does_not_expect_smooth_images(client: Callable[..., Any]) -> None:
    for text, smooth in (("instahide", False), ("mixup", True)):
        parts = VictimGroup(InvertingGradients(), [client(text).observation]).parts
        assert any(isinstance(prior, TotalVariation) for prior in parts.priors) == smooth


def test_only_one_who_knows_of_replaced_directions_compares_norms(
    client: Callable[..., Any],
) -> None:
    victim = client("censor(trials=1)")
    for seen, kind in ((victim.observation, NormsAndRightAngles), (victim.unaware, Cosine)):
        assert isinstance(VictimGroup(InvertingGradients(), [seen]).parts.objective, kind)


@pytest.mark.parametrize("text", ["mixup", "instahide", "oasis", "precode", "soteria", "censor"])
def test_an_adaptive_attack_ends_with_images(client: Callable[..., Any], text: str) -> None:
    found = InvertingGradients(iterations=3)(client(text).observation)
    assert found.images is not None
    assert found.images.shape == (2, 1, 8, 8)
    assert bool(found.images.isfinite().all())


def test_searching_for_mixtures_helps(client: Callable[..., Any]) -> None:
    """The loss of one who knows of mixtures ends lower."""
    victim = client("mixup", "mlp")
    attack = InvertingGradients(iterations=200, tv=0)
    knows, unaware = attack(victim.observation), attack(victim.unaware)
    assert knows.diagnostics["loss"] < 0.5 * unaware.diagnostics["loss"]
