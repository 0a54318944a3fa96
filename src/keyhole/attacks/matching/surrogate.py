"""SME: a client's many local steps matched at one model between the start and the end.

A client takes w0 to w1 in unknown steps. On the line between them there is a surrogate ``w_a = (1 -
a) w0 + a w1``, a in (0, 1), at which the gradient of the client's images is nearly parallel to ``w0
- w1`` (Zhu, Yao and Blaschko 2023). The search matches that gradient, with a among the unknowns:
one backward pass however many steps there were, in whatever order.

Under momentum the images of early steps count more: step s of S, from 0, by ``(1 - m^(S - s)) / (1
- m)``. As nobody knows which images those are, each image's weight is an unknown too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.func import vmap

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.matching.gradients.match import GradientMatch
from keyhole.attacks.matching.gradients.matchers import (
    Backend,
    LoopMatcher,
    Matcher,
    VmapMatcher,
    Weights,
)
from keyhole.attacks.matching.inverting_gradients import InvertingGradients
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.unknowns import Surrogate
from keyhole.attacks.matching.problem import MatchingProblem, take_as_one_step
from keyhole.defenses.capabilities import Capability
from keyhole.threat import Observation


class SurrogateMatcher:
    """Gradients of each victim at a model of its own, between the one sent and the one returned."""

    def __init__(self, plain: VmapMatcher, changes: Weights, surrogate: Tensor | None) -> None:
        self.plain, self.changes, self.surrogate = plain, changes, surrogate
        self.backend = plain.backend

    def at(self, surrogate: Tensor) -> SurrogateMatcher:
        """The same at these places of the line, and with these weights of the images."""
        return SurrogateMatcher(self.plain, self.changes, surrogate)

    def select(self, victims: Tensor) -> SurrogateMatcher:
        changes = {name: change[victims] for name, change in self.changes.items()}
        return SurrogateMatcher(self.plain.select(victims), changes, None)

    def fork(self, victims: Tensor) -> None:
        """None: torch.func's transforms share the model's parameters across threads."""
        return

    def __call__(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> GradientMatch:
        assert self.surrogate is not None
        place, share = Surrogate.split(self.surrogate)
        weighted = targets * share[..., None]
        arguments = (images, weighted, place, self.changes)
        if self.backend == "vmap":
            axes = (0, 0, 0, 0)
            gradients = vmap(self.victim_gradient, axes)(*arguments)
        else:
            found = [
                self.victim_gradient(
                    images[n], weighted[n], place[n], {k: c[n] for k, c in self.changes.items()}
                )
                for n in range(len(images))
            ]
            gradients = {name: torch.stack([each[name] for each in found]) for name in found[0]}
        return self.plain.build_match(gradients, [])

    def victim_gradient(
        self, images: Tensor, targets: Tensor, place: Tensor, change: Weights
    ) -> Weights:
        """The gradient of one victim's images at ``w0 + a (w1 - w0)``."""
        weights = {
            name: weight + place * change[name] if name in change else weight
            for name, weight in self.plain.weights.items()
        }
        return self.plain.step_gradient(weights, images, targets, None)[0]


@dataclass(frozen=True, kw_only=True)
class SurrogateInversion(InvertingGradients):
    """IG at a surrogate between the model sent and the one returned, for clients of many steps.

    Args:
        place: Where on the way from the first model (0) to the last (1) the search starts.
        weighted: Whether each image's weight in the gradient is sought as well.
    """

    backend: Backend = "vmap"
    place: Annotated[float, Field(gt=0, lt=1)] = 0.5
    weighted: bool = True

    name: ClassVar[str] = "sme"
    summary: ClassVar[str] = "matches many local steps at one model between start and end"
    paper: ClassVar[str] = "Zhu, Yao and Blaschko 2023 (SME)"
    needs: ClassVar[str] = "the labels; weights that a client trained for any number of steps"
    combines_rounds: ClassVar[bool] = False
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE})

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        surrogate = Surrogate(self.place, weighted=self.weighted)
        return replace(super().build_parts(problem), surrogate=surrogate)

    def adapt_matcher(self, matcher: Matcher, observations: Sequence[Observation]) -> Matcher:
        plain = matcher if isinstance(matcher, VmapMatcher) else None
        if plain is None:  # a backend that shares one model among victims
            problem = MatchingProblem.from_observation(observations[0])
            plain = LoopMatcher(problem, matcher.targets)  # type: ignore[attr-defined]
        like = plain.problem.like
        names = [n for n in plain.weights if n in observations[0].update.change]
        changes = {
            n: torch.stack([o.update.change[n] for o in observations]).to(like) for n in names
        }
        return SurrogateMatcher(plain, changes, None)

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        yield from super().stream([take_as_one_step(o) for o in observations], checkpointer)
