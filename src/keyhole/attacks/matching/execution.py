"""Three ways to get many victims' gradients: factored, vmap over grad, and one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from keyhole.attacks.matching.anatomy import REFUSALS, DoesNotFactor
from keyhole.attacks.matching.dissection import dissect
from keyhole.attacks.matching.factored import FactoredMatcher
from keyhole.attacks.matching.match import BuiltMatch, Match, Targets
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.tape import Statistics, Tape
from keyhole.attacks.matching.thin import thinned
from keyhole.errors import one_line

Way = Literal["auto", "factored", "vmap", "loop"]
Weights = dict[str, Tensor]

BENT = 1e-2
"""Relative error of second derivatives from which vmap counts as wrong."""


class Matcher(Protocol):
    """Compares the gradients of dummy batches with those observed."""

    how: str

    def __call__(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> Match: ...

    def select(self, victims: Tensor) -> Matcher: ...

    def fork(self, victims: Tensor) -> Matcher | None:
        """The same for some victims, safe to run beside others; None where that cannot be."""


class VmapMatcher:
    """Per-victim gradients by ``vmap`` over ``grad``; local steps are unrolled."""

    how = "vmap"

    def __init__(self, problem: Problem, targets: Targets, *, statistics: bool = False) -> None:
        self.problem, self.targets, self.statistics = problem, targets, statistics
        self.weights = {n: p.detach() for n, p in problem.model.named_parameters()}
        self.running = running_statistics(problem) if statistics else []

    def select(self, victims: Tensor) -> VmapMatcher:
        targets = self.targets.select(victims)
        return type(self)(self.problem, targets, statistics=self.statistics)

    def fork(self, victims: Tensor) -> None:
        """torch.func's transforms share the model's parameters and are not run side by side."""
        return

    def __call__(self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None) -> Match:
        if masks is None:
            found, seen = vmap(lambda x, t: self.one(x, t, None))(images, targets)
        else:
            found, seen = vmap(self.one)(images, targets, tuple(masks))
        return self._match(found, seen)

    def _match(self, found: Weights, seen: Sequence[tuple[Tensor, Tensor]]) -> Match:
        statistics = [
            Statistics(mean.flatten(1), var.flatten(1), *running)
            for (mean, var), running in zip(seen, self.running, strict=False)
        ]
        return BuiltMatch(found, self.targets, statistics)

    def one(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> tuple[Weights, list[tuple[Tensor, Tensor]]]:
        """One victim's mean gradient over its local steps, and what its BatchNorms saw."""
        weights = self.weights
        seen: list[tuple[Tensor, Tensor]] = []
        for step in range(self.problem.steps):
            batch = self.problem.batch(step)
            drawn = None if masks is None else [m[self.drawn(step)] for m in masks]
            gradient, seen = self.gradient(weights, images[batch], targets[batch], drawn)
            if self.problem.steps == 1:
                return gradient, seen
            lr = self.problem.lr
            weights = {n: w - lr * gradient[n] for n, w in weights.items()}
        whole = self.problem.lr * self.problem.steps
        return {n: (self.weights[n] - w) / whole for n, w in weights.items()}, seen

    def drawn(self, step: int) -> slice:
        """The masks that were drawn in a step."""
        local = self.problem.local_batch
        return slice(step * local, (step + 1) * local)

    def gradient(
        self, weights: Weights, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> tuple[Weights, list[tuple[Tensor, Tensor]]]:
        """The gradient of one step at ``weights``."""
        found: tuple[Weights, list[tuple[Tensor, Tensor]]]
        found = grad(self.loss, has_aux=True)(weights, images, targets, masks)
        return found

    def loss(
        self, weights: Weights, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The client's mean cross-entropy; buffers are copies, so that none is ever changed."""
        model = self.problem.model
        buffers = {n: b.clone() for n, b in model.named_buffers()}
        tape = Tape(1, masks=masks, statistics=self.statistics)
        with tape:
            logits = functional_call(model, {**weights, **buffers}, (images,))
        loss = -(targets * logits.log_softmax(-1)).sum() / len(images)
        return loss, [(s.mean, s.var) for s in tape.statistics]


class LoopMatcher(VmapMatcher):
    """The same, one victim after the other, by plain autograd: takes any model."""

    how = "loop"

    def __call__(self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None) -> Match:
        each = [
            self.one(images[n], targets[n], None if masks is None else [m[n] for m in masks])
            for n in range(len(images))
        ]
        found = {n: torch.stack([g[n] for g, _ in each]) for n in self.weights}
        seen = [
            (torch.stack([s[i][0] for _, s in each]), torch.stack([s[i][1] for _, s in each]))
            for i in range(len(each[0][1]))
        ]
        return self._match(found, seen)

    def gradient(
        self, weights: Weights, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> tuple[Weights, list[tuple[Tensor, Tensor]]]:
        tracked = {
            n: w if w.requires_grad else w.clone().requires_grad_() for n, w in weights.items()
        }
        loss, seen = self.loss(tracked, images, targets, masks)
        found = torch.autograd.grad(
            loss, list(tracked.values()), create_graph=True, materialize_grads=True
        )
        return dict(zip(tracked, found, strict=True)), seen


def running_statistics(problem: Problem) -> list[tuple[Tensor, Tensor]]:
    """The running statistics of every BatchNorm, in the order in which they are reached."""
    tape = Tape(1, statistics=True)
    problem.probed(tape)
    return [(s.running_mean, s.running_var) for s in tape.statistics]


def choose(
    problem: Problem,
    targets: Targets,
    *,
    way: Way = "auto",
    statistics: bool = False,
    whole: bool = False,
    half: bool = False,
) -> tuple[Matcher, list[str]]:
    """The fastest matcher that takes the model, and one line for each that does not.

    ``whole``: the objective needs whole gradients, so that targets are not kept as thin factors.
    ``half``: the factored way runs the model in bfloat16.
    """
    notes: list[str] = []
    if way in ("auto", "factored"):
        try:
            if problem.steps > 1:
                raise DoesNotFactor(f"{problem.steps} local steps are unrolled")
            found = dissect(problem.model, problem.knowledge.shape)
            samples = problem.knowledge.batch_size
            ranks = {n: samples * k for n, k in found.positions.items()}
            thin = thinned(targets, ranks, whole=whole)
            matcher = FactoredMatcher(problem.model, found, thin, statistics=statistics, half=half)
            return matcher, notes
        except DoesNotFactor as error:
            if way == "factored":
                raise DoesNotFactor(f"the model cannot be matched factored: {error}") from None
            if problem.steps == 1:
                notes.append(f"matched by vmap, not factored: {error}")
    if way in ("auto", "vmap"):
        mapped = VmapMatcher(problem, targets, statistics=statistics)
        why = refusal(mapped, problem)
        if why is None:
            return mapped, notes
        if way == "vmap":
            raise DoesNotFactor(f"the model cannot be matched by vmap: {why}")
        notes = [f"matched one victim at a time, by a loop: vmap cannot take the model ({why})"]
    return LoopMatcher(problem, targets, statistics=statistics), notes


def refusal(matcher: VmapMatcher, problem: Problem) -> str | None:
    """Why ``vmap`` cannot take the model; None where it can.

    Its second derivatives are compared with the loop's: of some layers vmap gets them wrong.
    """
    knowledge = problem.knowledge
    samples = (2, knowledge.batch_size)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(*samples, *knowledge.shape, generator=draw).to(problem.like)
    labels = torch.arange(samples[0] * samples[1]).view(samples) % problem.outputs
    targets = torch.eye(problem.outputs)[labels].to(problem.like)
    try:
        mapped = bend(matcher, images, targets)
    except REFUSALS as error:
        return one_line(error)
    looped = bend(LoopMatcher(problem, matcher.targets), images, targets)
    if (mapped - looped).norm() > BENT * looped.norm():
        return "its second derivatives come out wrong"
    return None


@torch.enable_grad()
def bend(matcher: VmapMatcher, images: Tensor, targets: Tensor) -> Tensor:
    """How the gradients' lengths, each parameter's alike, depend on the images."""
    tracked = images.clone().requires_grad_()
    match = matcher(tracked, targets, None)
    squares = [match.gradient(name).square().sum() for name in match.names]
    lengths = [square / square.detach().clamp(min=1e-20) for square in squares]
    found: Tensor = torch.autograd.grad(torch.stack(lengths).sum(), tracked)[0]
    return found
