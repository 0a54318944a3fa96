"""A sheet of heat maps: what a network looks at without a defense, and with each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.metrics.heatmaps import PEAK, overlay
from keyhole_studies.drawing import draw_comparison


def draw_heat_maps(images: Tensor, maps: Mapping[str, Tensor], path: Path) -> Path:
    """Draws images, one row each, beside their heat maps. Returns ``path``, a PNG.

    Args:
        images: ``[n, C, H, W]`` in [0, 1].
        maps: Heat maps ``[n, H, W]`` in [0, 1] by the name of their column, in its order: those
            without a defense first.
        path: The file to write.
    """
    if not len(images):
        raise DoesNotFit("a sheet of heat maps needs at least one image")
    columns = {"image": list(images)}
    for name, each in maps.items():
        columns[name] = list(overlay(images, each.to(images)).double() / PEAK)
    return draw_comparison(columns, path)
