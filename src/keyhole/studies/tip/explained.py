"""Clients' uploads with and without noise, and how alike the heat maps of their models are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.data import ImageSet
from keyhole.defenses import Agp, CalibratedNoise, ClientSide, Dp, Tip, equal_epsilon, equal_noise
from keyhole.metrics.heatmaps import grey, overlay, similarity
from keyhole.update import Update


def defenses(update: Update, model: nn.Module) -> dict[str, CalibratedNoise]:
    """The paper's three, TIP as its formula divides the noise by the layers, and fair pairs.

    ``tip-at-dp-budget`` has DP's epsilon; ``dp-as-tip`` and ``dp-as-tip-divided`` have noise as
    long as TIP's.
    """
    dp, tip, divided = Dp(epsilon=5.0), Tip(epsilon=1.0), Tip(epsilon=1.0, divide=True)
    return {
        "dp": dp,
        "agp": Agp(epsilon=5.0),
        "tip": tip,
        "tip-divided": divided,
        "tip-at-dp-budget": equal_epsilon(tip, dp),
        "dp-as-tip": equal_noise(dp, tip, update, model),
        "dp-as-tip-divided": equal_noise(dp, divided, update, model),
    }


@dataclass(frozen=True)
class Upload:
    """A client's own image and label, and its update before any defense."""

    images: Tensor
    labels: Tensor
    update: Update

    def under(
        self, defense: CalibratedNoise, model: nn.Module, data: ImageSet, draw: torch.Generator
    ) -> Update:
        side = ClientSide(draw, model, self.images, self.labels, normalise=data.normalise)
        return defense.on_update(self.update, side)


@dataclass(frozen=True)
class Explained:
    """Heat maps of the same images ``[n, C, H, W]`` by many models.

    ``uploaded [clients * n, H, W]`` are those of every client's model, ``averaged [n, H, W]`` those
    of the server's after it took them in.
    """

    uploaded: Tensor
    averaged: Tensor
    accuracy: float
    """Of the server's model."""

    def beside(self, clean: Explained, images: Tensor) -> dict[str, Any]:
        """How like those of ``clean`` they are, on overlays and bare: means over images."""
        times = len(self.uploaded) // len(images)
        return {
            "accuracy": self.accuracy,
            "without_heat": int(without_heat(self.uploaded).sum()),
            "uploaded": compared(images.repeat(times, 1, 1, 1), clean.uploaded, self.uploaded),
            "averaged": compared(images, clean.averaged, self.averaged),
        }


def compared(images: Tensor, clean: Tensor, other: Tensor) -> dict[str, dict[str, float]]:
    """Mean MSE, PSNR and SSIM of heat maps ``[n, H, W]``: as overlays, and bare.

    Two maps without any heat are equal and explain nothing: such pairs are left out, unless there
    are no others.
    """
    told = ~(without_heat(clean) & without_heat(other))
    if told.any():
        images, clean, other = images[told], clean[told], other[told]
    found = {
        "overlay": similarity(overlay(images, clean), overlay(images, other)),
        "map": similarity(grey(clean), grey(other)),
    }
    return {
        kind: {name: round(float(values.mean()), 4) for name, values in each.items()}
        for kind, each in found.items()
    }


def without_heat(maps: Tensor) -> Tensor:
    """Which of the maps ``[n, H, W]`` are zero all over, ``[n]``."""
    return maps.flatten(1).amax(1) == 0


def spread(labels: Tensor, among: Sequence[int], count: int, draw: torch.Generator) -> list[int]:
    """Places of ``count`` random images among some, of as many classes as there are."""
    order = torch.tensor(among)[torch.randperm(len(among), generator=draw)].tolist()
    rounds: dict[int, int] = {}
    ranked = []
    for place in order:
        label = int(labels[place])
        rounds[label] = rounds.get(label, 0) + 1
        ranked.append((rounds[label], place))
    return [place for _, place in sorted(ranked, key=lambda item: item[0])[:count]]
