"""Gradient matching without per-victim gradients.

A linear or unfolded convolutional layer with inputs U ``[K, Q]`` and output gradients D ``[K, C]``
(K positions of a victim's batch) has the weight gradient ``G = D^T U``. What the objectives ask for
can be had without building it:

    <G, T> = sum(D * (U T^T)),        |G|^2 = sum((D D^T) * (U U^T)),

and a target T that came from K positions has rank K at most: where K is small it is kept as two
thin factors, ``T = P R``, and ``<G, T> = sum((D P) * (U R^T))``. Which way is cheaper is decided
layer by layer. Scales, shifts, biases, position embeddings and class tokens are small: built.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from keyhole.attacks.matching.anatomy import Anatomy
from keyhole.attacks.matching.lens import Lens
from keyhole.attacks.matching.match import Match
from keyhole.attacks.matching.tape import Call, Tape
from keyhole.attacks.matching.thin import SMALL, ThinTargets
from keyhole.attacks.matching.unfolding import unfold


@dataclass(frozen=True)
class Factors:
    """One layer's columns: inputs ``[N, K, Q]`` and output gradients ``[N, K, C]``."""

    inputs: Tensor
    outputs: Tensor
    shape: torch.Size

    @property
    def build_is_cheaper(self) -> bool:
        """Whether ``D^T U`` costs less than the two Gram matrices, or next to nothing."""
        (_, columns, fan_in), fan_out = self.inputs.shape, self.outputs.shape[2]
        size = fan_in * fan_out
        return size <= SMALL or size < columns * (fan_in + fan_out)

    def build(self) -> Tensor:
        return (self.outputs.mT @ self.inputs).view(-1, *self.shape)

    def square(self) -> Tensor:
        grams = (self.outputs @ self.outputs.mT) * (self.inputs @ self.inputs.mT)
        return total(grams)

    def square_through(self, lens: Lens) -> Tensor:
        """``|G'|^2``: of a lens on frequencies, ``|G|^2`` less what it takes of the dimmed rows.

        ``(1 - keep^2) |G P|^2``, of which only those few rows are built.
        """
        if lens.bins is None:
            return replace(self, outputs=self.outputs * lens.keep[:, None]).square()
        assert lens.rows is not None
        taken = (1 - lens.keep.square()).gather(1, lens.rows).sqrt()
        places = lens.rows[:, None].expand(-1, self.outputs.shape[1], -1)
        outputs = self.outputs.gather(2, places) * taken[:, None].to(self.outputs)
        kernels = self.inputs.unflatten(2, (-1, len(lens.bins)))  # type: ignore[no-untyped-call]
        inputs = (kernels @ lens.bins.to(self.inputs)).flatten(2)
        return self.square() - total((outputs.mT @ inputs).square())

    def dot(self, target: Tensor) -> Tensor:
        answered = self.inputs @ target.flatten(2).to(self.inputs).mT
        return total(self.outputs * answered)

    def dot_thin(self, left: Tensor, right: Tensor) -> Tensor:
        """With a target ``left @ right``, ``[N, C, r] @ [N, r, Q]``."""
        lefts = self.outputs @ left.to(self.outputs)
        rights = self.inputs @ right.to(self.inputs).mT
        return total(lefts * rights)


def total(x: Tensor) -> Tensor:
    """Sums all but the victim axis, in float32 at least."""
    return x.flatten(1).sum(1, dtype=torch.promote_types(x.dtype, torch.float32))


class FactoredMatch(Match):
    """A match whose large gradients stay factors until someone asks for them."""

    def __init__(self, small: dict[str, Tensor], large: dict[str, Factors], targets: ThinTargets):
        super().__init__(targets)
        self.small, self.large = small, large
        self.names = [n for n in targets.squares if n in small or n in large]
        self.thin = targets.thin

    def gradient(self, name: str) -> Tensor:
        found = self.small[name] if name in self.small else self.large[name].build()
        return found.to(torch.promote_types(found.dtype, torch.float32))

    def is_built(self, name: str) -> bool:
        return name in self.small or (name not in self.thin and self.large[name].build_is_cheaper)

    def products(self, name: str) -> tuple[Tensor, Tensor]:
        if self.is_built(name):
            target = self.target(name)
            gradient = self.seen(name).to(target)
            return total(gradient * target), total(gradient.square())
        factors = self.large[name]
        if name in self.targets.lenses:
            lens = self.targets.lenses[name]
            return factors.dot(self.targets.twice(name)), factors.square_through(lens)
        if name in self.thin:
            return factors.dot_thin(*self.thin[name]), factors.square()
        return factors.dot(self.target(name)), factors.square()


