"""The one place where the truth enters: matching, denormalising, clamping, measuring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
"""An image counts as read from this SSIM on, if its reconstruction also points to it in the gallery
and no null baseline comes as close."""

Scores = dict[str, list[float]]


@dataclass(frozen=True)
class ScoredReconstruction:
    """What an attacker found of one victim, turned into pixels and scored.

    Args:
        images: In [0, 1] and in the truth's order, ``[n, C, H, W]``; None: none were sought.
        scores: By metric, one value per image (labels: one per client).
        film: The first image over the iterations, ``[F, C, H, W]``.
        film_at: The iteration of each frame.
    """

    images: Tensor | None
    scores: Scores
    film: Tensor | None = None
    film_at: tuple[int, ...] = ()


class Judge:
    """Scores reconstructions of one stage's victims, on the device that the stage runs on."""

    def __init__(self, resolved: ResolvedStage, data_dir: str | None = None) -> None:
        self.resolved, self.data_dir = resolved, data_dir
        self.data, self.victims = resolved.data, resolved.victims
        self.device = next(resolved.model.parameters()).device
        self.public = self.data.images(resolved.public).to(self.device)
        self.public_signatures = signature(self.public)
        truths = [signature(self.truth(victim)) for victim in range(len(self.victims))]
        self.gallery = torch.cat([*truths, self.public_signatures])
        missing = why_unavailable(min(self.data.size), data_dir)
        self.unavailable: dict[str, str] = {"lpips": missing} if missing else {}
        self._null_scores: dict[int, dict[str, Scores]] = {}

    def truth(self, victim: int) -> Tensor:
        """A victim's images in [0, 1]."""
        return self.data.images(self.victims[victim]).to(self.device)

    def score(
        self,
        victim: int,
        reconstruction: Reconstruction,
        masks: Sequence[Tensor] = (),
        normalisation: Normalisation | None = None,
        *,
        sought: bool = False,
    ) -> ScoredReconstruction:
        """Scores what was found of one victim.

        Args:
            victim: The victim's number.
            reconstruction: What was found.
            masks: The client's own.
            normalisation: What turns model inputs into pixels; None: the data set's.
            sought: Whether images were looked for. Where none was found each one counts as
                unread, even if labels were found.
        """
        scores: Scores = {}
        images = film = None
        frames = reconstruction.frames
        if reconstruction.labels is not None:
            labels = self.resolved.labels_of(victim)
            scores["labels"] = [_label_overlap(reconstruction.labels, labels)]
        if sought or reconstruction.images is not None or reconstruction.labels is None:
            truth = self.truth(victim)
            images, chosen = self.match_to_truth(reconstruction.images, truth, normalisation)
            scores |= self.compare(images, truth, victim)
            scores["read"] = self._are_read(scores, victim)
            if reconstruction.clients is not None:
                scores["client"] = self._are_attributed(reconstruction.clients, chosen)
            if reconstruction.masks and len(masks) == len(reconstruction.masks):
                scores |= metrics.mask_distances(reconstruction.masks, masks, chosen)
            if frames and chosen[0] >= 0:
                film = self.to_pixels(torch.stack([f[chosen[0]] for _, f in frames]), normalisation)
        return ScoredReconstruction(images, scores, film, tuple(when for when, _ in frames))

    def to_pixels(self, inputs: Tensor, normalisation: Normalisation | None = None) -> Tensor:
        return to_pixels(inputs.to(self.device), self.data, normalisation)

    def match_to_truth(
        self, inputs: Tensor | None, truth: Tensor, normalisation: Normalisation | None = None
    ) -> tuple[Tensor, Tensor]:
        """Pixels in the truth's order, and the place of each among ``inputs``.

        An image that is missing has the mean colour and the place -1.
        """
        flat = torch.zeros(1, *self.data.shape, dtype=torch.double, device=self.device)
        found = flat[:0] if inputs is None else inputs.to(flat)
        pixels = torch.cat([self.to_pixels(found, normalisation), self.to_pixels(flat)])
        chosen = (
            metrics.assign_reconstructions(pixels[:-1], truth)
            if len(found)
            else torch.full((len(truth),), -1)
        )
        return pixels[chosen], chosen

    def compare(self, images: Tensor, truth: Tensor, victim: int) -> Scores:
        """All image metrics of ``images`` against one victim's truth."""
        found = {m.name: m.measure(images, truth) for m in (*MEASURED, *self.resolved.metrics)}
        found["reid"] = self._are_reidentified(images, victim).tolist()
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
        if victim not in self._null_scores:
            truth = self.truth(victim)
            nulls = self.draw_nulls(truth, victim).items()
            self._null_scores[victim] = {n: self.compare(null, truth, victim) for n, null in nulls}
        return self._null_scores[victim]

    def draw_nulls(self, truth: Tensor, victim: int) -> dict[str, Tensor]:
        """What an attacker could show for a victim without having seen anything."""
        draw = generator(self.resolved.seed, "null", victim)
        found = {"noise": metrics.noise_images(self.data.shape, len(truth), draw).to(self.device)}
        if len(self.public):
            found["mean image"] = metrics.mean_images(self.public, len(truth))
            found["nearest public image"] = metrics.nearest_public_images(
                self.public, truth, self.public_signatures
            )
        return found

    def _are_read(self, scores: Scores, victim: int) -> list[float]:
        """1 for each image that counts as read, else 0 (see READ_SSIM)."""
        nulls = [null["ssim"] for null in self.null_scores(victim).values()]
        best = [max(each) for each in zip(*nulls, strict=True)]
        return [
            float(ssim >= READ_SSIM and ssim > null and reid > 0)
            for ssim, null, reid in zip(scores["ssim"], best, scores["reid"], strict=True)
        ]

    def _are_attributed(self, clients: Tensor, chosen: Tensor) -> list[float]:
        """1 for each image that was attributed to its own client of the secure sum, else 0."""
        owners = torch.arange(len(chosen)) // self.resolved.stage.batch_size
        believed = torch.cat([clients.cpu(), torch.tensor([-1])])[chosen.cpu()]
        return (believed == owners).double().tolist()

    def _are_reidentified(self, images: Tensor, victim: int) -> Tensor:
        start = sum(len(batch) for batch in self.victims[:victim])
        wanted = torch.arange(start, start + len(images), device=self.device)
        return (nearest_signatures(images, self.gallery) == wanted).double()


