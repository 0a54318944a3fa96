"""Networks that DP-SGD can train, by Opacus' own replacements."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from keyhole.data.image_set import Size
from keyhole.errors import DoesNotFit
from keyhole.seeds import seeded_globally

MISSING = "Opacus is not installed: pip install 'keyhole[dp]'"


def private_model(
    make: Callable[..., nn.Module], *, classes: int, channels: int, image_size: Size
) -> nn.Module:
    """Any model, made fit for DP-SGD."""
    return private(make(classes=classes, channels=channels, image_size=image_size))


def private(model: nn.Module) -> nn.Module:
    """A copy with Opacus' replacements for layers that DP-SGD cannot train.

    BatchNorm becomes GroupNorm, which starts anew; every parameter is to be trained.
    """
    if not installed():
        raise DoesNotFit(MISSING)
    from opacus.validators import ModuleValidator

    with seeded_globally(0):  # some replacements draw weights before they are given them
        fixed: nn.Module = ModuleValidator.fix(shown(model))
    return fixed.train(model.training).requires_grad_(True)


def shown(model: nn.Module) -> nn.Module:
    """A copy for Opacus to judge, in training, its attention layers made to look frozen.

    Opacus refuses ``nn.MultiheadAttention`` because its hooks cannot see inside; vmap can. The
    layer it offers instead mixes heads and tokens up (``batch_first``, Opacus 1.6).
    """
    trained = copy.deepcopy(model).train().requires_grad_(True)
    for module in trained.modules():
        if isinstance(module, nn.MultiheadAttention):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
    return trained


def installed() -> bool:
    try:
        import opacus  # noqa: F401
    except ImportError:
        return False
    return True
