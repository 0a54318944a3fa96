"""Generators on disk, and the images on which the shipped one was trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.attacks.generative.conditional import ConditionalGenerator
from keyhole.data import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.models.shipped import ShippedNetwork

ODD_DIA_VICTIMS = frozenset(
    (
        *(897, 1983, 2305, 2715, 2873, 2885, 3051, 4433, 4497, 4741, 5751, 5929, 6467, 6483),
        *(6945, 7813, 8145, 8645, 8681, 10025, 10185, 10385, 11683, 11775, 12151, 12185, 13549),
        *(14031, 14561, 14991, 15419, 15911, 16039, 16529, 17687, 20563, 22313, 22341, 22723),
        *(24833, 25125, 25137, 25449, 26243, 28607, 29601, 30771, 30809, 30999, 32707, 34261),
        *(34993, 36295, 36801, 38033, 38263, 38723, 39403, 39799, 41083, 42935, 44039, 44255),
        *(45139, 45361, 45771, 48243, 48469, 48515),
    )
)
"""The victims of `dia-cifar10` (128 in all) that have odd numbers in the training set."""


def public_half(data: ImageSet) -> list[int]:
    """The images of CIFAR-10's training set on which a prior may be trained.

    These are the odd-numbered images, except for the victims of `dia-cifar10`. The even-numbered
    ones are held out: the prior has never seen a victim from among them or from the test set.

    Args:
        data: CIFAR-10's training set.

    Returns:
        The numbers of the images.
    """
    if data.name != "cifar10":
        raise DoesNotFit(f"the public half is defined for cifar10, not for {data.name!r}")
    return [i for i in range(1, len(data), 2) if i not in ODD_DIA_VICTIMS]


def build_generator(plan: Mapping[str, Any]) -> ConditionalGenerator:
    """A generator with the dimensions that its file states."""
    channels, height, width = (int(side) for side in plan["shape"])
    return ConditionalGenerator(
        (channels, height, width),
        latent=int(plan["latent"]),
        classes=int(plan["classes"]),
        features=tuple(int(count) for count in plan["features"]),
    )


GENERATORS = ShippedNetwork(
    "generator",
    build_generator,
    shipped=("keyhole.attacks.generative", "cifar10.safetensors"),
    advice="train one with python tools/train_generator.py OUT.safetensors, and name "
    "the file as generator='PATH'",
    writer="save_generator",
)


def save_generator(generator: ConditionalGenerator, path: Path, *, trained_on: str) -> None:
    """Writes a generator's weights and dimensions to a file.

    Args:
        generator: The generator.
        path: The safetensors file.
        trained_on: The images it was trained on, in words.
    """
    plan = {
        "shape": generator.shape,
        "latent": generator.latent,
        "classes": generator.classes,
        "features": generator.features,
        "trained_on": trained_on,
    }
    GENERATORS.save(generator, path, plan)


def load_generator(path: Path | None = None) -> ConditionalGenerator:
    """Loads a generator in evaluation mode.

    Args:
        path: Its file; None: the generator that is shipped with Keyhole, for CIFAR-10.
    """
    return GENERATORS.load(path)
