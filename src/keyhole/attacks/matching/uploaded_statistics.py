"""The statistics of a client's batches, read from the buffers that it uploads.

A BatchNorm in train mode moves its running statistics by the momentum m in every step. The server
knows them before and after, and so the moments of the batch:

    mean = (mean' - (1 - m) mean0) / m,    var = (n - 1) / n (var' - (1 - m) var0) / m,

where n is the number of values of a channel that the layer saw, and PyTorch stores unbiased
variances. After S steps what can be read is the mean over the steps, step s (from 1) weighted by
``m (1 - m)^(S - s)``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from keyhole.attacks.matching.gradients.anchored_norm import KnownMoments, KnownStatistics
from keyhole.models.anatomy import Shape
from keyhole.models.modes import BATCH_NORMS, RUNNING_STATISTICS
from keyhole.threat import Knowledge
from keyhole.update import Update

StatisticsUse = Literal["auto", "ignored", "prior", "anchored", "both"]
"""What an attack does with uploaded batch statistics; ``auto``: ``both`` for one local step, the
prior alone for several, whose own statistics cannot be told apart."""
SLACK = 1e-3
"""A variance below minus this, in units of the layer's mean variance, was not left by a batch."""


@dataclass(frozen=True)
class NormLayer:
    """A BatchNorm that a client ran in train mode.

    Args:
        name: Its name in the model.
        positions: The values of one channel that it sees of one image.
        momentum: The share of a batch in the new running statistics; None: all batches ever seen
            count alike.
        batches: The batches that the global model's statistics come from.
        mean: The running mean that was sent.
        var: The running variance that was sent.
    """

    name: str
    positions: int
    momentum: float | None
    batches: int
    mean: Tensor
    var: Tensor

    def shares(self, steps: int) -> tuple[float, ...]:
        """The weight of each step in what can be read; they sum to 1.

        >>> layer = NormLayer("bn", 4, 0.5, 0, torch.zeros(1), torch.ones(1))
        >>> layer.shares(1), layer.shares(2)
        ((1.0,), (0.3333333333333333, 0.6666666666666666))

        Args:
            steps: The number of local steps.
        """
        if self.momentum is None:
            return (1 / steps,) * steps
        weights = [(1 - self.momentum) ** (steps - 1 - step) for step in range(steps)]
        return tuple(weight / sum(weights) for weight in weights)

    def share_of_new(self, steps: int) -> float:
        """The share of the client's batches in the running statistics that it uploads.

        Args:
            steps: The number of local steps.
        """
        if self.momentum is None:
            return steps / (self.batches + steps)
        return 1 - (1 - self.momentum) ** steps

    def read(self, change: Mapping[str, Tensor], *, steps: int, batch: int) -> KnownMoments | None:
        """The moments ``[1, C]``; None if no batch can have left these.

        Args:
            change: What the client changed, by name.
            steps: The number of local steps.
            batch: The images of one step.
        """
        share, count = self.share_of_new(steps), self.positions * batch
        if share <= 0 or count < 2:
            return None
        mean = self.mean.double() + change[f"{self.name}.running_mean"].double() / share
        var = self.var.double() + change[f"{self.name}.running_var"].double() / share
        var = var * (count - 1) / count
        if not bool((var >= -SLACK * var.mean().abs()).all()):
            return None
        return KnownMoments(mean[None], var.clamp(min=0)[None])


def find_norm_layers(model: nn.Module, shape: Shape) -> tuple[NormLayer, ...] | None:
    """The BatchNorms of a model in the order of the forward pass.

    None if there are none, or if one is not in train mode, has no running statistics or runs more
    than once: then buffers do not tell what each batch was like.

    Args:
        model: The model in the client's mode.
        shape: The shape of one image.
    """
    probe = copy.deepcopy(model)
    calls: list[tuple[str, int]] = []
    norms = {n: m for n, m in probe.named_modules() if isinstance(m, BATCH_NORMS)}
    for name, module in norms.items():
        if not module.training or module.running_mean is None or module.momentum == 0:
            return None
        module.register_forward_pre_hook(
            lambda module, args, name=name: calls.append((name, args[0][0, 0].numel()))
        )
    if not norms:
        return None
    with torch.no_grad():
        probe(torch.zeros(2, *shape).to(next(probe.parameters())))
    if sorted(name for name, _ in calls) != sorted(norms):
        return None
    return tuple(describe_norm(model, name, positions) for name, positions in calls)


