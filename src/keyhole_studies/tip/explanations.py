"""Heat maps of clients' models: how alike they stay under a defense, and a sheet of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.data import ImageSet
from keyhole.defenses import CalibratedNoise, ClientSide
from keyhole.errors import DoesNotFit
from keyhole.metrics import compare_heat_maps, overlay_heat_maps
from keyhole.update import Update
from keyhole_studies.drawing import draw_comparison


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
class Explanations:
    """Heat maps of the same n images by many models.

    Args:
        uploaded: By every client's model, ``[clients * n, H, W]``.
        averaged: By the server's model after it averaged them, ``[n, H, W]``.
        accuracy: Of the server's model.
    """

    uploaded: Tensor
    averaged: Tensor
    accuracy: float

    def compare_with(self, clean: Explanations, images: Tensor) -> dict[str, Any]:
        """How like the maps of ``clean`` they are, as overlays and bare: means over images."""
        times = len(self.uploaded) // len(images)
        return {
            "accuracy": self.accuracy,
            "without_heat": int(find_blank(self.uploaded).sum()),
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
    warm = ~(find_blank(clean) & find_blank(other))
    if warm.any():
        images, clean, other = images[warm], clean[warm], other[warm]
    return {
        kind: {name: round(float(values.mean()), 4) for name, values in each.items()}
        for kind, each in compare_heat_maps(images, clean, other).items()
    }


def find_blank(maps: Tensor) -> Tensor:
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


def draw_heat_maps(images: Tensor, maps: Mapping[str, Tensor], path: Path) -> Path:
    """Draws images, one row each, beside their heat maps. Returns ``path``, a PNG.

    Args:
        images: ``[n, C, H, W]`` in [0, 1].
        maps: Heat maps ``[n, H, W]`` in [0, 1] by the name of their column, in its order.
        path: The file to write.
    """
    if not len(images):
        raise DoesNotFit("a sheet of heat maps needs at least one image")
    columns = {"image": list(images)}
    for name, each in maps.items():
        columns[name] = list(overlay_heat_maps(images, each.to(images)).double() / 255)
    return draw_comparison(columns, path)
