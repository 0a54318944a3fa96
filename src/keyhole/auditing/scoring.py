"""The one place where the truth enters: matching, denormalising, clamping, measuring."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from keyhole import metrics
from keyhole.attacks import Reconstruction
from keyhole.auditing.resolve import ResolvedStage
from keyhole.data import ImageSet, Normalisation
from keyhole.metrics.builtin import MEASURED
from keyhole.metrics.gallery import nearest_signatures, signature
from keyhole.metrics.perceptual import why_unavailable
from keyhole.seeds import generator

READ_SSIM = 0.5
"""An image counts as read from this SSIM on, if it also points to itself in the gallery and no
null baseline comes as close."""

Scores = dict[str, list[float]]


@dataclass(frozen=True)
class Seen:
    """One victim's images as the attacker saw them, in [0, 1] and in the truth's order."""

    images: Tensor | None
    scores: Scores
    film: Tensor | None = None
    """The first image as it appeared over the iterations, ``[F, C, H, W]``."""
    film_at: tuple[int, ...] = ()


class Judge:
    """Scores reconstructions of one stage's victims, on the device the stage runs on."""

    def __init__(self, made: ResolvedStage, data_dir: str | None = None) -> None:
        self.data: ImageSet = made.data
        self.data_dir = data_dir
        self.victims = made.victims
        self.seed = made.seed
        self.extra_metrics = made.metrics
        self.device = next(made.model.parameters()).device
        self.public = made.data.images(made.public).to(self.device)
        self.public_signatures = signature(self.public)
        shown = [signature(self.truth(victim)) for victim in range(len(made.victims))]
        self.gallery = torch.cat([*shown, self.public_signatures])
        missing = why_unavailable(min(made.data.size), data_dir)
        self.unavailable: dict[str, str] = {"lpips": missing} if missing else {}
        self._nulls: dict[int, dict[str, Scores]] = {}

    def truth(self, victim: int) -> Tensor:
        """A victim's images in [0, 1]."""
        return self.data.images(self.victims[victim]).to(self.device)

    def score(
        self,
        victim: int,
        found: Reconstruction,
        masks: tuple[Tensor, ...] = (),
        by: Normalisation | None = None,
    ) -> Seen:
        """The scores of one victim's reconstruction: one value an image, or one a client.

        Its inputs are turned into pixels ``by`` a normalisation; None: the data set's.
        """
        scores: Scores = {}
        images = film = None
        if found.labels is not None:
            labels = self.data.labels[list(self.victims[victim])]
            scores["labels"] = [_label_overlap(found.labels, labels)]
        if found.images is not None or found.labels is None:
            truth = self.truth(victim)
            images, chosen = self.in_order(found.images, truth, by)
            scores |= self.compare(images, truth, victim)
            scores["read"] = self._read(scores, victim)
            if found.masks and len(masks) == len(found.masks):
                scores |= metrics.mask_distances(found.masks, masks, chosen)
            if found.frames and chosen[0] >= 0:
                film = self.to_pixels(torch.stack([f[chosen[0]] for _, f in found.frames]), by)
        return Seen(images, scores, film, tuple(when for when, _ in found.frames))

    def to_pixels(self, inputs: Tensor, by: Normalisation | None = None) -> Tensor:
        return to_pixels(inputs.to(self.device), self.data, by)

    def in_order(
        self, inputs: Tensor | None, truth: Tensor, by: Normalisation | None = None
    ) -> tuple[Tensor, Tensor]:
        """Pixels in the truth's order, mean colour for what is missing; and which is which."""
        flat = torch.zeros(1, *self.data.shape, dtype=torch.double, device=self.device)
        found = flat[:0] if inputs is None else inputs.to(flat)
        pixels = torch.cat([self.to_pixels(found, by), self.to_pixels(flat)])
        chosen = (
            metrics.assign_reconstructions(pixels[:-1], truth)
            if len(found)
            else torch.full((len(truth),), -1)
        )
        return pixels[chosen], chosen

    def compare(self, images: Tensor, truth: Tensor, victim: int) -> Scores:
        """All image metrics of ``images`` against one victim's truth."""
        found = {m.name: m.measure(images, truth) for m in (*MEASURED, *self.extra_metrics)}
        found["reid"] = self._reidentified(images, victim).tolist()
        if "lpips" not in self.unavailable:
            distances = metrics.lpips(images, truth, data_range=1.0, data_dir=self.data_dir)
            found["lpips"] = distances.tolist()
        return found

    def baselines(self) -> dict[str, dict[str, float]]:
        """Mean scores over all victims of attackers who saw nothing."""
        sums: dict[str, Scores] = {}
        for victim in range(len(self.victims)):
            for name, scores in self.null_scores(victim).items():
                for metric, values in scores.items():
                    sums.setdefault(name, {}).setdefault(metric, []).extend(values)
        return {name: {m: fmean(v) for m, v in each.items()} for name, each in sums.items()}

    def null_scores(self, victim: int) -> dict[str, Scores]:
        """What each null baseline scores on one victim."""
        if victim not in self._nulls:
            truth = self.truth(victim)
            nulls = self.nulls(truth, victim).items()
            self._nulls[victim] = {n: self.compare(null, truth, victim) for n, null in nulls}
        return self._nulls[victim]

    def nulls(self, truth: Tensor, victim: int) -> dict[str, Tensor]:
        """What could be shown for a victim without seeing anything of it."""
        drawn = generator(self.seed, "null", victim)
        found = {"noise": metrics.noise_images(self.data.shape, len(truth), drawn).to(self.device)}
        if len(self.public):
            found["mean image"] = metrics.mean_images(self.public, len(truth))
            found["nearest public image"] = metrics.nearest_public_images(
                self.public, truth, self.public_signatures
            )
        return found

    def _read(self, scores: Scores, victim: int) -> list[float]:
        """1 for each image that counts as read, else 0 (see READ_SSIM)."""
        nulls = [null["ssim"] for null in self.null_scores(victim).values()]
        best = [max(each) for each in zip(*nulls, strict=True)]
        return [
            float(ssim >= READ_SSIM and ssim > null and reid > 0)
            for ssim, null, reid in zip(scores["ssim"], best, scores["reid"], strict=True)
        ]

    def _reidentified(self, images: Tensor, victim: int) -> Tensor:
        start = sum(len(batch) for batch in self.victims[:victim])
        wanted = torch.arange(start, start + len(images), device=self.device)
        return (nearest_signatures(images, self.gallery) == wanted).double()


