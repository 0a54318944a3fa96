"""Several rounds of the same clients, each matched at its own global weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from keyhole.attacks.matching.gradients.match import GradientMatch
from keyhole.attacks.matching.gradients.matchers import Matcher


class RoundsMatcher:
    """Compares the gradients of the same dummy images in several rounds.

    The match is that of the last round, and holds those of the others.
    """

    def __init__(self, last: Matcher, others: Sequence[Matcher]) -> None:
        self.last, self.others, self.backend = last, tuple(others), last.backend

    def __call__(
        self, images: Tensor, targets: Tensor, masks: Sequence[Tensor] | None
    ) -> GradientMatch:
        match = self.last(images, targets, masks)
        match.others = [other(images, targets, masks) for other in self.others]
        return match

    def select(self, victims: Tensor) -> RoundsMatcher:
        return RoundsMatcher(
            self.last.select(victims), [other.select(victims) for other in self.others]
        )

    def fork(self, victims: Tensor) -> RoundsMatcher | None:
        last, others = self.last.fork(victims), [other.fork(victims) for other in self.others]
        safe = [other for other in others if other is not None]
        return None if last is None or len(safe) < len(others) else RoundsMatcher(last, safe)
