"""The published attacks, each a row of parts."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from keyhole.attacks import noise
from keyhole.attacks.matching.attack import Count, Matching, Positive, Weight
from keyhole.attacks.matching.objectives import Cosine, SquaredError
from keyhole.attacks.matching.optimisers import LBFGS, Adam, CosineDecay, Plateau, Steps
from keyhole.attacks.matching.priors import (
    BatchNormStatistics,
    LastFeatures,
    Magnitude,
    PatchSeams,
    PositionCosine,
    Prior,
    TotalVariation,
)
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.read_off import readable
from keyhole.attacks.matching.recipe import Recipe
from keyhole.attacks.matching.unknowns import Pixels
from keyhole.defenses.regions import zones
from keyhole.models.anatomy import known_embedding, logits_layer, patch_embedding
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

    def recipe(self, problem: Problem) -> Recipe:
        return Recipe(
            objective=SquaredError(relative=True),
            picture=Pixels(clamped=False),
            optimiser=LBFGS(lr=self.lr),
            schedule=Steps(at=()),
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
    noise; None: not at all, and under a known TIP the more, the more filters it blurs.
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
    adapts_to: ClassVar[frozenset[str]] = noise.KNOWN
    published: ClassVar[dict[str, Any]] = {
        "iterations": 20_000,
        "patience": 800,
        "drops": None,
        "give_up": 4000,
        "stop_below": 1e-5,
    }

    def recipe(self, problem: Problem) -> Recipe:
        return Recipe(
            objective=Cosine(),
            picture=Pixels(),
            optimiser=Adam(lr=self.lr, signed=("pixels",)),
            schedule=Plateau(patience=self.patience, drops=self.drops, give_up=self.give_up),
            priors=self.priors(problem),
            stop_below=self.stop_below,
        )

    def priors(self, problem: Problem) -> tuple[Prior, ...]:
        smooth = TotalVariation(self.tv, block=shuffled_blocks(problem))
        weight = worth_of_features(problem) if self.features is None else self.features
        layer = telling_layer(problem) if weight > 0 else None
        return (smooth,) if layer is None else (smooth, LastFeatures(weight, layer))


FEATURES = 45.0
"""What the last layer's inputs weigh where all filters are blurred, and they are as many as pixels.

Chosen on eight images of CIFAR-10's training set, with the square of the share.
"""


def worth_of_features(problem: Problem) -> float:
    """TIP leaves the last layer clean, and blurs a known share of the filters before it.

    Where fewer numbers enter that layer than the image has, they tell less of it.
    """
    known = problem.knowledge.defense
    layer = telling_layer(problem) if known is not None and known.name == "tip" else None
    if known is None or layer is None:
        return 0.0
    inputs = problem.model.get_parameter(f"{layer}.weight").shape[1]
    told = min(1.0, inputs / math.prod(problem.knowledge.shape))
    return FEATURES * told * float(known.parameters["ratio"]) ** 2


def telling_layer(problem: Problem) -> str | None:
    """The last layer, where an update tells its inputs: of one image, in one step."""
    layer = logits_layer(problem.model, problem.knowledge.shape)
    alone = problem.knowledge.batch_size == 1 and problem.steps == 1
    own = {name for name, _ in problem.model.named_parameters()}
    told = {f"{layer}.weight", f"{layer}.bias"} <= own
    return layer if alone and told else None


def shuffled_blocks(problem: Problem) -> int | None:
    """The side of the smallest blocks that a known defense shuffles; None: it shuffles none."""
    known = problem.knowledge
    if known.defense is None or known.defense.name != "csvar":
        return None
    return zones(*known.shape[1:], known.defense.parameters.get("block"))[0].fine


@dataclass(frozen=True, kw_only=True)
class WellInformed(InvertingGradients):
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


@dataclass(frozen=True, kw_only=True)
class MaskReading(DropoutInversion):
    """DIA that reads the masks off the update where it shows them, and seeks only the others."""

    masks: Masks = "read"

    name: ClassVar[str] = "dia-read"
    summary: ClassVar[str] = "DIA with the masks that the update shows read off it"
    paper: ClassVar[str] = "Keyhole; after Scheliga et al. 2023 (DIA)"
    needs: ClassVar[str] = "one image a client; dropout straight before a linear layer"
    adapts_to: ClassVar[frozenset[str]] = frozenset({"dropout"})
    only_adaptive: ClassVar[bool] = True

    def misfits(self, observation: Observation) -> list[str]:
        reasons = super().misfits(observation)
        if not readable(Problem.of(observation)):
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

    def misfits(self, observation: Observation) -> list[str]:
        return [*no_patches(observation), *super().misfits(observation)]

    def reads(self, observation: Observation) -> set[str]:
        return {known_embedding(observation.model, observation.knowledge.shape).position}

    def recipe(self, problem: Problem) -> Recipe:
        embedding = known_embedding(problem.model, problem.knowledge.shape)
        return Recipe(
            objective=SquaredError(relative=True),
            picture=Pixels(),
            optimiser=Adam(lr=self.lr),
            schedule=Steps(),
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

    def misfits(self, observation: Observation) -> list[str]:
        return [*no_patches(observation), *super().misfits(observation)]

    def recipe(self, problem: Problem) -> Recipe:
        embedding = known_embedding(problem.model, problem.knowledge.shape)
        patch = embedding.entrance.patch(problem.knowledge.shape)
        return Recipe(
            objective=SquaredError(relative=True),
            picture=Pixels(),
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

    def recipe(self, problem: Problem) -> Recipe:
        return Recipe(
            objective=SquaredError(relative=True),
            picture=Pixels(),
            optimiser=Adam(lr=self.lr),
            schedule=CosineDecay(warm_up=0.0025),
            priors=(
                TotalVariation(self.tv),
                Magnitude(self.magnitude),
                BatchNormStatistics(self.statistics),
            ),
        )


def no_patches(observation: Observation) -> list[str]:
    """Why a model is not a ViT whose patches and positions are known."""
    found = patch_embedding(observation.model, observation.knowledge.shape)
    if isinstance(found, str):
        return [f"it needs a ViT with learned absolute position embeddings, but {found}"]
    return []
