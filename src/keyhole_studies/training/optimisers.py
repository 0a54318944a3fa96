"""Optimisers of a model's parameters, in groups by weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from timm.optim import param_groups_weight_decay
from torch import nn

from keyhole.models import Jigsaw
from keyhole_studies.training.settings import TrainingSettings


def make_optimiser(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimiser of a model's parameters, in groups by weight decay."""
    groups = group_parameters(model, settings)
    if settings.optimiser == "adamw":
        on_gpu = next(model.parameters()).is_cuda
        return torch.optim.AdamW(groups, lr=settings.lr, fused=on_gpu)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=True)


def group_parameters(model: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    """Parameters with weight decay and without; all that a puzzle adds to a model is without."""
    if settings.decay_all:
        return [{"params": list(model.parameters()), "weight_decay": settings.weight_decay}]
    named: Callable[[], Iterable[str]] = getattr(model, "no_weight_decay", tuple)
    exempt = set(named())
    if isinstance(model, Jigsaw):
        exempt |= {f"puzzle.{name}" for name, _ in model.puzzle.named_parameters()}
    groups: list[dict[str, Any]] = param_groups_weight_decay(
        model, settings.weight_decay, no_weight_decay_list=exempt
    )
    return groups


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate
