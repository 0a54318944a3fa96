"""The published attacks, each a row of parts."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from keyhole.attacks.matching.attack import Count, Matching, Positive, Weight
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.objectives import Cosine, SquaredError
from keyhole.attacks.matching.parts.optimisers import LBFGS, Adam, CosineDecay, Plateau, StepDecay
from keyhole.attacks.matching.parts.priors import (
    BatchNormStatistics,
    LastFeatures,
    Magnitude,
    PatchSeams,
    PositionCosine,
    Prior,
    TotalVariation,
)
from keyhole.attacks.matching.parts.unknowns import Pixels
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.readable_masks import readable_sites
from keyhole.defenses.capabilities import BlockShuffle, Capability
from keyhole.models.anatomy import find_logits_layer, find_patch_embedding, require_patch_embedding
from keyhole.threat import Observation

Labels = Literal["given", "inferred", "sought"]
Masks = Literal["ignored", "given", "sought", "read"]


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(Matching):
    """Squared error, images and labels sought together by L-BFGS."""

    iterations: Count = 600
    lr: Positive = 1.0
    labels: Labels = "sought"

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

    labels: Labels = "inferred"

    name: ClassVar[str] = "idlg"
    summary: ClassVar[str] = "infers the labels, then matches gradients by L-BFGS"
    paper: ClassVar[str] = "Zhao et al. 2020 (iDLG)"
    needs: ClassVar[str] = "a linear last layer; minutes rather than seconds"


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(Matching):
    """Cosine distance with total variation, by Adam on the sign of the pixels' gradient.

    The rate falls tenfold after ``patience`` iterations without progress; a victim is done after
    ``drops`` falls, or when its loss has not improved for ``give_up`` iterations, or lies below
    ``stop_below``. One who knows where a defense puts noise looks past it (see
    :mod:`keyhole.attacks.noise`), and averages what was seen several times. ``features`` weighs
    the last layer's inputs, which an update of one image tells exactly where that layer has no
    noise; None: not at all, and where noise is known to be in other layers alone the more, the
    more of their rows have it.
    """

    iterations: Count = 3000
    tv: Weight = 1e-5
    patience: Count = 100
    drops: Count | None = 4
    give_up: Count | None = None
    stop_below: Positive | None = None
    features: Weight | None = None

    name: ClassVar[str] = "ig"
    summary: ClassVar[str] = "matches gradients' direction, smooth images preferred"
    paper: ClassVar[str] = "Geiping et al. 2020 (IG), as run in Scheliga et al. 2023"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.NOISE})
    published: ClassVar[dict[str, Any]] = {
        "iterations": 20_000,
        "patience": 800,
        "drops": None,
        "give_up": 4000,
        "stop_below": 1e-5,
    }

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        return MatchingParts(
            objective=Cosine(),
            images=Pixels(),
            optimiser=Adam(lr=self.lr, signed=("pixels",)),
            schedule=Plateau(patience=self.patience, drops=self.drops, give_up=self.give_up),
            priors=self.priors(problem),
            stop_below=self.stop_below,
        )

    def priors(self, problem: MatchingProblem) -> tuple[Prior, ...]:
        smooth = TotalVariation(self.tv, block=shuffled_block_size(problem))
        weight = choose_feature_weight(problem) if self.features is None else self.features
        layer = readable_last_layer(problem) if weight > 0 else None
        return (smooth,) if layer is None else (smooth, LastFeatures(weight, layer))


FEATURES = 45.0
"""What the last layer's inputs weigh where all filters are blurred, and they are as many as pixels.

Chosen on eight images of CIFAR-10's training set, with the square of the share.
"""


def choose_feature_weight(problem: MatchingProblem) -> float:
    """For a defense that leaves the last layer clean, and blurs a known share of rows before it.

    Where fewer numbers enter that layer than the image has, they tell less of it.
    """
    layer = readable_last_layer(problem) if problem.noise else None
    if layer is None or {f"{layer}.weight", f"{layer}.bias"} & set(problem.noise):
        return 0.0
    inputs = problem.model.get_parameter(f"{layer}.weight").shape[1]
    told = min(1.0, inputs / math.prod(problem.knowledge.shape))
    return FEATURES * told * max(noise.share for noise in problem.noise.values()) ** 2


def readable_last_layer(problem: MatchingProblem) -> str | None:
    """The last layer, where an update tells its inputs: of one image, in one step."""
    layer = find_logits_layer(problem.model, problem.knowledge.shape)
    alone = problem.knowledge.batch_size == 1 and problem.steps == 1
    own = {name for name, _ in problem.model.named_parameters()}
    told = {f"{layer}.weight", f"{layer}.bias"} <= own
    return layer if alone and told else None


def shuffled_block_size(problem: MatchingProblem) -> int | None:
    """The side of the smallest blocks that a known defense shuffles; None: it shuffles none."""
    _, height, width = problem.knowledge.shape
    defense = problem.knowledge.defense_with(Capability.IMAGE_CHANGE)
    change = None if defense is None else defense.image_change()
    return change.finest(height, width) if isinstance(change, BlockShuffle) else None


@dataclass(frozen=True, kw_only=True)
class Wiig(InvertingGradients):
    """IG that is told the client's dropout masks: what dropout hides, and nothing else."""

    masks: Masks = "given"

    name: ClassVar[str] = "wiig"
    summary: ClassVar[str] = "IG with the client's own dropout masks"
    paper: ClassVar[str] = "Scheliga et al. 2023 (WIIG)"


