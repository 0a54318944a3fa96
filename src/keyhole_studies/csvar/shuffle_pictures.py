"""Pictures of what CSVAR does to an image, and of what becomes of it in other hands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.defenses import (
    Csvar,
    compute_region_variances,
    find_sensitive_regions,
    region_side,
    split_into_zones,
)
from keyhole.errors import DoesNotFit
from keyhole_studies.drawing import HEAT, save_png, show_image

FINE, COARSE = "#D55E00", "#56B4E9"
"""Lines around fine and coarse blocks."""


def draw_shuffle(image: Tensor, path: Path, *, defense: Csvar | None = None, seed: int = 0) -> Path:
    """Draws four panels: an image, its regions' variance, its blocks, and the image shuffled.

    Returns ``path``, a PNG.

    Args:
        image: ``[C, H, W]`` in [0, 1].
        path: The file to write.
        defense: CSVAR's settings; None: its defaults.
        seed: Of the shuffle.
    """
    if image.ndim != 3 or len(image) not in (1, 3):
        raise DoesNotFit(f"a picture needs an image [1 or 3, H, W], not {list(image.shape)}")
    batch = image[None]
    defense = defense or Csvar()
    hidden = defense.shuffle(batch, torch.tensor([seed]))[0]
    spread = spread_regions(compute_region_variances(batch)[0], image.shape[1:])

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 4)
        titles = ("image", "region variance", "blocks", "shuffled")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title)
            axes.set_axis_off()
        show_image(panels[0], image)
        panels[1].imshow(spread.sqrt().numpy(), cmap=HEAT)
        show_image(panels[2], image)
        for left, top, side, fine in find_block_outlines(batch, defense):
            square = {"fill": False, "edgecolor": FINE if fine else COARSE, "linewidth": 0.6}
            panels[2].add_patch(make_rectangle((left - 0.5, top - 0.5), side, side, **square))
        show_image(panels[3], hidden)

    return save_png(draw, path, size=(11, 3.1 * image.shape[1] / image.shape[2] + 0.3))


def find_block_outlines(batch: Tensor, defense: Csvar) -> Iterator[tuple[int, int, int, bool]]:
    """Left, top, side of every block of the one image of ``batch``, and whether it is fine."""
    height, width = batch.shape[-2:]
    side, fine = region_side(height, width), find_sensitive_regions(batch)[0]
    for zone in split_into_zones(height, width, defense.block):
        chosen = zone.select_regions(fine, side)
        for row in range(zone.rows):
            for column in range(zone.columns):
                small = bool(chosen[row, column])
                block = zone.fine if small else zone.coarse
                for y in range(row * zone.tall, (row + 1) * zone.tall, block):
                    for x in range(column * zone.wide, (column + 1) * zone.wide, block):
                        yield zone.left + x, zone.top + y, block, small


def spread_regions(by_region: Tensor, size: Sequence[int]) -> Tensor:
    """Values by region ``[rows, columns]`` at every pixel, ``[H, W]``."""
    side = region_side(size[0], size[1])
    grown = by_region.repeat_interleave(side, 0).repeat_interleave(side, 1)
    return grown[: size[0], : size[1]]


def make_rectangle(corner: tuple[float, float], width: int, height: int, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, width, height, **style)
