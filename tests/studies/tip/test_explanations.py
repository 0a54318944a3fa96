"""Sheets of heat maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from keyhole.errors import DoesNotFit
from keyhole_studies.tip.explanations import draw_heat_maps


def test_a_row_an_image_and_a_column_a_defense(tmp_path: Path) -> None:
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    maps = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1))
    one = draw_heat_maps(images[:1], {"none": maps[:1]}, tmp_path / "made" / "one.png")
    all_ = draw_heat_maps(images, {"none": maps, "dp": 1 - maps, "tip": maps}, tmp_path / "all.png")
    with Image.open(one) as small, Image.open(all_) as large:
        assert large.width == 2 * small.width
        assert large.height > 2.5 * small.height


def test_heat_shows_red_and_cold_blue(tmp_path: Path) -> None:
    """On a black image: the left column is the image, the middle one hot, the right one cold."""
    images = torch.zeros(1, 1, 8, 8)
    path = draw_heat_maps(
        images, {"hot": torch.ones(1, 8, 8), "cold": torch.zeros(1, 8, 8)}, tmp_path / "p"
    )
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    middle = pixels[int(0.6 * len(pixels))]
    left, centre, right = (middle[int(share * len(middle))] for share in (1 / 6, 1 / 2, 5 / 6))
    assert left.tolist() == [0, 0, 0]
    assert centre.tolist() == [64, 0, 0]
    assert right.tolist() == [0, 0, 64]


def test_what_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match="at least one image"):
        draw_heat_maps(torch.zeros(0, 3, 8, 8), {}, tmp_path / "no.png")
    with pytest.raises(DoesNotFit, match="do not fit images"):
        draw_heat_maps(torch.zeros(1, 3, 8, 8), {"none": torch.zeros(1, 4, 4)}, tmp_path / "no.png")
    assert not list(tmp_path.iterdir())