@dataclass(frozen=True, kw_only=True)
class DropoutInversion(InvertingGradients):
    """IG that looks for the dropout masks together with the image."""

    masks: Masks = "sought"

    name: ClassVar[str] = "dia"
    summary: ClassVar[str] = "IG that seeks the client's dropout masks with the image"
    paper: ClassVar[str] = "Scheliga et al. 2023 (DIA)"
    uses: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.IMAGE_CHANGE, Capability.NOISE, Capability.HIDDEN_MASKS}
    )


@dataclass(frozen=True, kw_only=True)
class DiaRead(DropoutInversion):
    """DIA that reads the masks off the update where it shows them, and seeks only the others."""

    masks: Masks = "read"

    name: ClassVar[str] = "dia-read"
    summary: ClassVar[str] = "DIA with the masks that the update shows read off it"
    paper: ClassVar[str] = "Keyhole; after Scheliga et al. 2023 (DIA)"
    needs: ClassVar[str] = "one image a client; dropout straight before a linear layer"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.HIDDEN_MASKS})
    only_adaptive: ClassVar[bool] = True

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = super().incompatibilities(observation)
        if not readable_sites(MatchingProblem.from_observation(observation)):
            reasons.append(
                "no mask can be read off: it needs one image a client and a dropout whose output "
                "goes straight into a linear layer"
            )
        return reasons


@dataclass(frozen=True, kw_only=True)
class IterativeApril(Matching):
    """Squared error, and the cosine of the position embedding's gradients, by Adam."""

    position_weight: Weight = 1.0
    tv: Weight = 1e-3
    labels: Labels = "inferred"

    name: ClassVar[str] = "april-iterative"
    summary: ClassVar[str] = "matches gradients, the position embedding's above all"
    paper: ClassVar[str] = "Lu et al. 2022 (APRIL, optimisation)"
    needs: ClassVar[str] = "a ViT with learned absolute position embeddings"

    def incompatibilities(self, observation: Observation) -> list[str]:
        return [*why_no_patches(observation), *super().incompatibilities(observation)]

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
    """Squared error first; then smooth images without seams between patches as well.

    The paper's image prior needs the statistics of a pretrained CNN and is left out.
    """

    tv: Weight = 1e-3
    magnitude: Weight = 1e-5
    seams: Weight = 1e-4
    labels: Labels = "inferred"

    name: ClassVar[str] = "gradvit"
    summary: ClassVar[str] = "matches a ViT's gradients, then smooths the seams of patches"
    paper: ClassVar[str] = "Hatamizadeh et al. 2022 (GradViT)"
    needs: ClassVar[str] = "a ViT that cuts the image into patches; a linear last layer"
    published: ClassVar[dict[str, Any]] = {"iterations": 120_000}

    def incompatibilities(self, observation: Observation) -> list[str]:
        return [*why_no_patches(observation), *super().incompatibilities(observation)]

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


@dataclass(frozen=True, kw_only=True)
class GradInversion(Matching):
    """Squared error with BatchNorm statistics, total variation and small pixels, by Adam."""

    tv: Weight = 1e-4
    magnitude: Weight = 1e-6
    statistics: Weight = 1e-3
    labels: Labels = "inferred"

    name: ClassVar[str] = "gradinversion"
    summary: ClassVar[str] = "matches gradients and the BatchNorms' statistics"
    paper: ClassVar[str] = "Yin et al. 2021 (GradInversion)"
    needs: ClassVar[str] = "a linear last layer; best with BatchNorm and trained weights"
    published: ClassVar[dict[str, Any]] = {"iterations": 20_000, "statistics": 0.1}

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        return MatchingParts(
            objective=SquaredError(relative=True),
            images=Pixels(),
            optimiser=Adam(lr=self.lr),
            schedule=CosineDecay(warm_up=0.0025),
            priors=(
                TotalVariation(self.tv),
                Magnitude(self.magnitude),
                BatchNormStatistics(self.statistics),
            ),
        )


def why_no_patches(observation: Observation) -> list[str]:
    """Why a model is not a ViT whose patches and positions are known."""
    found = find_patch_embedding(observation.model, observation.knowledge.shape)
    if isinstance(found, str):
        return [f"it needs a ViT with learned absolute position embeddings, but {found}"]
    return []
