"""Models that others define: timm, torchvision, and the user's own."""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from keyhole.data.image_set import Size
from keyhole.errors import DoesNotFit, UnknownName, one_line
from keyhole.spelling import spell, unknown_name

ACCEPTED = {
    "classes": ("classes", "num_classes", "n_classes"),
    "channels": ("channels", "in_channels", "in_chans"),
    "image_size": ("image_size", "img_size"),
}
"""The argument names under which a user's callable may ask for what we know.

``classes`` and ``channels`` are numbers; ``image_size`` is ``(height, width)``, always.
"""


def timm_model(name: str, *, classes: int, channels: int, image_size: Size) -> nn.Module:
    """``timm.create_model`` without pretrained weights, at the images' own size if it can be."""
    import timm

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.6)
        raise UnknownName(f"timm has no model {name!r}: {_suggest(near)}")
    options: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
    model: nn.Module
    try:
        model = timm.create_model(name, img_size=image_size, **options)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        model = timm.create_model(name, **options)
    return model


def torchvision_model(name: str, *, classes: int, channels: int, image_size: Size) -> nn.Module:
    """``torchvision.models.get_model`` without weights."""
    from torchvision import models

    names = models.list_models(module=models)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
        raise UnknownName(f"torchvision has no model {name!r}: {_suggest(near)}")
    if channels != 3:
        raise DoesNotFit(
            f"torchvision:{name} takes images of 3 channels, not {channels}: "
            "choose another data set, or the timm model of that name"
        )
    options: dict[str, Any] = {"num_classes": classes}
    if name.startswith("vit_"):
        options["image_size"] = image_size[0]
    if name in {"googlenet", "inception_v3"}:
        options |= {"aux_logits": False, "init_weights": True}
    model: nn.Module = models.get_model(name, weights=None, **options)
    return model


def user_model(
    make: Any,
    name: str,
    options: dict[str, Any],
    *,
    classes: int,
    channels: int,
    image_size: Size,
) -> nn.Module:
    """A model that others define: a copy of it, or what their class or function makes.

    That is called with ``options`` and with those of our facts that it has names for:
    ``def build(classes, channels, image_size)`` gets ``10, 3, (32, 32)``.

    Args:
        make: The model, or what makes it.
        name: What the user calls it.
        options: Further arguments.
        classes: How many the data set has.
        channels: Of the images.
        image_size: Height and width.
    """
    if isinstance(make, nn.Module) and not options:
        return copy.deepcopy(make)
    where, _, attribute = name.rpartition(":")
    if not callable(make) or isinstance(make, nn.Module):
        raise UnknownName(f"{where or 'its package'} has nothing to call by the name {attribute!r}")
    _check_options(make, name, options)
    facts = {"classes": classes, "channels": channels, "image_size": image_size}
    asked = {**_asked_for(make, facts), **options}
    try:
        model = make(**asked)
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        size = f"{channels}x{image_size[0]}x{image_size[1]}"
        hint = ": image_size is (height, width)" if image_size in asked.values() else ""
        raise DoesNotFit(
            f"model {name!r} cannot be built for {size} images: "
            f"{spell(attribute, asked)} fails ({one_line(error)}){hint}"
        ) from None
    if not isinstance(model, nn.Module):
        raise DoesNotFit(f"{name} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _check_options(make: Callable[..., Any], name: str, options: dict[str, Any]) -> None:
    """Refuses an option that the callable has no argument for."""
    known = inspect.signature(make).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        return
    for option in options:
        if option not in known:
            raise unknown_name(f"parameter of model {name}", option, known or ["(none)"])


def _asked_for(make: Callable[..., Any], facts: dict[str, Any]) -> dict[str, Any]:
    names = inspect.signature(make).parameters
    return {
        alias: facts[key]
        for key, aliases in ACCEPTED.items()
        for alias in aliases
        if alias in names
    }


def _suggest(near: list[str]) -> str:
    return f"did you mean {' or '.join(near)}?" if near else "see its documentation for the names"
