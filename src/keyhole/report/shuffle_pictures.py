"""Pictures of what CSVAR does to an image, and of what becomes of it in other hands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.defenses import Csvar
from keyhole.defenses.regions import region_side, sensitive, variances, zones
from keyhole.errors import DoesNotFit
from keyhole.report.drawing import HEAT, as_png, show

FINE, COARSE = "#D55E00", "#56B4E9"
"""Lines around fine and coarse blocks."""


def shuffle_explained(
    image: Tensor, path: Path, *, defense: Csvar | None = None, seed: int = 0
) -> Path:
    """Four panels: the image ``[C, H, W]`` in [0, 1], its regions' variance, its blocks, shuffled.

    Returns ``path``, a PNG.
    """
    if image.ndim != 3 or len(image) not in (1, 3):
        raise DoesNotFit(f"a picture needs an image [1 or 3, H, W], not {list(image.shape)}")
    batch = image[None]
    defense = defense or Csvar()
    hidden = defense.shuffle(batch, torch.tensor([seed]))[0]
    spread = whole_image(variances(batch)[0], image.shape[1:])

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 4)
        titles = ("image", "region variance", "blocks", "shuffled")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title)
            axes.set_axis_off()
        show(panels[0], image)
        panels[1].imshow(spread.sqrt().numpy(), cmap=HEAT)
        show(panels[2], image)
        for left, top, side, fine in outlines(batch, defense):
            square = {"fill": False, "edgecolor": FINE if fine else COARSE, "linewidth": 0.6}
            panels[2].add_patch(rectangle((left - 0.5, top - 0.5), side, side, **square))
        show(panels[3], hidden)

    return as_png(draw, path, size=(11, 3.1 * image.shape[1] / image.shape[2] + 0.3))


def outlines(batch: Tensor, defense: Csvar) -> Iterator[tuple[int, int, int, bool]]:
    """Left, top, side of every block of the one image of ``batch``, and whether it is fine."""
    height, width = batch.shape[-2:]
    side, fine = region_side(height, width), sensitive(batch)[0]
    for zone in zones(height, width, defense.block):
        chosen = zone.of_regions(fine, side)
        for row in range(zone.rows):
            for column in range(zone.columns):
                small = bool(chosen[row, column])
                block = zone.fine if small else zone.coarse
                for y in range(row * zone.tall, (row + 1) * zone.tall, block):
                    for x in range(column * zone.wide, (column + 1) * zone.wide, block):
                        yield zone.left + x, zone.top + y, block, small


def whole_image(by_region: Tensor, size: Sequence[int]) -> Tensor:
    """Values by region ``[rows, columns]`` at every pixel, ``[H, W]``."""
    side = region_side(size[0], size[1])
    grown = by_region.repeat_interleave(side, 0).repeat_interleave(side, 1)
    return grown[: size[0], : size[1]]


def rectangle(corner: tuple[float, float], width: int, height: int, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, width, height, **style)
