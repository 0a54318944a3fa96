"""A forward pass over many victims at once that records what their gradients are made of.

The samples of all victims run through the model as one batch. The recorder applies the victims'
dropout masks, gives each victim its own batch statistics, prevents activations from being
overwritten, and records input and output of every layer whose weight is a parameter of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.matching.gradients.anchored_norm import (
    InnerPass,
    KnownMoments,
    KnownStatistics,
    normalise_anchored,
)
from keyhole.attacks.matching.gradients.factor_plan import DoesNotFactor
from keyhole.attacks.matching.gradients.frozen_convolution import convolve
from keyhole.attacks.matching.gradients.layer_call import (
    BatchStatistics,
    Convolution,
    LayerCall,
    LayerKind,
)
from keyhole.attacks.matching.gradients.products import are_stacks, multiply_twice_differentiably
from keyhole.attacks.matching.gradients.softmax import is_large_softmax, softmax_rows
from keyhole.attacks.matching.gradients.unfolding import (
    ConvGeometry,
    convolve_columns,
    multiply_columns,
    unfold,
)
from keyhole.models.bottleneck import add_to_loss
from keyhole.models.dropout_sites import FixedMasks

BRANCHES = (Tensor.__bool__, Tensor.item, Tensor.tolist, Tensor.__int__, Tensor.__float__)
"""What a model calls on a tensor when its control flow depends on values."""

SOFTMAXES = (F.softmax, torch.softmax, Tensor.softmax)
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)

MAX_COLUMN_POSITIONS = 256
"""Positions up to which a GPU convolves in float32 by a product with the columns, which are needed
anyway: some of cuDNN's kernels took five times as long for 512 channels at 4 x 4 on an H200."""


