"""Three backends for the gradients of many victims: factored, vmap over grad, and a loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from keyhole.attacks.matching.gradients.anchored_norm import (
    InnerPass,
    KnownMoments,
    KnownStatistics,
)
from keyhole.attacks.matching.gradients.layer_call import BatchStatistics
from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder
from keyhole.attacks.matching.gradients.match import BuiltMatch, GradientMatch, Targets
from keyhole.attacks.matching.problem import MatchingProblem

if TYPE_CHECKING:
    from keyhole.optimisers import State

Backend = Literal["auto", "factored", "vmap", "loop"]
Weights = dict[str, Tensor]

BatchMoments = tuple[Tensor, Tensor]
"""Mean and variance of one BatchNorm's batch."""


class Matcher(Protocol):
    """Compares the gradients of dummy batches with the target gradients."""

    backend: str

    def __call__(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> GradientMatch: ...

    def select(self, victims: Tensor) -> Matcher: ...

    def fork(self, victims: Tensor) -> Matcher | None:
        """A matcher for some victims that may run in its own thread; None if that is not safe."""


@runtime_checkable
class MovableMatcher(Protocol):
    """A matcher that takes gradients at other weights than those that were sent."""

    def at(self, surrogate: Tensor) -> Matcher: ...


class VmapMatcher:
    """Computes per-victim gradients by ``vmap`` over ``grad``; local steps are unrolled."""

    backend = "vmap"

    def __init__(
        self,
        problem: MatchingProblem,
        targets: Targets,
        *,
        statistics: bool = False,
        known: KnownStatistics | None = None,
    ) -> None:
        self.problem, self.targets, self.statistics = problem, targets, statistics
        self.known = known
        every = {n: p.detach() for n, p in problem.model.named_parameters()}
        trained = set(every) if problem.trained is None else problem.trained
        self.weights = {n: p for n, p in every.items() if n in trained}
        self.frozen = {n: p for n, p in every.items() if n not in trained}
        self.running = running_statistics(problem) if statistics else []

    def select(self, victims: Tensor) -> VmapMatcher:
        targets = self.targets.select(victims)
        known = None if self.known is None else self.known.select(victims)
        return type(self)(self.problem, targets, statistics=self.statistics, known=known)

    def fork(self, victims: Tensor) -> None:
        """None: torch.func's transforms share the model's parameters across threads."""
        return

    def __call__(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> GradientMatch:
        known = self.known_moments()
        axes = (0, 0, None if masks is None else 0, None if known is None else 0)
        own_masks = None if masks is None else tuple(masks)
        gradients, moments = vmap(self.victim_gradient, axes)(images, targets, own_masks, known)
        return self.build_match(gradients, moments)

    def known_moments(self) -> list[BatchMoments] | None:
        """The known moments of every victim's batch, ``[N, C]`` each; None: they are not known."""
        return None if self.known is None else [(m.mean, m.var) for m in self.known.moments]

    def build_match(self, gradients: Weights, moments: Sequence[BatchMoments]) -> GradientMatch:
        """The match of these gradients of all victims, and of their batch moments."""
        statistics = [
            BatchStatistics(mean.flatten(1), var.flatten(1), *running, known)
            for (mean, var), running, known in zip(
                moments, self.running, self._known_by_norm(), strict=False
            )
        ]
        return BuiltMatch(gradients, self.targets, statistics)

    def _known_by_norm(self) -> list[KnownMoments | None]:
        """The known moments of each BatchNorm that has running statistics."""
        if self.known is None:
            return [None] * len(self.running)
        return list(self.known.moments)

    def victim_gradient(
        self,
        images: Tensor,
        targets: Tensor,
        masks: Sequence[Tensor] | None,
        known: Sequence[BatchMoments] | None = None,
    ) -> tuple[Weights, list[BatchMoments]]:
        """One victim's mean gradient over its local steps, and its BatchNorms' batch moments.

        Where uploaded buffers tell the moments, they are the mean over the steps, weighted as the
        buffers were; else those of the last step.
        """
        weights = self.weights
        state: State = {}
        moments: list[BatchMoments] = []
        whole: list[BatchMoments] = []
        optimiser, lr = self.problem.optimiser, self.problem.lr
        augmented = len(images) != self.problem.knowledge.batch_size
        for step in range(self.problem.steps):
            batch = slice(None) if augmented else self.problem.batch_slice(step)
            own_masks = None if masks is None else [m[self.mask_slice(step)] for m in masks]
            gradient, moments = self.step_gradient(
                weights, images[batch], targets[batch], own_masks, known
            )
            if self.problem.steps == 1:
                return gradient, moments
            if self.known is not None:
                whole = add_moments(whole, moments, [s[step] for s in self.known.shares])
            weights, state = optimiser.step(weights, gradient, state, lr=lr, number=step)
        scale = lr * self.problem.steps
        return {n: (self.weights[n] - w) / scale for n, w in weights.items()}, whole or moments

    def mask_slice(self, step: int) -> slice:
        """The dropout masks that the client drew in a step."""
        return slice(self.problem.first_sample(step), self.problem.first_sample(step + 1))

    def step_gradient(
        self,
        weights: Weights,
        images: Tensor,
        targets: Tensor,
        masks: Sequence[Tensor] | None,
        known: Sequence[BatchMoments] | None = None,
    ) -> tuple[Weights, list[BatchMoments]]:
        """The gradient of one step at ``weights``, and the BatchNorms' batch moments."""
        inner = InnerPass()
        result: tuple[Weights, list[BatchMoments]]
        result = grad(partial(self.loss, known=known, inner=inner), has_aux=True)(
            weights, images, targets, masks
        )
        inner.active = False
        return result

    def loss(
        self,
        weights: Weights,
        images: Tensor,
        targets: Tensor,
        masks: Sequence[Tensor] | None,
        *,
        known: Sequence[BatchMoments] | None = None,
        inner: InnerPass | None = None,
    ) -> tuple[Tensor, list[BatchMoments]]:
        """The client's mean cross-entropy; buffers are copied so that none is changed."""
        model = self.problem.model
        buffers = {n: b.clone() for n, b in model.named_buffers()}
        recorder = LayerRecorder(
            1, masks=masks, statistics=self.statistics, known=self._of_one(known), inner=inner
        )
        with recorder:
            logits = functional_call(model, {**self.frozen, **weights, **buffers}, (images,))
        loss = recorder.sum_losses(targets, logits) / len(images)
        return loss, [(s.mean, s.var) for s in recorder.statistics]

    def _of_one(self, known: Sequence[BatchMoments] | None) -> KnownStatistics | None:
        """One victim's known moments ``[C]``, as a recorder takes them."""
        if self.known is None or known is None:
            return None
        moments = tuple(KnownMoments(mean[None], var[None]) for mean, var in known)
        return KnownStatistics(moments, self.known.shares, self.known.anchored)


class LoopMatcher(VmapMatcher):
    """Computes the gradients of one victim after another by plain autograd: takes any model."""

    backend = "loop"

    def __call__(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> GradientMatch:
        results, known = [], self.known_moments()
        for n in range(len(images)):
            own_masks = None if masks is None else [m[n] for m in masks]
            own = None if known is None else [(mean[n], var[n]) for mean, var in known]
            results.append(self.victim_gradient(images[n], targets[n], own_masks, own))
        gradients = {n: torch.stack([g[n] for g, _ in results]) for n in self.weights}
        moments = [
            (torch.stack([s[i][0] for _, s in results]), torch.stack([s[i][1] for _, s in results]))
            for i in range(len(results[0][1]))
        ]
        return self.build_match(gradients, moments)

    def step_gradient(
        self,
        weights: Weights,
        images: Tensor,
        targets: Tensor,
        masks: Sequence[Tensor] | None,
        known: Sequence[BatchMoments] | None = None,
    ) -> tuple[Weights, list[BatchMoments]]:
        inner = InnerPass()
        tracked = {
            n: w if w.requires_grad else w.clone().requires_grad_() for n, w in weights.items()
        }
        loss, moments = self.loss(tracked, images, targets, masks, known=known, inner=inner)
        gradients = torch.autograd.grad(
            loss, list(tracked.values()), create_graph=True, materialize_grads=True
        )
        inner.active = False
        return dict(zip(tracked, gradients, strict=True)), moments


def add_moments(
    total: list[BatchMoments], moments: Sequence[BatchMoments], shares: Sequence[float]
) -> list[BatchMoments]:
    """``total + share * moments`` of every BatchNorm; an empty total is 0."""
    scaled = [(m * s, v * s) for (m, v), s in zip(moments, shares, strict=True)]
    if not total:
        return scaled
    pairs = zip(total, scaled, strict=True)
    return [(mean + m, var + v) for (mean, var), (m, v) in pairs]


def running_statistics(problem: MatchingProblem) -> list[BatchMoments]:
    """Running mean and variance of every BatchNorm, in the order of the forward pass."""
    recorder = LayerRecorder(1, statistics=True)
    problem.probe(recorder)
    return [(s.running_mean, s.running_var) for s in recorder.statistics]
