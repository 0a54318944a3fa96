"""Makes networks that DP-SGD can train, with Opacus' own replacements."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from keyhole.data.image_set import Size
from keyhole.errors import DoesNotFit
from keyhole.models.modes import find_trained_parameters, is_partly_frozen
from keyhole.seeds import seeded_globally

NOT_INSTALLED = "Opacus is not installed: pip install 'keyhole[dp]'"


def private_model(
    make: Callable[..., nn.Module], *, classes: int, channels: int, image_size: Size
) -> nn.Module:
    """Builds a model that DP-SGD can train."""
    return make_private(make(classes=classes, channels=channels, image_size=image_size))


def make_private(model: nn.Module) -> nn.Module:
    """Returns a copy with Opacus' replacements for layers that DP-SGD cannot train.

    BatchNorm becomes an untrained GroupNorm, and every parameter requires a gradient, unless the
    model has some that are frozen.
    """
    if not is_opacus_installed():
        raise DoesNotFit(NOT_INSTALLED)
    from opacus.validators import ModuleValidator

    with seeded_globally(0):  # some replacements draw weights before they get the model's
        fixed: nn.Module = ModuleValidator.fix(copy_for_validation(model))
    trained, frozen = find_trained_parameters(model), is_partly_frozen(model)
    fixed.train(model.training).requires_grad_(True)
    for name, parameter in fixed.named_parameters():
        parameter.requires_grad_(name in trained or not frozen)
    return fixed


def copy_for_validation(model: nn.Module) -> nn.Module:
    """Returns a copy in training mode whose attention layers look frozen to Opacus.

    Opacus refuses ``nn.MultiheadAttention`` because its hooks cannot see inside; vmap can. The
    layer that Opacus offers instead confuses heads and tokens (``batch_first``, Opacus 1.6).
    """
    trained = copy.deepcopy(model).train().requires_grad_(True)
    for module in trained.modules():
        if isinstance(module, nn.MultiheadAttention):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
    return trained


def is_opacus_installed() -> bool:
    try:
        import opacus  # noqa: F401
    except ImportError:
        return False
    return True