def describe_norm(model: nn.Module, name: str, positions: int) -> NormLayer:
    """One BatchNorm of the global model."""
    module = model.get_submodule(name)
    assert isinstance(module, BATCH_NORMS)
    assert module.running_mean is not None
    assert module.running_var is not None
    tracked = module.num_batches_tracked
    batches = 0 if tracked is None else int(tracked)
    mean, var = module.running_mean.clone(), module.running_var.clone()
    return NormLayer(name, positions, module.momentum, batches, mean, var)


def shares_statistics(model: nn.Module, change: Mapping[str, Tensor], knowledge: Knowledge) -> bool:
    """Whether an update holds what a single client's train-mode BatchNorms made of its batches.

    Args:
        model: The global model.
        change: What the client changed, by name.
        knowledge: What the attacker knows.
    """
    if knowledge.client_mode != "train" or knowledge.clients > 1:
        return False
    norms = [n for n, m in model.named_modules() if isinstance(m, BATCH_NORMS)]
    wanted = [f"{n}.{buffer}" for n in norms for buffer in RUNNING_STATISTICS]
    return bool(norms) and all(name in change for name in wanted)


def find_shared_norms(
    model: nn.Module, update: Update, knowledge: Knowledge, batch: int
) -> tuple[NormLayer, ...]:
    """The BatchNorms whose statistics an update tells; none unless it tells those of all.

    Args:
        model: The model in the client's mode.
        update: What the client sent.
        knowledge: What the attacker knows.
        batch: The images of one step.
    """
    if not shares_statistics(model, update.change, knowledge):
        return ()
    layers = find_norm_layers(model, knowledge.shape)
    if layers is None:
        return ()
    read = read_statistics(layers, update.change, steps=update.steps, batch=batch)
    return () if read is None else layers


def drop_statistics(model: nn.Module, change: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a client changed without the running statistics of BatchNorms.

    Args:
        model: The global model.
        change: What the client changed, by name.
    """
    norms = [n for n, m in model.named_modules() if isinstance(m, BATCH_NORMS)]
    statistics = {f"{n}.{buffer}" for n in norms for buffer in RUNNING_STATISTICS}
    return {name: tensor for name, tensor in change.items() if name not in statistics}


def read_statistics(
    layers: Sequence[NormLayer], change: Mapping[str, Tensor], *, steps: int, batch: int
) -> list[KnownMoments] | None:
    """The moments of one client's batches, by layer; None if some make no sense.

    A defense that adds noise to buffers as well leaves variances below zero, for instance.

    Args:
        layers: The model's BatchNorms.
        change: What the client changed, by name.
        steps: The number of local steps.
        batch: The images of one step.
    """
    found = [layer.read(change, steps=steps, batch=batch) for layer in layers]
    moments = [each for each in found if each is not None]
    return moments if len(moments) == len(layers) else None


def stack_statistics(
    victims: Sequence[Sequence[KnownMoments]],
    layers: Sequence[NormLayer],
    *,
    steps: int,
    anchored: bool,
    like: Tensor,
) -> KnownStatistics:
    """The moments of several victims, ``[N, C]`` each.

    Args:
        victims: Each victim's moments by layer.
        layers: The model's BatchNorms.
        steps: The number of local steps.
        anchored: Whether dummy images pass the BatchNorms by these moments.
        like: A tensor of the model's type, on its device.
    """
    by_layer = zip(*victims, strict=True)
    moments = tuple(
        KnownMoments(
            torch.cat([m.mean for m in each]).to(like), torch.cat([m.var for m in each]).to(like)
        )
        for each in by_layer
    )
    return KnownStatistics(moments, tuple(layer.shares(steps) for layer in layers), anchored)