class UnscoredJudge:
    """Stands in for the judge if there is no truth: shows what was found, scores nothing."""

    unavailable: ClassVar[dict[str, str]] = {}

    def __init__(self, resolved: ResolvedStage) -> None:
        self.resolved = resolved

    def truth(self, victim: int) -> None:
        return None

    def score(
        self,
        victim: int,
        reconstruction: Reconstruction,
        masks: Sequence[Tensor] = (),
        normalisation: Normalisation | None = None,
        *,
        sought: bool = False,
    ) -> ScoredReconstruction:
        images, frames = reconstruction.images, reconstruction.frames
        if images is None:
            return ScoredReconstruction(None, {})
        data = self.resolved.data
        first = torch.stack([frame[0] for _, frame in frames]) if frames else None
        return ScoredReconstruction(
            to_pixels(images, data, normalisation),
            {},
            None if first is None else to_pixels(first, data, normalisation),
            tuple(when for when, _ in frames),
        )

    def baselines(self) -> dict[str, dict[str, float]]:
        return {}


AnyJudge = Judge | UnscoredJudge


def build_judge(resolved: ResolvedStage, data_dir: str | None = None) -> AnyJudge:
    return Judge(resolved, data_dir) if resolved.scored else UnscoredJudge(resolved)


def to_pixels(inputs: Tensor, data: ImageSet, normalisation: Normalisation | None = None) -> Tensor:
    """Model inputs as [0, 1] images, by ``normalisation``; None: the data set's."""
    return (normalisation or Normalisation.of(data)).pixels(inputs.detach().double()).clamp(0, 1)


def _label_overlap(found: Tensor, truth: Tensor) -> float:
    """The share of the batch's labels, as a multiset, that were inferred."""
    shared = Counter(found.tolist()) & Counter(truth.tolist())
    return sum(shared.values()) / len(truth)
