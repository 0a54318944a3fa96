"""How a network is trained, and how its learning rate rises and falls."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Decay = Literal["cosine", "linear"]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class TrainingSettings:
    """How a network is trained. Images are always flipped and shifted.

    Args:
        epochs: Passes over the images; a last batch that is not full is left out.
        batch_size: Images in a step.
        lr: The highest learning rate.
        optimiser: ``adamw``, or ``sgd`` with Nesterov momentum.
        momentum: Of SGD.
        weight_decay: On weights; not on biases, norms, tokens and position embeddings.
        decay_all: Weight decay acts on all parameters.
        warm_up: Epochs in which the rate rises from 0.
        decay: How the rate falls to 0 after that.
        smoothing: Label smoothing.
        mixed: The share of batches that are mixed, one half by mixup, one half by CutMix.
        mixup: Both parameters of mixup's Beta distribution.
        cutmix: Both parameters of CutMix's.
        erasing: The share of images in which a rectangle becomes noise.
        rand_augment: RandAugment in timm's spelling (``rand-m9-mstd0.5-inc1``); empty: none.
        clip: The largest norm of a step's gradient; None: any.
    """

    epochs: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)] = 256
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    optimiser: Literal["adamw", "sgd"] = "adamw"
    momentum: Share = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    decay_all: bool = False
    warm_up: Annotated[float, Field(ge=0)] = 0.0
    decay: Decay = "cosine"
    smoothing: Share = 0.0
    mixed: Share = 0.0
    mixup: Annotated[float, Field(gt=0)] = 0.8
    cutmix: Annotated[float, Field(gt=0)] = 1.0
    erasing: Share = 0.0
    rand_augment: str = ""
    clip: Annotated[float, Field(gt=0)] | None = None

    def rate(self, share: float) -> float:
        """The learning rate after a share of all steps.

        >>> settings = TrainingSettings(epochs=8, lr=1.0, warm_up=2, decay="linear")
        >>> [settings.rate(share) for share in (0.0, 0.125, 0.25, 0.625, 1.0)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        """
        return compute_rate(self.lr, share, self.warm_up / self.epochs, 1.0, self.decay)


def compute_rate(
    peak: float, now: float, rising: float, end: float, decay: Decay = "cosine"
) -> float:
    """A learning rate that rises linearly until ``rising`` and falls to 0 until ``end``.

    >>> [compute_rate(1.0, step, 2, 6) for step in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if now < rising:
        return peak * now / rising
    if decay == "linear":
        return peak * (end - now) / (end - rising)
    return peak * 0.5 * (1 + math.cos(math.pi * (now - rising) / max(end - rising, 1e-9)))
