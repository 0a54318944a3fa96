"""Images that come with scikit-learn and scikit-image: no files, no network."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from keyhole.data.image_set import Array, ImageSet, Size, array_reader, resize

PHOTO_SIZE = 224
CROPS = 4
"""A photo gives its whole centre square, and this many non-overlapping quarters."""


def digits(size: Size | None) -> ImageSet:
    """1,797 handwritten digits of 8x8 pixels (scikit-learn)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return ImageSet(
        name="digits",
        pixels=array_reader(np.round(bunch.images * (255 / 16)).astype(np.uint8), size),
        labels=torch.from_numpy(bunch.target).long(),
        classes=tuple(str(c) for c in range(10)),
        size=size or (8, 8),
        mean=(0.30527,),
        std=(0.37603,),
    )


def faces(size: Size | None) -> ImageSet:
    """100 faces of 25x25 pixels, then 100 patches without a face (scikit-image, from LFW)."""
    from skimage.data import lfw_subset

    array: Array = np.round(np.asarray(lfw_subset()) * 255).astype(np.uint8)
    return ImageSet(
        name="faces",
        pixels=array_reader(array, size),
        labels=torch.tensor([0] * 100 + [1] * 100),
        classes=("face", "no face"),
        size=size or (25, 25),
        mean=(0.37714,),
        std=(0.27277,),
        curated=True,
    )


def photos(size: Size | None) -> ImageSet:
    """Ten colour photos, whole and in quarters, at any square size (scikit-image, scikit-learn)."""
    loaders = photo_loaders()
    names = tuple(loaders)
    squares: dict[str, Tensor] = {}
    target = size or (PHOTO_SIZE, PHOTO_SIZE)

    def load_square(name: str) -> Tensor:
        if name not in squares:
            photo = torch.from_numpy(loaders[name]()[..., :3].copy())
            side = min(photo.shape[:2])
            squares[name] = resize(photo.permute(2, 0, 1)[None], (side, side))
        return squares[name]

    def make_view(index: int) -> Tensor:
        photo = load_square(names[index % len(names)])
        if index < len(names):
            return resize(photo, target)
        half = photo.shape[-1] // 2
        row, column = divmod(index // len(names) - 1, 2)
        quarter = photo[..., row * half : (row + 1) * half, column * half : (column + 1) * half]
        return resize(quarter, target)

    groups = torch.arange(len(names)).repeat(1 + CROPS)
    return ImageSet(
        name="photos",
        pixels=lambda indices: torch.cat([make_view(i) for i in indices]),
        labels=groups,
        classes=names,
        size=target,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        curated=True,
        groups=groups,
    )


def photo_loaders() -> dict[str, Callable[[], Array]]:
    """Returns a loader of each colour photo by name; photos are read on first use."""
    from skimage import data as skimage_data

    return {
        "astronaut": skimage_data.astronaut,
        "cat": skimage_data.chelsea,
        "coffee": skimage_data.coffee,
        "flower": lambda: read_sample("flower.jpg"),
        "motorcycle": lambda: skimage_data.stereo_motorcycle()[0],
        "temple": lambda: read_sample("china.jpg"),
        "rocket": skimage_data.rocket,
        "tissue": skimage_data.immunohistochemistry,
        "retina": skimage_data.retina,
        "galaxies": skimage_data.hubble_deep_field,
    }


def read_sample(name: str) -> Array:
    """Reads a photo of scikit-learn without importing it, which takes as long as all else here."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    with Image.open(Path(package.origin).parent / "datasets" / "images" / name) as photo:
        return np.asarray(photo)
