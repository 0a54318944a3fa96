"""Chooses the fastest backend that takes a model."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.anchored_norm import KnownStatistics
from keyhole.attacks.matching.gradients.factor_plan import MODEL_ERRORS, DoesNotFactor, FactorPlan
from keyhole.attacks.matching.gradients.factor_probe import probe_factors
from keyhole.attacks.matching.gradients.factored import FactoredMatcher
from keyhole.attacks.matching.gradients.low_rank import factor_targets
from keyhole.attacks.matching.gradients.match import Targets
from keyhole.attacks.matching.gradients.matchers import Backend, LoopMatcher, Matcher, VmapMatcher
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.errors import one_line

VMAP_TOLERANCE = 1e-2
"""Relative error of second derivatives above which vmap counts as wrong."""


def choose_matcher(
    problem: MatchingProblem,
    targets: Targets,
    *,
    backend: Backend = "auto",
    statistics: bool = False,
    known: KnownStatistics | None = None,
    needs_full_gradients: bool = False,
    bfloat16: bool = False,
) -> tuple[Matcher, list[str]]:
    """The fastest matcher that takes the model, and one line for each that does not.

    ``known`` are the moments of the victims' batches, where uploaded buffers tell them.
    With ``needs_full_gradients`` targets are not stored as low-rank factors. With ``bfloat16`` the
    factored backend runs the model in bfloat16.
    """
    notes: list[str] = []
    if backend in ("auto", "factored"):
        try:
            plan = plan_factors(problem)
        except DoesNotFactor as error:
            if backend == "factored":
                raise DoesNotFactor(f"the model cannot be matched factored: {error}") from None
            if problem.steps == 1:
                notes.append(f"matched by vmap, not factored: {error}")
        else:
            ranks = {n: problem.knowledge.batch_size * k for n, k in plan.positions.items()}
            factored = factor_targets(targets, ranks, needs_full_gradients=needs_full_gradients)
            matcher = FactoredMatcher(
                problem.model,
                plan,
                factored,
                statistics=statistics,
                known=known,
                bfloat16=bfloat16,
            )
            return matcher, notes
    if backend in ("auto", "vmap"):
        mapped = VmapMatcher(problem, targets, statistics=statistics, known=known)
        reason = why_vmap_fails(mapped, problem)
        if reason is None:
            return mapped, notes
        if backend == "vmap":
            raise DoesNotFactor(f"the model cannot be matched by vmap: {reason}")
        notes = [f"matched one victim at a time, by a loop: vmap cannot take the model ({reason})"]
    return LoopMatcher(problem, targets, statistics=statistics, known=known), notes


def plan_factors(problem: MatchingProblem) -> FactorPlan:
    """Raises :class:`DoesNotFactor` if the model's gradients cannot be factored."""
    if problem.steps > 1:
        raise DoesNotFactor(f"{problem.steps} local steps are unrolled")
    return probe_factors(problem.model, problem.knowledge.shape)


def why_vmap_fails(matcher: VmapMatcher, problem: MatchingProblem) -> str | None:
    """Why ``vmap`` cannot take the model; None if it can.

    Compares second derivatives with the loop's, because vmap gets them wrong for some layers.
    """
    knowledge = problem.knowledge
    plain = VmapMatcher(problem, matcher.targets)
    samples = (2, knowledge.batch_size)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(*samples, *knowledge.shape, generator=generator).to(problem.like)
    labels = torch.arange(samples[0] * samples[1]).view(samples) % problem.outputs
    targets = torch.eye(problem.outputs)[labels].to(problem.like)
    try:
        mapped = norm_derivative(plain, images, targets)
    except MODEL_ERRORS as error:
        return one_line(error)
    loop = LoopMatcher(problem, plain.targets)
    looped = norm_derivative(loop, images, targets)
    if (mapped - looped).norm() > VMAP_TOLERANCE * looped.norm():
        return "its second derivatives come out wrong"
    return None


@torch.enable_grad()
def norm_derivative(matcher: VmapMatcher, images: Tensor, targets: Tensor) -> Tensor:
    """The derivative by the images of ``sum |g|^2``, over the gradients g of all parameters.

    Each term is divided by its own value, so that every parameter counts alike.
    """
    tracked = images.clone().requires_grad_()
    match = matcher(tracked, targets, None)
    squares = [match.gradient(name).square().sum() for name in match.names]
    relative = [square / square.detach().clamp(min=1e-20) for square in squares]
    derivative: Tensor = torch.autograd.grad(torch.stack(relative).sum(), tracked)[0]
    return derivative
