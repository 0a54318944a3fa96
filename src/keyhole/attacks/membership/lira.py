"""LiRA, the likelihood-ratio attack: compares models trained with and without an image."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.membership.base import (
    MORE_IMAGES_HINT,
    MembershipAttack,
    MembershipProblem,
    confidence,
)
from keyhole.attacks.membership.target_training import LabelledImages, ReportTrained
from keyhole.seeds import derive, generator

PER_IMAGE_FROM = 64
"""Shadow models from which on ``variance='auto'`` estimates one variance per image."""
MIN_DEVIATION = 1e-6
"""The least standard deviation of a confidence."""


@dataclass(frozen=True, kw_only=True)
class Lira(MembershipAttack):
    """Fits Gaussians to the confidences of shadow models trained with and without each image.

    Args:
        shadows: The number of shadow models.
        variant: ``online``: half of the shadow models are trained on each candidate, and the score
            is the mean over views of ``log N(phi; mu_in, s_in) - log N(phi; mu_out, s_out)``, where
            phi is the logit-scaled confidence. ``offline``: shadow models are trained on public
            images only, and the score is the mean over views of ``(phi - mu_out) / s_out``, which
            orders candidates as the paper's one-sided test does.
        variance: ``global``: one variance for all images, pooled over each image's own deviations;
            ``each``: one per image; ``auto``: global below 64 shadow models, which the paper found
            best.
    """

    shadows: Annotated[int, Field(ge=4, multiple_of=2)] = 16
    variant: Literal["online", "offline"] = "online"
    variance: Literal["auto", "global", "each"] = "auto"

    name: ClassVar[str] = "lira"
    summary: ClassVar[str] = "likelihood ratio over shadow models with and without the image"
    paper: ClassVar[str] = "Carlini et al. 2022 (LiRA)"

    @property
    def own_models(self) -> int:
        return self.shadows

    def incompatibilities(self, problem: MembershipProblem) -> list[str]:
        least = 2 * problem.training.clients
        count = len(problem.candidates) if self.variant == "online" else len(problem.public)
        kind = "candidates" if self.variant == "online" else "public images"
        if count >= least:
            return []
        return [f"it needs {least} {kind} or more, and there are {count}: {MORE_IMAGES_HINT}"]

    def notes(self, problem: MembershipProblem) -> list[str]:
        sizes = {len(images) for images in self.shadow_sets(problem)[0]}
        if max(sizes) - 1 <= problem.members <= min(sizes) + 1:
            return []
        return [
            f"LiRA's shadow models are trained on {min(sizes)} images; "
            f"the target model was trained on {problem.members}"
        ]

    def score(self, problem: MembershipProblem, report: ReportTrained) -> Tensor:
        sets, inside = self.shadow_sets(problem)
        seeds = [derive(problem.seed, "lira", i) for i in range(self.shadows)]
        candidates = problem.candidates
        confidences = [
            confidence(problem.query(models, candidates, self.views), candidates.labels)
            for models in problem.training.train_models(sets, seeds, report)
        ]
        shadows = torch.cat(confidences)
        logits = problem.query([problem.model], candidates, self.views)
        target = confidence(logits, candidates.labels)[0]
        inside = inside.to(shadows.device)
        mean, deviation = self.fit_gaussians(shadows, ~inside)
        z_out = (target - mean) / deviation
        if self.variant == "offline":
            return z_out.mean(0)
        log_out = -0.5 * z_out.square() - deviation.log()
        mean, deviation = self.fit_gaussians(shadows, inside)
        log_in = -0.5 * ((target - mean) / deviation).square() - deviation.log()
        return (log_in - log_out).mean(0)

    def shadow_sets(self, problem: MembershipProblem) -> tuple[list[LabelledImages], Tensor]:
        """The training images of each shadow model, and which candidates are among them.

        The latter is bool ``[shadows, n]``. Online, the models come in pairs: one gets a random
        half of the candidates, the next one the other half. Public images fill each set up to the
        size of the target model's.

        Args:
            problem: What the attacker is given.
        """
        count, public = len(problem.candidates), problem.public
        inside = torch.zeros(self.shadows, count, dtype=torch.bool)
        sets = []
        for i in range(self.shadows):
            set_generator = generator(problem.seed, "lira set", i)
            if self.variant == "online":
                pair_generator = generator(problem.seed, "lira halves", i // 2)
                order = torch.randperm(count, generator=pair_generator)
                inside[i, order[: count // 2] if i % 2 == 0 else order[count // 2 :]] = True
            chosen = inside[i].nonzero().flatten()
            chosen = chosen[torch.randperm(len(chosen), generator=set_generator)]
            missing = max(0, problem.members - len(chosen))
            filler = torch.randperm(len(public), generator=set_generator)[:missing]
            sets.append(problem.candidates.take(chosen).concatenate(public.take(filler)))
        return sets, inside

    def fit_gaussians(self, phi: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[views, n]`` of each image's confidences.

        Args:
            phi: Logit-scaled confidences ``[shadows, views, n]``.
            chosen: The shadow models that count for each image, bool ``[shadows, n]``.
        """
        weight = chosen[:, None, :].to(phi)
        count = weight.sum(0)
        mean = (phi * weight).sum(0) / count
        squares = ((phi - mean).square() * weight).sum(0)
        per_image = self.variance == "auto" and self.shadows >= PER_IMAGE_FROM
        if self.variance == "each" or per_image:
            variance = squares / (count - 1)
        else:
            pooled = squares.sum(-1, keepdim=True) / (count - 1).sum(-1, keepdim=True)
            variance = pooled.expand_as(mean)
        return mean, variance.sqrt().clamp(min=MIN_DEVIATION)
