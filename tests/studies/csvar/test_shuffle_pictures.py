"""Pictures of shuffles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from keyhole.defenses import Csvar
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.errors import DoesNotFit
from keyhole_studies.csvar.shuffle_pictures import draw_shuffle, find_block_outlines, spread_regions
from keyhole_studies.drawing import draw_comparison


def test_four_panels_are_drawn(tmp_path: Path) -> None:
    image = torch.rand(3, 32, 40, generator=torch.Generator().manual_seed(0))
    path = draw_shuffle(image, tmp_path / "made" / "how.png")
    with Image.open(path) as picture:
        assert picture.width > 3 * picture.height
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 500
    grey = draw_shuffle(image[:1], tmp_path / "grey.png")
    assert grey.is_file()


@pytest.mark.parametrize("shape", [(2, 8, 8), (8, 8), (1, 3, 8, 8)])
def test_what_is_no_picture_is_told(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match="a picture needs an image"):
        draw_shuffle(torch.rand(shape), tmp_path / "no.png")


@pytest.mark.parametrize("size", [(32, 32), (28, 25)])
def test_blocks_are_outlined_as_they_are_shuffled(size: tuple[int, int]) -> None:
    """They cover the image, fine ones where it is sensitive."""
    batch = torch.rand(1, 1, *size, generator=torch.Generator().manual_seed(1))
    covered, is_fine = torch.zeros(size), torch.zeros(size)
    for left, top, side, fine in find_block_outlines(batch, Csvar()):
        covered[top : top + side, left : left + side] += 1
        is_fine[top : top + side, left : left + side] = float(fine)
    assert bool((covered == 1).all())
    assert torch.equal(is_fine, spread_regions(find_sensitive_regions(batch)[0].float(), size))


def test_columns_stand_side_by_side(tmp_path: Path) -> None:
    images = [torch.zeros(1, 8, 8), torch.ones(1, 8, 8)]
    one = draw_comparison({"a": images}, tmp_path / "one.png")
    three = draw_comparison({"a": images, "b": images, "c": images}, tmp_path / "three.png")
    with Image.open(one) as narrow, Image.open(three) as wide:
        assert wide.width > 2 * narrow.width
        assert wide.height == narrow.height
