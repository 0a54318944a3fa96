"""The table of attacks: a model that each fits, and one that it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import (
    ATTACKS,
    Attack,
    Matching,
    Reconstruction,
)
from keyhole.data import ImageSet
from keyhole.defenses import (
    ClientSide,
    Csvar,
    Defense,
    Dropout,
    Gaussian,
    Mjp,
    NoDefense,
    Pruning,
)
from keyhole.models import build
from keyhole.models.fine_tuning import fine_tune
from keyhole.seeds import generator
from keyhole.threat import Observation, PublicKnowledge
from keyhole.update import Update


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def narrow_end() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Softmax(1), nn.ZeroPad1d((0, 5)))


def mlp_dropping() -> nn.Module:
    """Drops of its own accord, whatever the defense."""
    return Dropout(p=0.25).on_model(build("mlp", classes=10, channels=1, image_size=8))


def rectified() -> nn.Module:
    first = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.0)]
    return nn.Sequential(*first, nn.Linear(32, 20), nn.ReLU(), nn.Linear(20, 10))


def deep_convolution() -> nn.Module:
    first = [nn.Conv2d(1, 40, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(40, 40, 3, padding=1)]
    end = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10)]
    return nn.Sequential(*first, *end)


def rectified_head() -> nn.Module:
    convolution = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(
        *convolution, nn.Linear(384, 48), nn.ReLU(), nn.Dropout(0.0), nn.Linear(48, 10)
    )


def vit_lora() -> nn.Module:
    """After some rounds, in which B has moved away from 0."""
    model = vit_lora_fresh()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    return model


def vit_lora_fresh() -> nn.Module:
    return fine_tune(build("vit-small", classes=10, channels=1, image_size=8), "lora(r=8)")


@cache
def model(name: str) -> nn.Module:
    own = {
        "convolutions": convolutions,
        "narrow-end": narrow_end,
        "mlp-dropping": mlp_dropping,
        "rectified": rectified,
        "rectified-head": rectified_head,
        "deep-convolution": deep_convolution,
        "vit-lora": vit_lora,
        "vit-lora-fresh": vit_lora_fresh,
    }
    torch.manual_seed(0)
    return own[name]() if name in own else build(name, classes=10, channels=1, image_size=8)


@dataclass(frozen=True)
class Case:
    """A model that the attack reads, the layer it cannot do without, and models it refuses.

    ``against`` is the defense that it must know of to apply at all.
    """

    fits: str
    reads: str
    refuses: dict[str, str]
    against: Defense | None = None


ANY_MODEL = Case("mlp", "", {})
"""Matching takes whatever can be differentiated."""

PUZZLES = Case(
    "vit-small",
    "pos_embed",
    {
        "vit-small": "it needs to know that clients train with MJP",
        "mlp": "its first layer '1' sees the whole image at once, not patches",
    },
    against=Mjp(gamma=0.5),
)

ADDED_BLOCK = Case(
    "mlp", "imprint.measure.", {"mlp": "the server did not put an imprint block before the model"}
)

CASES = {
    "dlg": ANY_MODEL,
    "idlg": Case("vit-small", "", {"convolutions": "it needs a linear last layer"}),
    "ig": ANY_MODEL,
    "ig-uploaded": ANY_MODEL,
    "gifd": ANY_MODEL,
    "wiig": Case("mlp-dropping", "", {"mlp": "the client drops nothing"}),
    "dia": ANY_MODEL,
    "dia-read": Case(
        "mlp-dropping",
        "",
        {
            "mlp": "no mask can be read from the update",
            "vit-small": "no mask can be read from the update",
        },
    ),
    "april-iterative": Case(
        "vit-small",
        "pos_embed",
        {"mlp": "its first layer '1' sees the whole image at once, not patches"},
    ),
    "gradvit": Case(
        "vit-small",
        "",
        {"lenet": "its first layer '0' is a 5x5 convolution whose windows overlap"},
    ),
    "gradinversion": Case("lenet", "", {"convolutions": "it needs a linear last layer"}),
    "linear": Case(
        "mlp",
        "1.",
        {
            "lenet": "its first layer '0' is a 5x5 convolution whose windows overlap",
            "vit-small": "'patch_embed' sees 4 patches one by one",
            "convolutions": "its first layer '0' is a 3x3 convolution",
        },
    ),
    "spear": Case(
        "rectified",
        "1.",
        {
            "mlp": "it needs a ReLU straight after its first layer '1'",
            "lenet": "its first layer '0' is a 5x5 convolution whose windows overlap",
            "vit-small": "'patch_embed' sees patches one by one",
        },
    ),
    "cocktail-party": Case(
        "mlp",
        "1.",
        {
            "lenet": "its first layer '0' is a 5x5 convolution whose windows overlap",
            "vit-small": "'patch_embed' sees patches one by one",
        },
    ),
    "spear-ig": Case(
        "rectified-head",
        "3.",
        {
            "mlp": "it needs a fully connected layer with a bias and a ReLU",
            "convolutions": "it needs a fully connected layer with a bias and a ReLU",
        },
    ),
    "head-ig": Case("lenet", "8.", {"convolutions": "it needs a linear last layer"}),
    "decode": Case("lenet", "8.", {"convolutions": "it needs a linear last layer"}),
    "conv-spear": Case(
        "deep-convolution",
        "2.",
        {
            "mlp": "it needs a convolution of stride 1",
            "lenet": "it needs a convolution of stride 1",
        },
    ),
    "sme": ANY_MODEL,
    "epoch-matching": ANY_MODEL,
    "patch-lstsq": Case(
        "vit-small",
        "pos_embed",
        {
            "mlp": "its first layer '1' sees the whole image at once, not patches",
            "resnet18": "its first layer 'conv1' is a 3x3 convolution whose windows overlap",
        },
    ),
    "april": Case(
        "vit-small",
        "blocks.0.attn.qkv.",
        {
            "vit-small": "the model's first block must be stripped",
            "mlp": "it has no `blocks` as timm's ViTs have",
            "lenet": "it has no `blocks` as timm's ViTs have",
        },
    ),
    "imprint": ADDED_BLOCK,
    "loki": ADDED_BLOCK,
    "imprint-weights": Case(
        "rectified",
        "1.",
        {
            "rectified": "the server did not turn its first layer into threshold rows",
            "mlp": "no ReLU and linear layer follow '1'",
            "lenet": "its layers lose pixels",
        },
    ),
    "peft-imprint": Case(
        "adapters:vit-small",
        "blocks.0.adapter1.down.",
        {
            "adapters:vit-small": "the server did not turn its adapters into threshold rows",
            "vit-small": "it has no adapters",
            "mlp": "it has no adapters",
        },
    ),
    "trap-weights": Case("mlp", "1.", {"lenet": "its first layer '0' is a 5x5 convolution"}),
    "fishing": Case("lenet", "", {"convolutions": "logits come from a linear layer"}),
    "single-out": Case("lenet", "", {"convolutions": "logits come from a linear layer"}),
    "intercept": Case("mlp", "", {"lenet": "no image was seen on its way"}),
    "intercept-undo": Case(
        "mlp", "", {"lenet": "it needs to know the defense on the images"}, against=Csvar()
    ),
    "lora-span": Case(
        "vit-lora",
        "blocks.0.attn.qkv.lora_A.",
        {
            "vit-small": "the model has no LoRA layer",
            "vit-lora-fresh": "it needs 2 rounds of the client on the same image",
            "mlp": "the model has no LoRA layer",
        },
    ),
    "mjp-span": PUZZLES,
    "mjp-ig": PUZZLES,
    "labels": Case(
        "vit-small",
        "head.",
        {
            "convolutions": "it needs a linear last layer, whose output is the logits",
            "narrow-end": "it needs a linear last layer, whose output is the logits",
        },
    ),
}


def quick(name: str) -> Attack:
    """The attack as it comes, but for a few iterations where it would take thousands."""
    attack = ATTACKS[name]()
    return dataclasses.replace(attack, iterations=3) if isinstance(attack, Matching) else attack


EVERY = pytest.mark.parametrize(
    "attack", [quick(name) for name in ATTACKS.names()], ids=ATTACKS.names()
)
OF_UPDATES = pytest.mark.parametrize(
    "attack",
    [quick(name) for name in ATTACKS.names() if ATTACKS[name].reads_update],
    ids=lambda attack: attack.name,
)
DEFENDED = pytest.mark.parametrize(
    "defense",
    [
        NoDefense(),
        Dropout(p=0.5),
        Gaussian(sigma=1e-3),
        Gaussian(sigma=100.0),
        Pruning(ratio=0.9),
        Pruning(ratio=0.999),
        Pruning(ratio=0.99, scope="update"),
        Pruning(ratio=0.9999, scope="update"),
    ],
    ids=str,
)


def victim_of(
    attack: Attack,
    observe: Callable[..., Any],
    data: ImageSet,
    indices: list[int],
    defense: Defense | None = None,
) -> Any:
    """A client that the attack applies to, under ``defense`` as well as the one it is against."""
    case = CASES[attack.name]
    altered = attack.alter(model(case.fits), know(data, len(indices)))
    victim = observe(altered, data, indices, case.against or defense)
    if case.against is not None and defense is not None:
        seen = victim.observation
        side = ClientSide(generator=generator(0, "second defense"))
        twice = with_update(seen, defense.on_update(seen.update, side))
        victim = dataclasses.replace(victim, observation=twice)
    return victim.telling(*attack.given)


def know(data: ImageSet, batch_size: int = 1) -> PublicKnowledge:
    """What a server knows of clients with so many images; the last hundred images are public."""
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    return PublicKnowledge(data.shape, len(data.classes), public, batch_size)


def with_update(observation: Observation, update: Update) -> Observation:
    return dataclasses.replace(observation, update=update)


def check_usable(found: Reconstruction, batch: int) -> None:
    assert found.images is not None or found.labels is not None or "images" in found.diagnostics
    if found.images is not None:
        assert found.images.shape[1:] == (1, 8, 8)
        assert 1 <= len(found.images) <= batch
        assert found.images.isfinite().all()
        assert not found.images.requires_grad
        assert found.confidence is not None
        assert found.confidence.shape == (len(found.images),)
        assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    if found.labels is not None:
        assert found.labels.shape == (batch,)
        assert ((found.labels >= 0) & (found.labels < 10)).all()
