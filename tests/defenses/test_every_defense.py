"""What holds for every defense, whichever doors it uses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide, Defense, NoDefense
from keyhole.federation import train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

OFF = [
    "none",
    "gaussian(sigma=0)",
    "pruning(ratio=0)",
    "topk(k=1)",
    "quantise(bits=32)",
    "half(kind='float32')",
    "percentile-privacy(percentile=0, gamma=None)",
    "share(part='all')",
    "flower-local-dp(sensitivity=0, clipping_norm=1e9)",
    "flower-clipping(clipping_norm=1e9)",
    "dropout(p=0)",
    "mjp(gamma=0, positions='own', dal='none')",
    "csvar(block=64)",
    "image-noise(sigma=0)",
    "tip(beta=0)",
    "dp(sigma=0, clip=1e9)",
    "agp(sigma=0, clip=1e9)",
    "soteria(ratio=0)",
    "precode(width=0)",
    "ats(policy='none')",
    "mixup(alpha=0)",
    "instahide(k=1, flips=False)",
    "oasis(copies='none')",
    "censor(trials=0)",
    "graddefense(sigma=0)",
]
NEED_CHANNELS = ("tip", "agp")
SLOW_ON_MANY_PARAMETERS = ("soteria", "censor", "graddefense")
NEARLY_OFF = [
    "dpsgd(noise=0, clip=1e9)",
    "svt(fraction=1, replace=False, epsilon=1e20, noise_var=1e20, gamma=1e3, tau=0)",
]
"""All budgets are as good as endless, and the last bits still follow another way."""
NEVER_OFF = ["signsgd"]
"""A sign has no strength."""
EVERY = [member() for member in DEFENSES]
digits = load("digits")


@pytest.fixture
def model(request: pytest.FixtureRequest) -> nn.Module:
    """A vision transformer; for defenses that rank channels, a network that has some.

    Those that take many passes get the small network, too.
    """
    chosen = str(next(iter(request.node.callspec.params.values())))
    name = "lenet" if chosen.startswith(NEED_CHANNELS + SLOW_ON_MANY_PARAMETERS) else "vit-small"
    return build(name, classes=10, channels=1, image_size=8)


@pytest.fixture(autouse=True)
def _its_extra_is_installed(request: pytest.FixtureRequest) -> None:
    if "model" not in request.fixturenames:
        return
    for word, package in (("dpsgd", "opacus"), ("flower", "flwr")):
        if word in request.node.name:
            pytest.importorskip(package)


def updated(model: nn.Module, defense: Defense, seed: int = 0) -> Update:
    images, labels = digits.images([1, 2]), digits.labels[[1, 2]]
    return train_client(
        model, images, labels, data=digits, defense=defense, generator=generator(seed)
    )[0]


def equal(one: Update, two: Update) -> bool:
    """Bit for bit, and no parameter more or less."""
    if set(one.change) != set(two.change):
        return False
    return all(torch.equal(one.change[n], two.change[n]) for n in one.change)


def test_every_defense_can_be_switched_off_here() -> None:
    assert {text.partition("(")[0] for text in OFF + NEARLY_OFF + NEVER_OFF} == set(
        DEFENSES.names()
    )


@pytest.mark.parametrize("text", OFF)
def test_a_defense_at_zero_changes_nothing_bit_for_bit(model: nn.Module, text: str) -> None:
    assert equal(updated(model, DEFENSES.parse(text)), updated(model, NoDefense()))


@pytest.mark.parametrize("text", NEARLY_OFF)
def test_what_is_nearly_off_changes_nothing_but_rounding(model: nn.Module, text: str) -> None:
    own, plain = updated(model, DEFENSES.parse(text)), updated(model, NoDefense())
    for name, tensor in plain.change.items():
        assert torch.allclose(own.change[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("defense", [d for d in EVERY if d.name != "none"], ids=str)
def test_a_defense_changes_what_the_server_sees(model: nn.Module, defense: Defense) -> None:
    assert not equal(updated(model, defense), updated(model, NoDefense()))


@pytest.mark.parametrize("defense", EVERY, ids=str)
def test_the_seed_decides_what_the_server_sees(
    model: nn.Module, defense: Defense, same_rng: Callable[[], bool]
) -> None:
    assert equal(updated(model, defense, 3), updated(model, defense, 3))
    assert same_rng()


@pytest.mark.parametrize("defense", EVERY, ids=str)
def test_names_shapes_and_types_stay(model: nn.Module, defense: Defense) -> None:
    unshared = defense.unshared(model)
    own = defense.prepare_model(model).named_parameters()
    own = {name: parameter for name, parameter in own if name not in unshared}
    seen = updated(model, defense).change
    assert {n: (t.shape, t.dtype) for n, t in seen.items()} == {
        n: (t.shape, t.dtype) for n, t in own.items()
    }


@pytest.mark.parametrize("defense", EVERY, ids=str)
def test_the_model_and_the_images_are_left_alone(model: nn.Module, defense: Defense) -> None:
    before, images = copy.deepcopy(model.state_dict()), digits.images([1])
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    side = ClientSide(images=images, model=model)
    defense.on_images(images, side)
    defense.on_model(model, side)
    assert torch.equal(images, digits.images([1]))
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert rates == [m.p for m in model.modules() if isinstance(m, nn.Dropout)]


@pytest.mark.parametrize("defense", EVERY, ids=str)
def test_a_prepared_model_holds_the_given_ones_weights(model: nn.Module, defense: Defense) -> None:
    before = copy.deepcopy(model.state_dict())
    prepared = defense.prepare_model(model)
    assert all(torch.equal(prepared.state_dict()[n], t) for n, t in before.items())
    assert defense.prepare_model(prepared) is prepared
    assert set(updated(prepared, defense).change) == set(updated(model, defense).change)


@pytest.mark.parametrize("defense", EVERY, ids=str)
def test_a_defense_is_a_frozen_record_that_spells_itself(defense: Defense) -> None:
    assert DEFENSES.parse(str(defense)) == defense
    assert defense.spec.name == defense.name
    for field in dataclasses.fields(defense):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(defense, field.name, None)


@pytest.mark.parametrize("member", list(DEFENSES), ids=lambda m: m.name)
def test_a_defense_says_what_it_is(member: type[Any]) -> None:
    assert member.summary
    assert member.name == "none" or member.paper
