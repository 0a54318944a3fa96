"""The models that Keyhole knows by name, and what makes each of them; imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from keyhole.lazy import import_on_call
from keyhole.plugins import Plugins, import_part
from keyhole.spelling import parse_call, unknown_name

if TYPE_CHECKING:
    from torch import nn

Maker = Callable[..., "nn.Module"]
"""Called with ``classes``, ``channels`` and ``image_size``."""


@dataclass(frozen=True)
class Architecture:
    """A network that can be asked for by name.

    Args:
        name: The network's name.
        summary: One line about it.
        paper: Where it is from.
        make: Makes the network; called with ``classes``, ``channels`` and ``image_size``.
    """

    name: str
    summary: str
    paper: str
    make: Maker


def _architecture(name: str, summary: str, paper: str, address: str) -> Architecture:
    return Architecture(name, summary, paper, import_on_call(f"keyhole.models.{address}"))


DIA = "Scheliga et al. 2023 (DIA)"
ZHAO, ZHU, HE = "Zhao et al. 2020", "Zhu et al. 2019", "He et al. 2016"
LECUN = "LeCun et al. 1998, as in Flower's quickstart"

MODELS: dict[str, Architecture] = {
    entry.name: entry
    for entry in (
        _architecture("mlp", "4 linear layers without bias, GELU", DIA, "mlp:mlp"),
        _architecture("vit-small", "4 blocks, 256 dimensions, patch 4", DIA, "vit_small:SmallViT"),
        _architecture("lenet", "3 convolutions of 12 channels, sigmoid", ZHAO, "lenet:lenet"),
        _architecture("lenet-wide", "LeNet with weights from [-0.5, 0.5]", ZHU, "lenet:wide_lenet"),
        _architecture("resnet18", "ResNet-18, 3x3 stem, no max-pool", HE, "resnet:resnet18"),
        _architecture("quickstart", "2 convolutions, 3 linear", LECUN, "quickstart:quickstart"),
    )
}

FAMILIES: dict[str, tuple[str, Maker]] = {
    "timm": (
        "any timm model by its name",
        import_on_call("keyhole.models.external:timm_model"),
    ),
    "torchvision": (
        "any torchvision classifier by its name",
        import_on_call("keyhole.models.external:torchvision_model"),
    ),
}

PLUGINS = Plugins("model", "keyhole.models", MODELS)
"""The models that other packages add: what makes one, or an :class:`Architecture`."""

PRIVATE = "dp"
"""``dp:NAME``: any model by its name, with Opacus' replacements for what DP-SGD cannot train."""

ADAPTED = "adapters"
"""``adapters:NAME``: a vision transformer by its name, of which adapters and head are trained."""

WRAPPERS: dict[str, Maker] = {
    PRIVATE: import_on_call("keyhole.models.private:private_model"),
    ADAPTED: import_on_call("keyhole.models.adapters:adapted_model"),
}
"""What changes a model of any name: called with its maker and what that is called with."""

USER_MODEL = "package.module:callable"
"""How a model is named that no package declares."""


def check_model_name(name: str) -> None:
    """Raises what :func:`find_maker` raises for an unknown name; imports no model.

    Args:
        name: A model as a user writes it.
    """
    if name in MODELS or ":" in name:
        return
    called, _ = parse_call(name)
    if called not in PLUGINS.available():
        raise unknown_name("model", name, known_models())


def known_models() -> list[str]:
    """Returns what a model may be called."""
    families = (f"{family}:NAME" for family in (*FAMILIES, *WRAPPERS))
    return [*MODELS, *PLUGINS.available(), *families, USER_MODEL]


def find_maker(name: str) -> Maker:
    """Returns what makes the model called ``name``."""
    check_model_name(name)
    if name in MODELS:
        return MODELS[name].make
    family, colon, rest = name.partition(":")
    if colon and family in WRAPPERS:
        return partial(WRAPPERS[family], find_maker(rest))
    if colon and family in FAMILIES:
        return partial(FAMILIES[family][1], rest)
    called, options = parse_call(name)
    found: Any = import_part(called, "model") if colon else PLUGINS.find(called)
    make = found.make if isinstance(found, Architecture) else found
    return partial(import_on_call("keyhole.models.external:user_model"), make, called, options)


def is_user_model(name: str) -> bool:
    """Returns whether a name stands for code that is not Keyhole's, timm's or torchvision's.

    Args:
        name: A model as a user writes it.

    >>> is_user_model("my.package:build"), is_user_model("timm:deit_tiny_patch16_224")
    (True, False)
    """
    family, colon, rest = name.partition(":")
    if family in WRAPPERS:
        return is_user_model(rest)
    if colon or name in MODELS:
        return bool(colon) and family not in FAMILIES
    return name.partition("(")[0] in PLUGINS.available()
