"""Generators on disk, and the images the one that comes with Keyhole was trained on."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import torch

from keyhole.attacks.generative.conditional import ConditionalGenerator
from keyhole.data import ImageSet
from keyhole.errors import BadUpdate, DataMissing, DoesNotFit
from keyhole.models.weights import fill
from keyhole.seeds import seeded_globally
from keyhole.update import read_safetensors

SHIPPED = "cifar10.safetensors"
HEADER = "generator"
"""The header's entry that says how the generator is built and what it was trained on."""

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


def save_generator(generator: ConditionalGenerator, path: Path, *, trained_on: str) -> None:
    """Writes weights in float16, statistics in float32, and the plan in the header."""
    from safetensors.torch import save_file

    buffers = {name for name, _ in generator.named_buffers()}
    weights = {
        name: tensor.detach().to("cpu", torch.float32 if name in buffers else torch.float16)
        for name, tensor in generator.state_dict().items()
    }
    plan = {
        "shape": generator.shape,
        "latent": generator.latent,
        "classes": generator.classes,
        "features": generator.features,
        "trained_on": trained_on,
    }
    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(contiguous, path, {HEADER: json.dumps(plan)})


def load_generator(path: Path | None = None) -> ConditionalGenerator:
    """The generator in a file (None: the one that comes with Keyhole), ready to draw.

    In float32 on the CPU, in evaluation mode, its weights fixed.
    """
    if path is not None:
        return read_generator(path.expanduser())
    shipped = resources.files("keyhole.attacks.generative") / "weights" / SHIPPED
    with resources.as_file(shipped) as file:
        return read_generator(file)


def read_generator(path: Path) -> ConditionalGenerator:
    if not path.is_file():
        raise DataMissing(
            f"there is no generator at {path}: train one (keyhole.attacks.generative.train), "
            "write it with save_generator and name the file as generator='PATH'"
        )
    weights, header = read_safetensors(path)
    generator = planned(header, path)
    fill(generator, {name: tensor.float() for name, tensor in weights.items()}, str(path))
    return generator.eval().requires_grad_(False)


def planned(header: dict[str, str], path: Path) -> ConditionalGenerator:
    """An untrained generator built as a file's header says."""
    try:
        plan = json.loads(header[HEADER])
        channels, height, width = (int(side) for side in plan["shape"])
        with seeded_globally(0):
            return ConditionalGenerator(
                (channels, height, width),
                latent=int(plan["latent"]),
                classes=int(plan["classes"]),
                features=tuple(int(count) for count in plan["features"]),
            )
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise BadUpdate(
            f"{path} does not say what generator it holds: write it with save_generator"
        ) from None
