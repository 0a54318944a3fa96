"""Clients' uploads with and without noise, and how alike the heat maps of their models are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.data import ImageSet
from keyhole.defenses import (
    Agp,
    CalibratedNoise,
    ClientSide,
    Dp,
    Tip,
    match_budget,
    match_noise_norm,
)
from keyhole.metrics.heatmaps import overlay, similarity, to_grey
from keyhole.update import Update


def make_defenses(update: Update, model: nn.Module) -> dict[str, CalibratedNoise]:
    """The paper's three defenses, TIP with its noise divided by the layers, and fair pairs.

    ``tip-at-dp-budget`` has DP's epsilon; ``dp-as-tip`` and ``dp-as-tip-divided`` have noise as
    long as TIP's.

    Args:
        update: A client's update, whose steps and rate calibrate the noise.
        model: The network that it is an update of.
    """
    dp, tip, divided = Dp(epsilon=5.0), Tip(epsilon=1.0), Tip(epsilon=1.0, divide=True)
    return {
        "dp": dp,
        "agp": Agp(epsilon=5.0),
        "tip": tip,
        "tip-divided": divided,
        "tip-at-dp-budget": match_budget(tip, dp),
        "dp-as-tip": match_noise_norm(dp, tip, update, model),
        "dp-as-tip-divided": match_noise_norm(dp, divided, update, model),
    }


@dataclass(frozen=True)
class Upload:
    """A client's update before any defense.

    Args:
        images: The client's own image, ``[1, C, H, W]``.
        labels: Its label, ``[1]``.
        update: What the client would send without a defense.
    """

    images: Tensor
    labels: Tensor
    update: Update

    def defend(
        self, defense: CalibratedNoise, model: nn.Module, data: ImageSet, draw: torch.Generator
    ) -> Update:
        side = ClientSide(draw, model, self.images, self.labels, normalise=data.normalise)
        return defense.on_update(self.update, side)


@dataclass(frozen=True)
class Explained:
    """Heat maps of the same n images by many models.

    Args:
        uploaded: By every client's model, ``[clients * n, H, W]``.
        averaged: By the server's model after it averaged them, ``[n, H, W]``.
        accuracy: Of the server's model.
    """

    uploaded: Tensor
    averaged: Tensor
    accuracy: float

    def compare_with(self, clean: Explained, images: Tensor) -> dict[str, Any]:
        """How like the maps of ``clean`` they are, as overlays and bare: means over images."""
        times = len(self.uploaded) // len(images)
        return {
            "accuracy": self.accuracy,
            "without_heat": int(find_cold(self.uploaded).sum()),
            "uploaded": compare_maps(images.repeat(times, 1, 1, 1), clean.uploaded, self.uploaded),
            "averaged": compare_maps(images, clean.averaged, self.averaged),
        }


def compare_maps(images: Tensor, clean: Tensor, other: Tensor) -> dict[str, dict[str, float]]:
    """Mean MSE, PSNR and SSIM of heat maps ``[n, H, W]``: as overlays, and bare.

    Two maps without any heat are equal and explain nothing: such pairs are left out, unless there
    are no others.

    Args:
        images: The images that the maps explain, ``[n, C, H, W]``.
        clean: Maps without a defense.
        other: Maps with one.
    """
    warm = ~(find_cold(clean) & find_cold(other))
    if warm.any():
        images, clean, other = images[warm], clean[warm], other[warm]
    found = {
        "overlay": similarity(overlay(images, clean), overlay(images, other)),
        "map": similarity(to_grey(clean), to_grey(other)),
    }
    return {
        kind: {name: round(float(values.mean()), 4) for name, values in each.items()}
        for kind, each in found.items()
    }


def find_cold(maps: Tensor) -> Tensor:
    """Which of the maps ``[n, H, W]`` are zero everywhere, ``[n]``."""
    return maps.flatten(1).amax(1) == 0


def choose_across_classes(
    labels: Tensor, among: Sequence[int], count: int, draw: torch.Generator
) -> list[int]:
    """Indices of ``count`` random images among some, from as many classes as there are.

    Args:
        labels: Of all images.
        among: Indices of those that may be chosen.
        count: How many are chosen.
        draw: Draws them.
    """
    order = torch.tensor(among)[torch.randperm(len(among), generator=draw)].tolist()
    rounds: dict[int, int] = {}
    ranked = []
    for place in order:
        label = int(labels[place])
        rounds[label] = rounds.get(label, 0) + 1
        ranked.append((rounds[label], place))
    return [place for _, place in sorted(ranked, key=lambda item: item[0])[:count]]
