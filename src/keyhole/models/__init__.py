"""Victims' networks: the papers' small ones, timm's, torchvision's, and the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from keyhole.data.image_set import Size, parse_size
from keyhole.errors import DoesNotFit, KeyholeError, one_line
from keyhole.models import external
from keyhole.models.gradcam import heat_maps
from keyhole.models.jigsaw import Jigsaw
from keyhole.models.lenet import lenet, wide_lenet
from keyhole.models.mlp import mlp
from keyhole.models.private import private_model
from keyhole.models.puzzle import Puzzle, PuzzleRules, apply_puzzle, draw_random_puzzle
from keyhole.models.resnet import resnet18
from keyhole.models.vit_small import SmallViT
from keyhole.models.weights import load_weights
from keyhole.plugins import Plugins, import_part
from keyhole.seeds import derive, seeded_globally
from keyhole.spelling import parse_call, unknown

__all__ = [
    "FAMILIES",
    "MODELS",
    "PLUGINS",
    "USER_MODEL",
    "Architecture",
    "Jigsaw",
    "Puzzle",
    "PuzzleRules",
    "apply_puzzle",
    "build",
    "draw_random_puzzle",
    "heat_maps",
    "is_user_model",
    "load_weights",
]

Maker = Callable[..., nn.Module]
"""Called with ``classes``, ``channels`` and ``image_size``."""


@dataclass(frozen=True)
class Architecture:
    """A network that is built by name.

    Args:
        name: The name.
        summary: What it is, in one line.
        paper: The paper that used it.
        make: Makes it; called with ``classes``, ``channels`` and ``image_size``.
    """

    name: str
    summary: str
    paper: str
    make: Maker


DIA = "Scheliga et al. 2023 (DIA)"

MODELS: dict[str, Architecture] = {
    entry.name: entry
    for entry in (
        Architecture("mlp", "4 linear layers without bias, GELU", DIA, mlp),
        Architecture("vit-small", "4 blocks, 256 dimensions, patch 4", DIA, SmallViT),
        Architecture("lenet", "3 convolutions of 12 channels, sigmoid", "Zhao et al. 2020", lenet),
        Architecture(
            "lenet-wide", "LeNet with weights from [-0.5, 0.5]", "Zhu et al. 2019", wide_lenet
        ),
        Architecture("resnet18", "ResNet-18, 3x3 stem, no max-pool", "He et al. 2016", resnet18),
    )
}

FAMILIES: dict[str, tuple[str, Maker]] = {
    "timm": ("any timm model by its name", external.timm_model),
    "torchvision": ("any torchvision classifier by its name", external.torchvision_model),
}


PLUGINS = Plugins("model", "keyhole.models", MODELS)
"""The models that other packages add: what makes one, or an :class:`Architecture`."""

PRIVATE = "dp"
"""``dp:NAME``: any model by its name, with Opacus' replacements for what DP-SGD cannot train."""


def find_maker(name: str) -> Maker:
    """What makes the model called ``name``."""
    if name in MODELS:
        return MODELS[name].make
    family, colon, rest = name.partition(":")
    if colon and family == PRIVATE:
        return partial(private_model, find_maker(rest))
    if colon and family in FAMILIES:
        return partial(FAMILIES[family][1], rest)
    called, options = parse_call(name)
    found = import_part(called, "model") if colon else PLUGINS.find(called)
    if found is not None:
        make = found.make if isinstance(found, Architecture) else found
        return partial(external.user_model, make, called, options)
    families = (f"{family}:NAME" for family in (*FAMILIES, PRIVATE))
    raise unknown("model", name, [*MODELS, *PLUGINS.available(), *families, USER_MODEL])


USER_MODEL = "package.module:callable"
"""How a model is named that no package declares."""


def is_user_model(name: str) -> bool:
    """Whether a name stands for code that is not Keyhole's, timm's or torchvision's.

    Args:
        name: The model's name.

    >>> is_user_model("my.package:build"), is_user_model("timm:deit_tiny_patch16_224")
    (True, False)
    """
    family, colon, rest = name.partition(":")
    if family == PRIVATE:
        return is_user_model(rest)
    if colon or name in MODELS:
        return bool(colon) and family not in FAMILIES
    return name.partition("(")[0] in PLUGINS.available()


def build(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    image_size: int | Size = 32,
    seed: int = 0,
    weights: Path | None = None,
) -> nn.Module:
    """Builds a model by name.

    Args:
        name: One of :data:`MODELS`, ``timm:NAME``, ``torchvision:NAME``, ``dp:NAME``,
            ``package.module:callable``, or the name of a plug-in.
        classes: The number of classes.
        channels: The number of colour planes of an image.
        image_size: The side of an image in pixels, or its height and width.
        seed: The seed of the initial weights.
        weights: A safetensors file with weights to load; None: the initial ones.

    >>> model = build("mlp", classes=10, channels=1, image_size=28)
    >>> sum(p.numel() for p in model.parameters())
    930816
    """
    make = find_maker(name)
    size = parse_size(image_size)
    assert size is not None
    facts = f"{channels}x{size[0]}x{size[1]}"
    with seeded_globally(derive(seed, "weights")):
        try:
            model = make(classes=classes, channels=channels, image_size=size)
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            raise DoesNotFit(
                f"model {name!r} cannot be built for {facts} images ({one_line(error)})"
            ) from None
    if weights is not None:
        load_weights(model, weights)
    check_logits(model, name, (channels, *size), classes)
    return model


def check_logits(model: nn.Module, name: str, shape: tuple[int, int, int], classes: int) -> None:
    """Raises :class:`DoesNotFit` unless ``model`` maps such an image to its classes' logits."""
    if (logits := count_logits(model, name, shape)) < classes:
        raise DoesNotFit(f"model {name!r} returns {(1, logits)}, not logits for {classes} classes")


def count_logits(model: nn.Module, name: str, shape: tuple[int, int, int]) -> int:
    """How many logits ``model`` gives for an image; raises :class:`DoesNotFit` where it gives none.

    Args:
        model: The model; it is left in the mode it is in.
        name: What errors call it.
        shape: Channels, height and width of the image.
    """
    training = model.training
    facts = "x".join(str(n) for n in shape)
    try:
        with torch.no_grad():
            like = next(model.parameters(), torch.zeros(0))
            logits = model.eval()(torch.zeros(1, *shape).to(like))
    except KeyholeError:
        raise
    except (RuntimeError, ValueError, AssertionError, TypeError, IndexError) as error:
        raise DoesNotFit(
            f"model {name!r} does not take {facts} images ({one_line(error)}): pass --image-size"
        ) from None
    finally:
        model.train(training)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise DoesNotFit(f"model {name!r} returns {got}, not logits for one image")
    return int(logits.shape[1])
