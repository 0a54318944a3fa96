"""Generators on disk, and the images the one that comes with Keyhole was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.attacks.generative.conditional import ConditionalGenerator
from keyhole.data import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.models.kept import Kept

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
"""Those of the 128 victims of `dia-cifar10` that stand at odd places of the training set."""


def public_half(data: ImageSet) -> list[int]:
    """The images of CIFAR-10's training set that a prior may be trained on.

    Every second one, from the second on, less the victims of `dia-cifar10`. The others, at even
    places, are held out: attack those (or the test set), and no victim was ever seen.
    """
    if data.name != "cifar10":
        raise DoesNotFit(f"the public half is defined for cifar10, not for {data.name!r}")
    return [i for i in range(1, len(data), 2) if i not in ODD_DIA_VICTIMS]


def built(plan: Mapping[str, Any]) -> ConditionalGenerator:
    channels, height, width = (int(side) for side in plan["shape"])
    return ConditionalGenerator(
        (channels, height, width),
        latent=int(plan["latent"]),
        classes=int(plan["classes"]),
        features=tuple(int(count) for count in plan["features"]),
    )


GENERATORS = Kept(
    "generator",
    built,
    shipped=("keyhole.attacks.generative", "cifar10.safetensors"),
    advice="train one (keyhole.attacks.generative.train), write it with save_generator and name "
    "the file as generator='PATH'",
    writer="save_generator",
)


def save_generator(generator: ConditionalGenerator, path: Path, *, trained_on: str) -> None:
    """Writes a generator, how it is built, and what it was trained on."""
    plan = {
        "shape": generator.shape,
        "latent": generator.latent,
        "classes": generator.classes,
        "features": generator.features,
        "trained_on": trained_on,
    }
    GENERATORS.save(generator, path, plan)


def load_generator(path: Path | None = None) -> ConditionalGenerator:
    """The generator in a file (None: the one that comes with Keyhole), ready to draw."""
    return GENERATORS.load(path)
