"""Gradient matching without per-victim gradients.

A linear or unfolded convolutional layer with inputs U ``[K, Q]`` and output gradients D ``[K, C]``
(K positions of a victim's batch) has the weight gradient ``G = D^T U``. The objectives need only
products of it, which can be computed without building G:

    <G, T> = sum(D * (U T^T)),        |G|^2 = sum((D D^T) * (U U^T)),

A target T that came from K positions has rank K at most. Where K is small, T is stored as two
factors, ``T = P R``, and ``<G, T> = sum((D P) * (U R^T))``. Each layer takes the cheaper way. The
gradients of scales, shifts, biases, position embeddings and class tokens are small and are built.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from keyhole.attacks.matching.gradients.anchored_norm import KnownStatistics
from keyhole.attacks.matching.gradients.factor_plan import FactorPlan
from keyhole.attacks.matching.gradients.factors import Factors
from keyhole.attacks.matching.gradients.layer_call import LayerCall
from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder
from keyhole.attacks.matching.gradients.low_rank import LowRankTargets
from keyhole.attacks.matching.gradients.match import GradientMatch
from keyhole.attacks.matching.gradients.products import sum_per_victim
from keyhole.attacks.matching.gradients.unfolding import unfold


class FactoredMatch(GradientMatch):
    """A match whose large gradients stay factors until they are needed whole."""

    def __init__(
        self, built: dict[str, Tensor], factored: dict[str, Factors], targets: LowRankTargets
    ) -> None:
        super().__init__(targets)
        self.built, self.factored = built, factored
        self.names = [n for n in targets.squares if n in built or n in factored]
        self.target_factors = targets.factors

    def gradient(self, name: str) -> Tensor:
        gradient = self.built[name] if name in self.built else self.factored[name].build()
        return gradient.to(torch.promote_types(gradient.dtype, torch.float32))

    def is_built(self, name: str) -> bool:
        weights = self.targets.gradient_weights.get(name)
        if name in self.built or (weights is not None and weights.values is not None):
            return True
        return name not in self.target_factors and self.factored[name].build_is_cheaper

    def products(self, name: str) -> tuple[Tensor, Tensor]:
        if self.is_built(name):
            target = self.target(name)
            gradient = self.weighted_gradient(name).to(target)
            return sum_per_victim(gradient * target), sum_per_victim(gradient.square())
        factors = self.factored[name]
        if name in self.targets.gradient_weights:
            weights = self.targets.gradient_weights[name]
            dot = factors.dot(self.targets.weighted_twice(name))
            return dot, factors.weighted_squared_norm(weights)
        if name in self.target_factors:
            return factors.dot_low_rank(*self.target_factors[name]), factors.squared_norm()
        return factors.dot(self.target(name)), factors.squared_norm()


class FactoredMatcher:
    """Matches the gradients of one local step for all victims in one pass through the model."""

    backend = "factored"

    def __init__(
        self,
        model: nn.Module,
        plan: FactorPlan,
        targets: LowRankTargets,
        *,
        statistics: bool = False,
        known: KnownStatistics | None = None,
        bfloat16: bool = False,
    ) -> None:
        self.model = model
        self.plan = plan
        self.targets = targets
        self.statistics = statistics
        self.known = known
        self.bfloat16 = bfloat16
        self.names = {id(p): name for name, p in model.named_parameters()}

    def select(self, victims: Tensor) -> FactoredMatcher:
        return self._copy_with(self.model, victims)

    def fork(self, victims: Tensor) -> FactoredMatcher:
        """Some of the victims with their own copy of the model, whose parameters are swapped."""
        return self._copy_with(copy.deepcopy(self.model), victims)

    def _copy_with(self, model: nn.Module, victims: Tensor) -> FactoredMatcher:
        return FactoredMatcher(
            model,
            self.plan,
            self.targets.select(victims),
            statistics=self.statistics,
            known=None if self.known is None else self.known.select(victims),
            bfloat16=self.bfloat16,
        )

    def __call__(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> GradientMatch:
        """``images [N, B, C, H, W]``, ``targets [N, B, classes]``, masks ``[N, B, ...]``."""
        flat_masks = None if masks is None else [m.flatten(0, 1) for m in masks]
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
            recorder, shapes, gradients = self._differentiate(images, targets, flat_masks)
        built, factored = collect_gradients(recorder.calls, gradients, len(images))
        for name, gradient in zip(shapes, gradients[len(recorder.calls) :], strict=True):
            built[name] = sum_samples(gradient, len(images), shapes[name])
        match = FactoredMatch(built, factored, self.targets)
        match.statistics = recorder.statistics
        return match

    def _differentiate(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> tuple[LayerRecorder, dict[str, torch.Size], tuple[Tensor, ...]]:
        """Runs the model forward and backward.

        Returns the recorder, the shapes of the standalone parameters, and the gradients at the
        recorded outputs followed by those at the samples' copies of the standalone parameters.
        """
        victims, batch = images.shape[:2]
        samples, views = victims * batch, self.plan.standalone
        standalone = {n: self.model.get_parameter(n) for n in views}
        leaves = {
            n: p.detach().view(views[n]).expand(samples, *views[n][1:]).requires_grad_()
            for n, p in standalone.items()
        }
        recorder = LayerRecorder(
            victims,
            masks=masks,
            names=self.names,
            cloned_calls=self.plan.cloned_calls,
            statistics=self.statistics,
            known=self.known,
        )
        with recorder:
            logits = functional_call(self.model, leaves, (images.flatten(0, 1),))
        loss = recorder.sum_losses(targets.flatten(0, 1), logits) / batch
        outputs = [call.output for call in recorder.calls]
        gradients = torch.autograd.grad(
            loss, [*outputs, *leaves.values()], create_graph=True, materialize_grads=True
        )
        recorder.inner_pass.active = False
        return recorder, {n: p.shape for n, p in standalone.items()}, gradients


def sum_samples(gradient: Tensor, victims: int, shape: torch.Size) -> Tensor:
    """Sums the gradients at the samples' copies of a parameter: ``[N, *shape]``."""
    summed: Tensor = torch.unflatten(gradient, 0, (victims, -1)).sum(1)
    return summed.view(victims, *shape)


