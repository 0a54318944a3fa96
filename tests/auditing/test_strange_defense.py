"""A defense that nobody here has heard of meets attackers who know it, by what it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks import ATTACKS
from keyhole.auditing import audit
from keyhole.auditing.attack_choice import choose_iterative
from keyhole.auditing.plan import Stage
from keyhole.auditing.resolve import resolve_stage
from keyhole.auditing.stage_attacks import choose_attackers, find_adaptive_attacks
from keyhole.data import load
from keyhole.defenses import (
    ClientSide,
    Defense,
    Dropout,
    Gaussian,
    ImageNoise,
    Interval,
    Noise,
    PixelNoise,
    Pruning,
)
from keyhole.threat import Attacker
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Fog(Defense):
    """Loud noise in every second row of every weight; all else leaves as it is."""

    sigma: float = 1.0

    name: ClassVar[str] = "fog"
    summary: ClassVar[str] = "noise in every second row"
    paper: ClassVar[str] = "nobody"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()

        def protect(name: str, tensor: Tensor) -> Tensor:
            hidden = tensor.clone()
            hidden[1::2] += self.sigma * torch.randn(hidden[1::2].shape, generator=side.generator)
            return hidden

        return update.map(protect)

    def noise_model(self, update: Update, model: nn.Module) -> Mapping[str, Noise]:
        found = {}
        for name, gradient in update.gradient().items():
            variance = torch.zeros(len(gradient), dtype=torch.double)
            variance[1::2] = (self.sigma / (update.lr * update.steps)) ** 2
            found[name] = Noise(variance, share=0.5)
        return found


class Sparse(Pruning):
    """Pruning under another name, which tells attackers the same."""

    name: ClassVar[str] = "sparse"
    paper_attacks: ClassVar[tuple[str, ...]] = ()


class Grain(ImageNoise):
    """Noise on images whose strength a stranger declares by itself."""

    name: ClassVar[str] = "grain"
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def image_change(self) -> PixelNoise:
        return PixelNoise(self.sigma / 255)


class Leaky(Dropout):
    """Dropout under another name."""

    name: ClassVar[str] = "leaky"
    paper_attacks: ClassVar[tuple[str, ...]] = ()


class Published(Gaussian):
    """A noise that its paper attacked with IG."""

    name: ClassVar[str] = "published"
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig",)


def decibels(model: str, data: str, defense: Defense, attack: str, **more: int) -> dict[str, float]:
    result = audit(
        model=model, data=data, defenses=[defense], attacks=[attack], victims=2, seed=0, **more
    )
    return {finding.attacker: finding.metrics["psnr"].mean for finding in result.findings}


@pytest.mark.parametrize(
    ("model", "attack", "more"),
    [
        ("mlp", "linear", {}),
        ("vit-small", "patch-lstsq", {"image_size": 8}),
        ("lenet", "ig(iterations=150)", {}),
    ],
    ids=["linear", "patch-lstsq", "ig"],
)
def test_a_strangers_noise_is_looked_past(model: str, attack: str, more: dict[str, int]) -> None:
    found = decibels(model, "digits", Fog(), attack, **more)
    assert set(found) == {"naive", "adaptive"}
    assert found["adaptive"] > found["naive"] + 5


def test_a_strangers_pruning_is_completed() -> None:
    found = decibels("mlp", "digits", Sparse(ratio=0.9), "linear")
    assert found == decibels("mlp", "digits", Pruning(ratio=0.9), "linear")
    assert found["adaptive"] > found["naive"] + 5


def test_a_strangers_noise_on_images_is_taken_off() -> None:
    found = decibels("mlp", "faces", Grain(), "linear")
    assert found["adaptive"] > found["naive"] + 2


def test_attacks_on_dropout_are_found_by_what_it_hides() -> None:
    for defense in (Leaky(), Dropout()):
        assert [attack.name for attack in find_adaptive_attacks(defense)] == ["dia-read"]
    assert next(a.name for a in choose_iterative(Leaky(), load("digits").shape)) == "dia-read"
    both = [Attacker.NAIVE, Attacker.ADAPTIVE]
    assert choose_attackers(ATTACKS["dia"](), Leaky()) == both
    assert choose_attackers(ATTACKS["dia"](), Dropout()) == [Attacker.PAPER]
    assert choose_attackers(ATTACKS["dia-read"](), Leaky()) == [Attacker.ADAPTIVE]


def test_an_attack_as_published_leaves_what_a_defense_declares_unused() -> None:
    """It differs from the naive one in name alone; one who knows the noise does better."""
    assert choose_attackers(ATTACKS["ig"](), Published()) == [Attacker.PAPER, Attacker.ADAPTIVE]
    attack = "ig(iterations=60)"
    found = decibels("lenet", "digits", Published(sigma=0.01), attack)
    naive = decibels("lenet", "digits", Gaussian(sigma=0.01), attack)
    assert found["paper"] == naive["naive"]
    assert found["adaptive"] == naive["adaptive"] != found["paper"]


def test_only_who_is_adaptive_may_use_what_is_declared() -> None:
    resolved = resolve_stage(Stage(data="digits"), seed=0, defenses=[Fog()])
    known = {
        who: resolved.build_knowledge(Fog(), resolved.attacks[0], who, torch.tensor([1]))
        for who in Attacker
    }
    assert {who: k.adaptive for who, k in known.items() if k.defense} == {
        Attacker.PAPER: False,
        Attacker.ADAPTIVE: True,
    }


class Rounded(Defense):
    """Rounds each value: what it was lies half a step to either side."""

    name: ClassVar[str] = "rounded"
    summary: ClassVar[str] = "rounds the update"
    paper: ClassVar[str] = "nobody"
    step = 2e-3

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        return update.map(lambda _, tensor: (tensor / self.step).round() * self.step)

    def possible_values(self, update: Update) -> Mapping[str, Interval]:
        half = self.step / 2 / (update.lr * update.steps)
        return {name: Interval(g - half, g + half) for name, g in update.gradient().items()}


def test_values_of_which_none_is_known_do_no_harm() -> None:
    found = decibels("mlp", "digits", Rounded(), "linear")
    assert found["adaptive"] >= found["naive"]
