"""A sheet of heat maps: what a network looks at without a defense, and with each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.metrics.heatmaps import FULL, overlay
from keyhole.report.drawing import comparison


def draw(images: Tensor, maps: Mapping[str, Tensor], path: Path) -> Path:
    """Images ``[n, C, H, W]`` in [0, 1], a row each, beside their overlays under every name.

    ``maps`` are heat maps ``[n, H, W]`` in [0, 1] by the name of their column, in its order: the
    undefended ones first. Returns ``path``, a PNG.
    """
    if not len(images):
        raise DoesNotFit("a sheet of heat maps needs at least one image")
    columns = {"image": list(images)}
    for name, each in maps.items():
        columns[name] = list(overlay(images, each.to(images)).double() / FULL)
    return comparison(columns, path)
