"""A forward pass over many victims at once that keeps what their gradients are made of.

The samples of all victims run through the model as one batch. The tape drives the dropouts by the
victims' masks, gives each victim batch statistics of its own, keeps activations from being
overwritten, and notes the input and output of every layer whose weight is a parameter of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.matching.anatomy import DoesNotFactor
from keyhole.attacks.matching.unfolding import Geometry, convolve, unfold
from keyhole.models.dropout_sites import Driven

BRANCHES = (Tensor.__bool__, Tensor.item, Tensor.tolist, Tensor.__int__, Tensor.__float__)
"""What a model asks of a tensor when its way depends on what it sees."""

FEW = 256
"""Positions up to which a GPU convolves in float32 by a product with the columns, which are needed
anyway: of cuDNN's kernels some took five times as long for 512 channels at 4 x 4 on an H200."""

Kind = Literal["linear", "conv", "layer_norm", "group_norm", "batch_norm"]


@dataclass
class Call:
    """One use of one layer: what went in and came out, for the samples of all victims."""

    kind: Kind
    weight: str | None
    bias: str | None
    received: Tensor
    made: Tensor
    """The output, or for norms the normalised input before scale and shift."""
    output: Tensor
    geometry: dict[str, Any]
    versions: tuple[int, int]
    columns: Tensor | None = None
    """What a convolution multiplied, ``[N * B, L, Q]``, where it was multiplied so."""

    @property
    def overwritten(self) -> bool:
        """Whether the model changed the input or output in place after the layer had run."""
        return (self.received._version, self.output._version) != self.versions


@dataclass(frozen=True)
class Statistics:
    """What one BatchNorm saw of each victim, ``[N, C]``, beside its running statistics."""

    mean: Tensor
    var: Tensor
    running_mean: Tensor
    running_var: Tensor


class Tape(Driven):
    """Runs a model for ``victims`` clients side by side (see the module's text).

    ``names`` maps ``id(parameter)`` to its name; calls are noted for those alone. Calls numbered in
    ``copied`` hand on a copy of their output, since the model writes into it.
    """

    def __init__(
        self,
        victims: int,
        *,
        masks: Sequence[Tensor] | None = None,
        names: Mapping[int, str] | None = None,
        copied: frozenset[int] = frozenset(),
        statistics: bool = False,
        refuses_branches: bool = False,
    ) -> None:
        super().__init__(masks)
        self.refuses_branches = refuses_branches
        self.victims = victims
        self.names = names or {}
        self.copied = copied
        self.watches_statistics = statistics
        self.calls: list[Call] = []
        self.statistics: list[Statistics] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("inplace") is True:
            kwargs = {**kwargs, "inplace": False}
        if self.refuses_branches and func in BRANCHES:
            raise DoesNotFactor("its way depends on what it sees")
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func is F.conv2d and self.names:
            return self._conv(*args, **kwargs)
        if func is F.layer_norm:
            return self._layer_norm(*args, **kwargs)
        if func is F.group_norm:
            return self._group_norm(*args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def _note(
        self,
        kind: Kind,
        weight: Tensor | None,
        bias: Tensor | None,
        received: Tensor,
        made: Tensor,
        output: Tensor,
        columns: Tensor | None = None,
        **geometry: Any,
    ) -> Tensor:
        """Keeps a call if any of its parameters is the model's own."""
        names = [None if t is None else self.names.get(id(t)) for t in (weight, bias)]
        if names == [None, None]:
            return output
        versions = (received._version, output._version)
        call = Call(kind, names[0], names[1], received, made, output, geometry, versions, columns)
        self.calls.append(call)
        return output.clone() if len(self.calls) - 1 in self.copied else output

    # Parameters are named as in torch.nn.functional: models may call these by keyword.

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
        out = F.linear(input, weight, bias)
        return self._note("linear", weight, bias, input, out, out)

    def _conv(
        self,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if isinstance(padding, str):
            raise DoesNotFactor(f"{self.names.get(id(weight))!r} pads by name")
        place = Geometry.of(input, weight, stride, padding, dilation)
        columns = None
        if groups == 1 and by_columns(input, place):
            columns = unfold(input, place).mT.contiguous()
            out = convolve(columns, weight, bias, place)
        else:
            out = F.conv2d(input, weight, bias, stride, padding, dilation, groups)
        return self._note(
            "conv", weight, bias, input, out, out, columns, place=place, groups=groups
        )

    def _layer_norm(
        self,
        input: Tensor,  # noqa: A002
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        bare = F.layer_norm(input, normalized_shape, None, None, eps)
        made = bare if weight is None else bare * weight
        made = made if bias is None else made + bias
        return self._note("layer_norm", weight, bias, input, bare, made, ndim=len(normalized_shape))

    def _group_norm(
        self,
        input: Tensor,  # noqa: A002
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        bare = F.group_norm(input, num_groups, None, None, eps)
        return self._note("group_norm", weight, bias, input, bare, _affine(bare, weight, bias))

    def _batch_norm(
        self,
        input: Tensor,  # noqa: A002
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """BatchNorm whose batches are the victims' own; running statistics are never changed."""
        if self.watches_statistics and running_mean is not None and running_var is not None:
            axes = [1, *range(3, input.ndim + 1)]
            var, mean = torch.var_mean(
                torch.unflatten(input, 0, (self.victims, -1)), axes, correction=0
            )
            self.statistics.append(Statistics(mean, var, running_mean, running_var))
        if training or running_mean is None:
            bare = per_victim_norm(input, self.victims, eps)
        else:
            bare = F.batch_norm(input, running_mean, running_var, None, None, False, 0.0, eps)
        return self._note("batch_norm", weight, bias, input, bare, _affine(bare, weight, bias))


def by_columns(x: Tensor, place: Geometry) -> bool:
    """Whether a product with the columns is the faster convolution; in TF32 and bf16 it is not."""
    exact = not (torch.backends.cudnn.allow_tf32 or torch.is_autocast_enabled("cuda"))
    return x.is_cuda and exact and prod(place.out) <= FEW


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``x * weight + bias`` with one value a channel."""
    shape = (-1, *(1 for _ in x.shape[2:]))
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def per_victim_norm(x: Tensor, victims: int, eps: float) -> Tensor:
    """Batch normalisation of ``[N * B, C, ...]`` with statistics over each victim's B samples."""
    batch, channels = x.shape[0] // victims, x.shape[1]
    if batch == 1:
        columns = x.reshape(1, victims * channels, *x.shape[2:])
    else:
        apart = torch.unflatten(x, 0, (victims, batch)).transpose(0, 1)
        columns = apart.reshape(batch, victims * channels, *x.shape[2:])
    bare = F.batch_norm(columns, None, None, None, None, True, 0.0, eps)
    if batch == 1:
        return bare.reshape(x.shape)
    return bare.reshape(batch, victims, *x.shape[1:]).transpose(0, 1).reshape(x.shape)