class LayerRecorder(FixedMasks):
    """Runs a model for the samples of several victims at once (see the module's docstring).

    ``names`` maps ``id(parameter)`` to the parameter's name; only calls that use one of these are
    recorded. Calls whose number is in ``cloned_calls`` return a copy of their output, because the
    model writes into it. ``known`` holds the moments of the client's batch; if they are anchored,
    BatchNorms normalise by them, and ``inner`` tells which of the two backward passes is under way.
    """

    def __init__(
        self,
        victims: int,
        *,
        masks: Sequence[Tensor] | None = None,
        names: Mapping[int, str] | None = None,
        cloned_calls: frozenset[int] = frozenset(),
        statistics: bool = False,
        refuses_branches: bool = False,
        known: KnownStatistics | None = None,
        inner: InnerPass | None = None,
    ) -> None:
        super().__init__(masks)
        self.known, self.inner_pass = known, inner or InnerPass()
        self.norms = 0
        """The BatchNorms that have been passed with statistics of the batch."""
        self.refuses_branches = refuses_branches
        self.victims = victims
        self.names = names or {}
        self.cloned_calls = cloned_calls
        self.records_statistics = statistics
        self.calls: list[LayerCall] = []
        self.statistics: list[BatchStatistics] = []
        self.loss_terms: list[Tensor] = []
        """What the model adds to the cross-entropy of each sample, ``[N * B]`` each."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("inplace") is True:
            kwargs = {**kwargs, "inplace": False}
        if self.refuses_branches and func in BRANCHES:
            raise DoesNotFactor("its control flow depends on the values it computes")
        if func is add_to_loss:
            self.loss_terms.append(args[0])
            return None
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
        if func in SOFTMAXES and self.names and args and is_large_softmax(*args, **kwargs):
            return softmax_rows(args[0])
        if func in PRODUCTS and self.names and len(args) == 2 and are_stacks(*args):
            return multiply_twice_differentiably(*args)
        return super().__torch_function__(func, types, args, kwargs)

    def sum_losses(self, targets: Tensor, logits: Tensor) -> Tensor:
        """The cross-entropy summed over all samples, and the model's own terms.

        Args:
            targets: The distribution over the classes that each sample should have.
            logits: The model's output for the samples, in the same shape.
        """
        cross_entropy = -(targets * logits.log_softmax(-1)).sum()
        return cross_entropy + sum(term.sum() for term in self.loss_terms)

    def _record(
        self,
        kind: LayerKind,
        weight: Tensor | None,
        bias: Tensor | None,
        layer_input: Tensor,
        output: Tensor,
        *,
        normalised: Tensor | None = None,
        normalised_axes: int = 0,
        convolution: Convolution | None = None,
    ) -> Tensor:
        """Records a call if one of its parameters belongs to the model; returns its output."""
        names = [None if t is None else self.names.get(id(t)) for t in (weight, bias)]
        if names == [None, None]:
            return output
        call = LayerCall(
            kind,
            weight=names[0],
            bias=names[1],
            layer_input=layer_input,
            output=output,
            versions=(layer_input._version, output._version),
            normalised=normalised,
            normalised_axes=normalised_axes,
            convolution=convolution,
        )
        self.calls.append(call)
        return output.clone() if len(self.calls) - 1 in self.cloned_calls else output

    # Parameters are named as in torch.nn.functional, because models may pass them by keyword.

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
        out = F.linear(input, weight, bias)
        return self._record("linear", weight, bias, input, out)

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
        geometry = ConvGeometry.from_conv(input, weight, stride, padding, dilation)
        columns = None
        if groups == 1 and columns_are_faster(input, geometry):
            columns = unfold(input, geometry).mT.contiguous()
            out = convolve_columns(columns, weight, bias, geometry)
        elif groups == 1 and input.is_cpu and not self.calls:
            # Images get one derivative, through the columns alone: that by oneDNN is slow.
            columns = unfold(input, geometry).mT
            out = multiply_columns(columns.mT, weight, bias, geometry)
        elif weight.requires_grad or (bias is not None and bias.requires_grad):
            out = F.conv2d(input, weight, bias, stride, padding, dilation, groups)
        else:
            out = convolve(input, weight, bias, geometry, groups)
        convolution = Convolution(geometry, groups, columns)
        return self._record("conv", weight, bias, input, out, convolution=convolution)

    def _layer_norm(
        self,
        input: Tensor,  # noqa: A002
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        normalised = F.layer_norm(input, normalized_shape, None, None, eps)
        out = normalised if weight is None else normalised * weight
        out = out if bias is None else out + bias
        return self._record(
            "layer_norm",
            weight,
            bias,
            input,
            out,
            normalised=normalised,
            normalised_axes=len(normalized_shape),
        )

    def _group_norm(
        self,
        input: Tensor,  # noqa: A002
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        normalised = F.group_norm(input, num_groups, None, None, eps)
        out = _apply_affine(normalised, weight, bias)
        return self._record("group_norm", weight, bias, input, out, normalised=normalised)

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
        """BatchNorm over each victim's own batch; running statistics are never changed."""
        known = self._next_known() if training and running_mean is not None else None
        if self.records_statistics and running_mean is not None and running_var is not None:
            axes = [1, *range(3, input.ndim + 1)]
            var, mean = torch.var_mean(
                torch.unflatten(input, 0, (self.victims, -1)), axes, correction=0
            )
            self.statistics.append(BatchStatistics(mean, var, running_mean, running_var, known))
        if known is not None and self.known is not None and self.known.anchored:
            normalised = normalise_anchored(input, known, eps, self.inner_pass)
        elif training or running_mean is None:
            normalised = normalise_per_victim(input, self.victims, eps)
        else:
            normalised = F.batch_norm(input, running_mean, running_var, None, None, False, 0.0, eps)
        out = _apply_affine(normalised, weight, bias)
        return self._record("batch_norm", weight, bias, input, out, normalised=normalised)

    def _next_known(self) -> KnownMoments | None:
        """The known moments of the next BatchNorm that uses statistics of the batch."""
        self.norms += 1
        return None if self.known is None else self.known.moments[self.norms - 1]


def columns_are_faster(x: Tensor, geometry: ConvGeometry) -> bool:
    """Whether a product with the columns is the faster convolution; not in TF32 and bf16."""
    exact = not (torch.backends.cudnn.allow_tf32 or torch.is_autocast_enabled("cuda"))
    return x.is_cuda and exact and prod(geometry.output_size) <= MAX_COLUMN_POSITIONS


def _apply_affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``x * weight + bias`` with one value per channel."""
    shape = (-1, *(1 for _ in x.shape[2:]))
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def normalise_per_victim(x: Tensor, victims: int, eps: float) -> Tensor:
    """Batch normalisation of ``[N * B, C, ...]`` with statistics over each victim's B samples."""
    batch, channels = x.shape[0] // victims, x.shape[1]
    if batch == 1:
        columns = x.reshape(1, victims * channels, *x.shape[2:])
    else:
        by_sample = torch.unflatten(x, 0, (victims, batch)).transpose(0, 1)
        columns = by_sample.reshape(batch, victims * channels, *x.shape[2:])
    normalised = F.batch_norm(columns, None, None, None, None, True, 0.0, eps)
    if batch == 1:
        return normalised.reshape(x.shape)
    return normalised.reshape(batch, victims, *x.shape[1:]).transpose(0, 1).reshape(x.shape)