class UnscoredJudge:
    """Stands in for the judge where there is no truth: shows what was found, scores nothing."""

    unavailable: ClassVar[dict[str, str]] = {}

    def __init__(self, made: ResolvedStage) -> None:
        self.data = made.data

    def truth(self, victim: int) -> None:
        return None

    def score(
        self,
        victim: int,
        found: Reconstruction,
        masks: tuple[Tensor, ...] = (),
        by: Normalisation | None = None,
    ) -> Seen:
        if found.images is None:
            return Seen(None, {})
        film = torch.stack([frame[0] for _, frame in found.frames]) if found.frames else None
        return Seen(
            to_pixels(found.images, self.data, by),
            {},
            None if film is None else to_pixels(film, self.data, by),
            tuple(when for when, _ in found.frames),
        )

    def baselines(self) -> dict[str, dict[str, float]]:
        return {}


def to_pixels(inputs: Tensor, data: ImageSet, by: Normalisation | None = None) -> Tensor:
    """Model inputs as [0, 1] images, ``by`` a normalisation; None: the data set's."""
    return (by or Normalisation.of(data)).pixels(inputs.detach().double()).clamp(0, 1)


def _label_overlap(found: Tensor, truth: Tensor) -> float:
    """The share of the batch's labels, as a multiset, that were inferred."""
    shared = Counter(found.tolist()) & Counter(truth.tolist())
    return sum(shared.values()) / len(truth)
