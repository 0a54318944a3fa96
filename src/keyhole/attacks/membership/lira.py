"""LiRA, the likelihood-ratio attack: how would models with, and without, this image answer?"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.membership.base import FEWER, MembershipAttack, Question, confidence
from keyhole.attacks.membership.recipe import Labelled, Told
from keyhole.seeds import derive, generator

MANY = 64
"""Shadow models from which on each image has a variance of its own."""
LEAST = 1e-6
"""Least standard deviation of a confidence."""


@dataclass(frozen=True, kw_only=True)
class Lira(MembershipAttack):
    """Gaussians of the logit-scaled confidence over shadow models that had, or had not, the image.

    ``online``: every candidate is in half of the shadow models, and the score is the mean over
    views of ``log N(phi; mu_in, s_in) - log N(phi; mu_out, s_out)``. ``offline``: the shadow models
    see public images only, and the score is the mean over views of ``(phi - mu_out) / s_out``,
    which orders candidates as the one-sided test of the paper does. ``variance``: one for all
    images (pooled over each image's own deviations) or one for each; ``auto``: one for all below
    64 shadow models, as the paper found best.
    """

    shadows: Annotated[int, Field(ge=4, multiple_of=2)] = 16
    variant: Literal["online", "offline"] = "online"
    variance: Literal["auto", "global", "each"] = "auto"

    name: ClassVar[str] = "lira"
    summary: ClassVar[str] = "likelihood ratio over shadow models with and without the image"
    paper: ClassVar[str] = "Carlini et al. 2022 (LiRA)"

    @property
    def trains(self) -> int:
        return self.shadows

    def misfits(self, question: Question) -> list[str]:
        least = 2 * question.recipe.clients
        count = len(question.candidates) if self.variant == "online" else len(question.public)
        kind = "candidates" if self.variant == "online" else "public images"
        if count >= least:
            return []
        return [f"it needs {least} {kind} or more, and there are {count}: {FEWER}"]

    def notes(self, question: Question) -> list[str]:
        sizes = {len(each) for each in self.sets(question)[0]}
        if max(sizes) - 1 <= question.members <= min(sizes) + 1:
            return []
        return [
            f"LiRA's shadow models are trained on {min(sizes)} images; "
            f"the model under attack had {question.members}"
        ]

    def score(self, question: Question, told: Told) -> Tensor:
        sets, inside = self.sets(question)
        seeds = [derive(question.seed, "lira", i) for i in range(self.shadows)]
        asked = question.candidates
        found = [
            confidence(question.outputs(models, asked, self.views), asked.labels)
            for models in question.recipe.trained(sets, seeds, told)
        ]
        shadows = torch.cat(found)
        target = confidence(question.outputs([question.model], asked, self.views), asked.labels)[0]
        inside = inside.to(shadows.device)
        mean, deviation = self.gaussians(shadows, ~inside)
        z_out = (target - mean) / deviation
        if self.variant == "offline":
            return z_out.mean(0)
        out = -0.5 * z_out.square() - deviation.log()
        mean, deviation = self.gaussians(shadows, inside)
        within = -0.5 * ((target - mean) / deviation).square() - deviation.log()
        return (within - out).mean(0)

    def sets(self, question: Question) -> tuple[list[Labelled], Tensor]:
        """What each shadow model is trained on, and which candidates are in it, ``[shadows, n]``.

        Online, the models come in pairs: a random half of the candidates, and the other half.
        Public images fill a set up to the size that the model under attack was trained on.
        """
        count, public = len(question.candidates), question.public
        inside = torch.zeros(self.shadows, count, dtype=torch.bool)
        sets = []
        for i in range(self.shadows):
            draws = generator(question.seed, "lira set", i)
            if self.variant == "online":
                halves = generator(question.seed, "lira halves", i // 2)
                order = torch.randperm(count, generator=halves)
                inside[i, order[: count // 2] if i % 2 == 0 else order[count // 2 :]] = True
            chosen = inside[i].nonzero().flatten()
            chosen = chosen[torch.randperm(len(chosen), generator=draws)]
            rest = max(0, question.members - len(chosen))
            filler = torch.randperm(len(public), generator=draws)[:rest]
            sets.append(question.candidates.take(chosen).beside(public.take(filler)))
        return sets, inside

    def gaussians(self, phi: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation ``[views, n]`` of ``phi [shadows, views, n]``.

        Over the shadow models that ``chosen [shadows, n]`` marks for each image.
        """
        weight = chosen[:, None, :].to(phi)
        count = weight.sum(0)
        mean = (phi * weight).sum(0) / count
        squares = ((phi - mean).square() * weight).sum(0)
        if self.variance == "each" or (self.variance == "auto" and self.shadows >= MANY):
            variance = squares / (count - 1)
        else:
            pooled = squares.sum(-1, keepdim=True) / (count - 1).sum(-1, keepdim=True)
            variance = pooled.expand_as(mean)
        return mean, variance.sqrt().clamp(min=LEAST)
