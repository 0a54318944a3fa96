"""Soteria: the gradient of one fully connected layer says nothing of some of its inputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.traces import THINNED, Sighting, Trace, TraceCheck
from keyhole.errors import DoesNotFit
from keyhole.models.bottleneck import find_last_linear
from keyhole.models.dropout_sites import FixedMasks
from keyhole.update import Update

TINY = 1e-12
CHUNK = 64
"""Features whose derivatives are computed at once."""


@plain_dataclass(frozen=True)
class ColumnsTrace(Trace):
    """At least so many columns of a weight have no value but zero.

    Args:
        weight: The weight's name.
        count: How many columns.
    """

    weight: str
    count: int

    kind: ClassVar[str] = "columns"

    def check(self, seen: Sighting) -> TraceCheck:
        tensor = seen.parameters().get(self.weight)
        if tensor is None:
            words = f"the update has no {self.weight}"
            return TraceCheck(self.kind, self.count, 0, None, words)
        empty = int((tensor == 0).all(0).sum())
        words = f"{empty} columns of {self.weight} are zero, {self.count} declared"
        return TraceCheck(self.kind, self.count, empty, empty >= self.count, words)


@dataclass(frozen=True, kw_only=True)
class Soteria(Defense):
    """Sets the columns of a linear layer's gradient to 0 whose features give most away.

    The layer's inputs r are a representation of the image x. Feature i is pruned where
    ``|r_i| / |dr_i / dx|``, summed over the client's images, is largest. The layer's bias and all
    other layers are sent as they are.

    Args:
        ratio: The share of features that are pruned, rounded down to a whole number of them.
        layer: The layer's name; None: the linear layer that is listed last.
    """

    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.5
    layer: str | None = None

    name: ClassVar[str] = "soteria"
    summary: ClassVar[str] = "prunes the features that give most away from one layer's gradient"
    paper: ClassVar[str] = "Sun et al. 2021 (Soteria)"
    headline: ClassVar[tuple[str, ...]] = ("ratio",)
    paper_attacks: ClassVar[tuple[str, ...]] = ("dlg", "ig")

    def incompatibilities(self, model: nn.Module) -> list[str]:
        if self.layer is None:
            found = find_last_linear(model) is not None
            return [] if found else ["it has no linear layer whose gradient could be pruned"]
        linear = isinstance(dict(model.named_modules()).get(self.layer), nn.Linear)
        return [] if linear else [f"it has no linear layer named {self.layer!r}"]

    def caveats(self, model: nn.Module) -> list[str]:
        return ["pruned columns are visible, and all layers before them are sent as they are"]

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        if self.ratio == 0:
            return update
        if side.model is None or side.images is None or not len(side.images):
            raise DoesNotFit(
                "defense 'soteria' needs the model and the images whose features it prunes: "
                "pass ClientSide(model=..., images=...)"
            )
        self.validate(side.model)
        weight = self.find_weight(side.model)
        inputs = side.normalise(side.images).to(next(side.model.parameters()))
        scores = score_features(side.model, weight.removesuffix(".weight"), inputs)
        pruned = scores.topk(int(self.ratio * len(scores))).indices
        kept = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
        kept[pruned] = False
        side.record(pruned=len(pruned), features=len(scores))

        def protect(name: str, tensor: Tensor) -> Tensor:
            if name != weight:
                return tensor
            return torch.where(kept.to(tensor.device), tensor, torch.zeros_like(tensor))

        return update.map(protect)

    def find_weight(self, model: nn.Module) -> str:
        """The name of the weight whose gradient is pruned.

        Args:
            model: A model that fits.
        """
        layer = find_last_linear(model) if self.layer is None else self.layer
        return f"{layer}.weight" if layer else "weight"

    def misleading_values(self, update: Update, model: nn.Module) -> Mapping[str, Tensor]:
        """The columns of the pruned layer that are 0."""
        weight = self.find_weight(model)
        gradient = update.gradient().get(weight)
        if self.ratio == 0 or gradient is None:
            return {}
        return {weight: (gradient == 0).all(0).expand_as(gradient)}

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The columns that are pruned."""
        weight = self.find_weight(model)
        count = int(self.ratio * dict(model.named_parameters())[weight].shape[1])
        return [ColumnsTrace(weight, count)] if count else []

    def keeps_trace(self, trace: Trace) -> bool:
        return trace.kind in THINNED


@torch.enable_grad()
def score_features(model: nn.Module, layer: str, inputs: Tensor) -> Tensor:
    """``sum over images |r_i| / |dr_i / dx|`` of a layer's inputs r ``[B, ..., F]``: ``[F]``.

    A feature that no pixel moves scores 0. Features at several positions are summed first.

    Args:
        model: The global model; it is left as it is.
        layer: The layer's name.
        inputs: Model inputs, ``[B, C, H, W]``.
    """
    probe = copy.deepcopy(model).eval().requires_grad_(False)
    received: list[Tensor] = []
    probe.get_submodule(layer).register_forward_pre_hook(
        lambda module, args: received.append(args[0])
    )
    x = inputs.detach().clone().requires_grad_()
    with FixedMasks():
        probe(x)
    features = received[-1]
    by_image = features.reshape(len(x), -1, features.shape[-1]).sum(1)
    if not by_image.requires_grad:
        return by_image.detach().abs().sum(0) * 0
    total = torch.zeros(by_image.shape[1]).to(by_image)
    for chunk in torch.split(torch.arange(len(total), device=x.device), CHUNK):
        one_each = F.one_hot(chunk, len(total)).to(by_image)[:, None].expand(-1, len(x), -1)
        slopes = torch.autograd.grad(
            by_image, x, one_each, retain_graph=True, is_grads_batched=True
        )[0]
        slope = slopes.flatten(2).norm(dim=2)
        size = by_image.detach()[:, chunk].abs().T
        total[chunk] = torch.where(slope > TINY, size / slope.clamp(min=TINY), 0 * size).sum(1)
    return total
