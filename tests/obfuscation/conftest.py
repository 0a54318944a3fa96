from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

RNG = np.random.default_rng(1)

SHAPES = {
    "cat/rgb.png": (40, 33, 3),
    "cat/photo.jpg": (33, 47, 3),
    "cat/old/grey.bmp": (17, 16),
    "dog/alpha.png": (20, 24, 4),
    "dog/grey alpha.png": (16, 16, 2),
    "dog/ünïcode\n.webp": (24, 24, 3),
    "one.png": (1, 1, 3),
}


def smooth(*shape: int) -> np.ndarray:
    """Noise on a slope: regions of unlike variance."""
    slope = np.linspace(0, 200, shape[1]).reshape(1, -1, *(1 for _ in shape[2:]))
    rough = RNG.integers(0, 50, shape) * (np.arange(shape[0]) > shape[0] // 2).reshape(
        -1, *(1 for _ in shape[1:])
    )
    return (slope + rough).astype(np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of pictures of all kinds."""
    root = tmp_path / "photos"
    for name, shape in SHAPES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth(*shape)).save(root / name)
    Image.fromarray(smooth(30, 30) > 90).save(root / "dog" / "bilevel.png")
    deep = smooth(30, 20).astype(np.uint16) * 257
    Image.fromarray(deep).save(root / "dog" / "deep.png")
    return root


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "site.key"
    path.write_text(bytes(range(32)).hex())
    return path
