"""Parts of a model by their kind: the head, and the norms."""

from __future__ import annotations

from torch import nn

from keyhole.models.modes import BATCH_NORMS

NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d)


def find_head(model: nn.Module) -> str | None:
    """The name of the model's last linear layer; None if it has none."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None
