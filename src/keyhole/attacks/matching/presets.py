"""Other published attacks, each a set of parts: DLG, iDLG, APRIL and GradViT."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from keyhole.attacks.analytic.probes import check_patch_embedding
from keyhole.attacks.matching.attack import Count, LabelSource, Matching, Positive, Weight
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.objectives import SquaredError
from keyhole.attacks.matching.parts.optimisers import LBFGS, Adam, CosineDecay, StepDecay
from keyhole.attacks.matching.parts.priors import (
    Magnitude,
    PatchSeams,
    PositionCosine,
    TotalVariation,
)
from keyhole.attacks.matching.parts.unknowns import Pixels
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.models.anatomy import require_patch_embedding
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(Matching):
    """Squared error; searches for images and labels together by L-BFGS."""

    iterations: Count = 600
    lr: Positive = 1.0
    labels: LabelSource = "sought"

    name: ClassVar[str] = "dlg"
    summary: ClassVar[str] = "matches gradients by L-BFGS, labels unknown"
    paper: ClassVar[str] = "Zhu et al. 2019 (DLG)"
    published: ClassVar[dict[str, Any]] = {"iterations": 6000}

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        return MatchingParts(
            objective=SquaredError(relative=True),
            images=Pixels(clamped=False),
            optimiser=LBFGS(lr=self.lr),
            schedule=StepDecay(at=()),
        )


@dataclass(frozen=True, kw_only=True)
class ImprovedDeepLeakage(DeepLeakage):
    """DLG with the labels inferred first."""

    labels: LabelSource = "inferred"

    name: ClassVar[str] = "idlg"
    summary: ClassVar[str] = "infers the labels, then matches gradients by L-BFGS"
    paper: ClassVar[str] = "Zhao et al. 2020 (iDLG)"
    needs: ClassVar[str] = "a linear last layer; minutes rather than seconds"


@dataclass(frozen=True, kw_only=True)
class IterativeApril(Matching):
    """Squared error, and the cosine of the position embedding's gradients, by Adam.

    Args:
        position_weight: Weight of that cosine.
        tv: Weight of the images' total variation.
    """

    position_weight: Weight = 1.0
    tv: Weight = 1e-3
    labels: LabelSource = "inferred"

    name: ClassVar[str] = "april-iterative"
    summary: ClassVar[str] = "matches gradients, the position embedding's above all"
    paper: ClassVar[str] = "Lu et al. 2022 (APRIL, optimisation)"
    needs: ClassVar[str] = "a ViT with learned absolute position embeddings"

    def incompatibilities(self, observation: Observation) -> list[str]:
        return [*check_patch_embedding(observation), *super().incompatibilities(observation)]

    def reads(self, observation: Observation) -> set[str]:
        return {require_patch_embedding(observation.model, observation.knowledge.shape).position}

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        embedding = require_patch_embedding(problem.model, problem.knowledge.shape)
        return MatchingParts(
            objective=SquaredError(relative=True),
            images=Pixels(),
            optimiser=Adam(lr=self.lr),
            schedule=StepDecay(),
            priors=(
                PositionCosine(self.position_weight, embedding.position),
                TotalVariation(self.tv),
            ),
        )


@dataclass(frozen=True, kw_only=True)
class GradViT(Matching):
    """Squared error, with smooth images; in the second half also without seams between patches.

    The paper's image prior needs the statistics of a pretrained CNN and is left out.

    Args:
        tv: Weight of the images' total variation.
        magnitude: Weight of the mean squared pixel.
        seams: Weight of the jumps between neighbouring patches.
    """

    tv: Weight = 1e-3
    magnitude: Weight = 1e-5
    seams: Weight = 1e-4
    labels: LabelSource = "inferred"

    name: ClassVar[str] = "gradvit"
    summary: ClassVar[str] = "matches a ViT's gradients, then smooths the seams of patches"
    paper: ClassVar[str] = "Hatamizadeh et al. 2022 (GradViT)"
    needs: ClassVar[str] = "a ViT that cuts the image into patches; a linear last layer"
    published: ClassVar[dict[str, Any]] = {"iterations": 120_000}

    def incompatibilities(self, observation: Observation) -> list[str]:
        return [*check_patch_embedding(observation), *super().incompatibilities(observation)]

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        embedding = require_patch_embedding(problem.model, problem.knowledge.shape)
        patch = embedding.input_layer.patch_size(problem.knowledge.shape)
        return MatchingParts(
            objective=SquaredError(relative=True),
            images=Pixels(),
            optimiser=Adam(lr=self.lr),
            schedule=CosineDecay(),
            priors=(
                TotalVariation(self.tv),
                Magnitude(self.magnitude),
                PatchSeams(self.seams, patch, after=0.5),
            ),
        )