def collect_gradients(
    calls: Sequence[LayerCall], output_gradients: Sequence[Tensor], victims: int
) -> tuple[dict[str, Tensor], dict[str, Factors]]:
    """The gradients of all layers' parameters: small ones built, large ones as factors."""
    built: dict[str, Tensor] = {}
    factored: dict[str, Factors] = {}
    for call, gradient in zip(calls, output_gradients, strict=False):
        if call.kind in ("linear", "conv"):
            columns = to_columns(gradient, victims, call.kind)
            if call.bias is not None:
                built[call.bias] = sum_positions(gradient, victims, call.kind)
            if call.weight is not None:
                add_weight_gradient(call, columns, victims, built, factored)
            continue
        axes = shared_axes(call, gradient)
        if call.weight is not None:
            assert call.normalised is not None
            scaled = torch.unflatten(gradient * call.normalised, 0, (victims, -1))
            built[call.weight] = scaled.sum(axes)
        if call.bias is not None:
            built[call.bias] = torch.unflatten(gradient, 0, (victims, -1)).sum(axes)
    return built, factored


def add_weight_gradient(
    call: LayerCall,
    output_gradients: Tensor,
    victims: int,
    built: dict[str, Tensor],
    factored: dict[str, Factors],
) -> None:
    """Adds the weight gradient of a linear layer or convolution to ``built`` or ``factored``."""
    assert call.weight is not None
    dtype, fan_out = output_gradients.dtype, output_gradients.shape[2]
    if call.convolution is None:
        inputs = to_columns(call.layer_input, victims, "linear").to(dtype)
        shape = torch.Size((fan_out, inputs.shape[2]))
        factored[call.weight] = Factors(inputs, output_gradients, shape)
        return
    geometry, groups, columns = call.convolution
    if columns is None:
        inputs = to_columns(unfold(call.layer_input.to(dtype), geometry), victims, "conv")
    else:
        inputs = to_columns(columns.to(dtype), victims, "linear")
    shape = torch.Size((fan_out, call.layer_input.shape[1] // groups, *geometry.kernel))
    if groups == 1:
        factored[call.weight] = Factors(inputs, output_gradients, shape)
        return
    grouped_inputs = torch.unflatten(inputs, 2, (groups, -1))
    grouped_outputs = torch.unflatten(output_gradients, 2, (groups, -1))
    gradient = torch.einsum("nkgc,nkgq->ngcq", grouped_outputs, grouped_inputs)
    built[call.weight] = gradient.reshape(victims, *shape)


def to_columns(x: Tensor, victims: int, kind: str) -> Tensor:
    """``[N, K, features]`` from ``[N * B, ..., features]``; convolutions: ``[N * B, C, ...]``."""
    if kind == "linear":
        return x.reshape(victims, -1, x.shape[-1])
    if len(x) == victims:
        return x.flatten(2).mT
    flat = x.reshape(victims, -1, x.shape[1], x[0, 0].numel())
    return flat.mT.reshape(victims, -1, x.shape[1])


def sum_positions(gradient: Tensor, victims: int, kind: str) -> Tensor:
    """The sum of output gradients over each victim's positions: ``[N, features]``.

    It is taken before they are transposed, so that its derivative lies as they do.
    """
    if kind == "linear":
        return to_columns(gradient, victims, kind).sum(1)
    by_sample = gradient.flatten(2).sum(2)
    return (
        by_sample
        if len(gradient) == victims
        else by_sample.view(victims, -1, by_sample.shape[1]).sum(1)
    )


def shared_axes(call: LayerCall, gradient: Tensor) -> list[int]:
    """The axes of ``[N, B, ...]`` that a norm's scale and shift are shared over."""
    ndim = gradient.ndim + 1
    if call.kind == "layer_norm":
        return list(range(1, ndim - call.normalised_axes))
    return [axis for axis in range(1, ndim) if axis != 2]