class FactoredMatcher:
    """Matches the gradients of one local step, all victims in one pass through the model."""

    how = "factored"

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy,
        targets: ThinTargets,
        *,
        statistics: bool = False,
        half: bool = False,
    ) -> None:
        self.model = model
        self.anatomy = anatomy
        self.targets = targets
        self.statistics = statistics
        self.half = half
        self.names = {id(p): name for name, p in model.named_parameters()}

    def select(self, victims: Tensor) -> FactoredMatcher:
        targets = self.targets.select(victims)
        return FactoredMatcher(
            self.model, self.anatomy, targets, statistics=self.statistics, half=self.half
        )

    def fork(self, victims: Tensor) -> FactoredMatcher:
        """Some of the victims, with a model of their own: parameters are swapped while it runs."""
        forked = self.select(victims)
        return FactoredMatcher(
            copy.deepcopy(self.model),
            self.anatomy,
            forked.targets,
            statistics=self.statistics,
            half=self.half,
        )

    def __call__(self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None) -> Match:
        """``images [N, B, C, H, W]``, ``targets [N, B, classes]``, masks ``[N, B, ...]``."""
        flat = None if masks is None else [m.flatten(0, 1) for m in masks]
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.half):
            tape, leaves, found = forward_and_back(
                self.model, self.anatomy, self.names, images, targets, flat, self.statistics
            )
        small, large = gather(tape.calls, found, len(images))
        for name, gradient in zip(leaves, found[len(tape.calls) :], strict=True):
            small[name] = per_victim(gradient, len(images), leaves[name])
        match = FactoredMatch(small, large, self.targets)
        match.statistics = tape.statistics
        return match


def forward_and_back(
    model: nn.Module,
    anatomy: Anatomy,
    names: dict[int, str],
    images: Tensor,
    targets: Tensor,
    masks: Sequence[Tensor] | None,
    statistics: bool,
) -> tuple[Tape, dict[str, torch.Size], tuple[Tensor, ...]]:
    """The tape of a forward pass, the plain parameters, and the gradients at both."""
    victims, batch = images.shape[:2]
    samples = victims * batch
    plain = {n: model.get_parameter(n) for n in anatomy.plain}
    leaves = {
        n: p.detach().view(anatomy.plain[n]).expand(samples, *anatomy.plain[n][1:]).requires_grad_()
        for n, p in plain.items()
    }
    tape = Tape(victims, masks=masks, names=names, copied=anatomy.copied, statistics=statistics)
    with tape:
        logits = functional_call(model, leaves, (images.flatten(0, 1),))
    loss = -(targets.flatten(0, 1) * logits.log_softmax(-1)).sum() / batch
    outputs = [call.output for call in tape.calls]
    found = torch.autograd.grad(
        loss, [*outputs, *leaves.values()], create_graph=True, materialize_grads=True
    )
    return tape, {n: p.shape for n, p in plain.items()}, found


def per_victim(gradient: Tensor, victims: int, shape: torch.Size) -> Tensor:
    """Sums the gradients at the samples' copies of a parameter: ``[N, *shape]``."""
    summed: Tensor = torch.unflatten(gradient, 0, (victims, -1)).sum(1)
    return summed.view(victims, *shape)


def gather(
    calls: Sequence[Call], gradients: Sequence[Tensor], victims: int
) -> tuple[dict[str, Tensor], dict[str, Factors]]:
    """Each layer's parameter gradients: small ones built, large ones as factors."""
    small: dict[str, Tensor] = {}
    large: dict[str, Factors] = {}
    for call, at_output in zip(calls, gradients, strict=False):
        if call.kind in ("linear", "conv"):
            outputs = columns(at_output, victims, call.kind)
            if call.bias is not None:
                small[call.bias] = outputs.sum(1)
            if call.weight is not None:
                add_weight(call, outputs, victims, small, large)
            continue
        axes = norm_axes(call, at_output)
        if call.weight is not None:
            scaled = torch.unflatten(at_output * call.made, 0, (victims, -1))
            small[call.weight] = scaled.sum(axes)
        if call.bias is not None:
            small[call.bias] = torch.unflatten(at_output, 0, (victims, -1)).sum(axes)
    return small, large


def add_weight(
    call: Call,
    outputs: Tensor,
    victims: int,
    small: dict[str, Tensor],
    large: dict[str, Factors],
) -> None:
    assert call.weight is not None
    if call.kind == "linear":
        inputs = columns(call.received, victims, "linear").to(outputs.dtype)
        shape = torch.Size((outputs.shape[2], inputs.shape[2]))
        large[call.weight] = Factors(inputs, outputs, shape)
        return
    groups, geometry = call.geometry["groups"], call.geometry["place"]
    if call.columns is None:
        unfolded = columns(unfold(call.received.to(outputs.dtype), geometry), victims, "conv")
    else:
        unfolded = columns(call.columns.to(outputs.dtype), victims, "linear")
    fan_in = call.received.shape[1] // groups
    shape = torch.Size((outputs.shape[2], fan_in, *geometry.kernel))
    if groups == 1:
        large[call.weight] = Factors(unfolded, outputs, shape)
        return
    inputs = torch.unflatten(unfolded, 2, (groups, -1))
    grouped = torch.unflatten(outputs, 2, (groups, -1))
    built = torch.einsum("nkgc,nkgq->ngcq", grouped, inputs)
    small[call.weight] = built.reshape(victims, *shape)


def columns(x: Tensor, victims: int, kind: str) -> Tensor:
    """``[N, K, features]`` from ``[N * B, ..., features]``; convolutions: ``[N * B, C, ...]``."""
    if kind == "linear":
        return x.reshape(victims, -1, x.shape[-1])
    flat = x.reshape(victims, -1, x.shape[1], x[0, 0].numel())
    return flat[:, 0].mT if flat.shape[1] == 1 else flat.mT.reshape(victims, -1, x.shape[1])


def norm_axes(call: Call, gradient: Tensor) -> list[int]:
    """The axes of ``[N, B, ...]`` that a norm's scale and shift are shared over."""
    ndim = gradient.ndim + 1
    if call.kind == "layer_norm":
        return list(range(1, ndim - call.geometry["ndim"]))
    return [axis for axis in range(1, ndim) if axis != 2]
