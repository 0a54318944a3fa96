"""The best that attacks have seen so far of one client's images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from keyhole import metrics
from keyhole.auditing.scoring import to_pixels
from keyhole.auditing.self_check import NotTried, SelfCheck, describe_outcome
from keyhole.data import ImageSet, Normalisation


class BestReading:
    """Scores what attacks find of ``images`` in [0, 1], and keeps the best of it.

    An image is read if its SSIM reaches ``threshold`` and exceeds that of a plain grey image.
    """

    def __init__(self, images: Tensor, data: ImageSet, threshold: float) -> None:
        self.images, self.data, self.threshold = images.double().cpu(), data, threshold
        self.null: list[float] = metrics.ssim(
            paint_mean_colour(self.images), self.images, data_range=1.0
        ).tolist()
        self.attack: str | None = None
        self.ssim: list[float] = []
        self.tried: list[str] = []
        self.not_tried: list[NotTried] = []

    def add(
        self,
        name: str,
        found: Tensor | None,
        normalisation: Normalisation | None = None,
        *,
        enough: bool = True,
    ) -> bool:
        """Scores what an attack found, and returns whether it counts as tried.

        An attack that had not ``enough`` time counts only if it read an image.
        """
        scores = self.score(found, normalisation)
        if not enough and not any(self.are_read(scores)):
            return False
        self.tried.append(name)
        if scores and self.rank(scores) > self.rank(self.ssim):
            self.attack, self.ssim = name, scores
        return True

    def score(
        self, found: Tensor | None, normalisation: Normalisation | None = None
    ) -> list[float]:
        """The SSIM of each of the client's images, with grey for one that was not found.

        [] if nothing was found.
        """
        if found is None or not len(found):
            return []
        pixels = torch.cat(
            [to_pixels(found.cpu(), self.data, normalisation), paint_mean_colour(self.images)[:1]]
        )
        chosen = metrics.assign_reconstructions(pixels[:-1], self.images)
        scores: list[float] = metrics.ssim(pixels[chosen], self.images, data_range=1.0).tolist()
        return scores

    def are_read(self, scores: Sequence[float]) -> list[bool]:
        """Which images count as read."""
        return [
            s >= self.threshold and s > n
            for s, n in zip(scores, self.null if scores else [], strict=True)
        ]

    def rank(self, scores: Sequence[float]) -> tuple[int, float]:
        """How much was seen: images read, then the clearest."""
        return sum(self.are_read(scores)), max(scores, default=-1.0)

    @property
    def leaks(self) -> bool:
        return any(self.are_read(self.ssim))

    def to_self_check(self) -> SelfCheck:
        read = self.are_read(self.ssim)
        return SelfCheck(
            leaks=any(read) if self.tried else None,
            attack=self.attack,
            ssim=tuple(round(s, 4) for s in self.ssim),
            threshold=self.threshold,
            tried=tuple(self.tried),
            words=describe_outcome(self.attack, read, self.tried, self.not_tried),
            not_tried=tuple(self.not_tried),
        )


def paint_mean_colour(images: Tensor) -> Tensor:
    """Images of one colour, the mean of all: they show nothing."""
    return images.mean((0, 2, 3), keepdim=True).expand_as(images)
