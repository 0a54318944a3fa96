"""Images that ship with scikit-learn and scikit-image: no files, no network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from keyhole.data.image_set import Array, ImageSet, Size, from_array, resized

PHOTO_SIZE = 224
CROPS = 4
"""Besides its whole centre square, a photo gives this many non-overlapping quarters."""


def digits(size: Size | None) -> ImageSet:
    """1,797 handwritten digits of 8x8 pixels (scikit-learn)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return ImageSet(
        name="digits",
        pixels=from_array(np.round(bunch.images * (255 / 16)).astype(np.uint8), size),
        labels=torch.from_numpy(bunch.target).long(),
        classes=tuple(str(c) for c in range(10)),
        size=size or (8, 8),
        mean=(0.30527,),
        std=(0.37603,),
    )


def faces(size: Size | None) -> ImageSet:
    """100 faces of 25x25 pixels, then 100 patches that are none (scikit-image, from LFW)."""
    from skimage.data import lfw_subset

    array: Array = np.round(np.asarray(lfw_subset()) * 255).astype(np.uint8)
    return ImageSet(
        name="faces",
        pixels=from_array(array, size),
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
    opened: dict[str, Tensor] = {}
    target = size or (PHOTO_SIZE, PHOTO_SIZE)

    def square(name: str) -> Tensor:
        if name not in opened:
            photo = torch.from_numpy(loaders[name]()[..., :3].copy())
            side = min(photo.shape[:2])
            opened[name] = resized(photo.permute(2, 0, 1)[None], (side, side))
        return opened[name]

    def view(index: int) -> Tensor:
        photo = square(names[index % len(names)])
        if index < len(names):
            return resized(photo, target)
        half = photo.shape[-1] // 2
        row, column = divmod(index // len(names) - 1, 2)
        quarter = photo[..., row * half : (row + 1) * half, column * half : (column + 1) * half]
        return resized(quarter, target)

    groups = torch.arange(len(names)).repeat(1 + CROPS)
    return ImageSet(
        name="photos",
        pixels=lambda indices: torch.cat([view(i) for i in indices]),
        labels=groups,
        classes=names,
        size=target,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        curated=True,
        groups=groups,
    )


def photo_loaders() -> dict[str, Callable[[], Array]]:
    """The colour photos at hand, by name; each is read when it is first shown."""
    from skimage import data as skimage_data
    from sklearn.datasets import load_sample_image

    return {
        "astronaut": skimage_data.astronaut,
        "cat": skimage_data.chelsea,
        "coffee": skimage_data.coffee,
        "flower": lambda: load_sample_image("flower.jpg"),
        "motorcycle": lambda: skimage_data.stereo_motorcycle()[0],
        "temple": lambda: load_sample_image("china.jpg"),
        "rocket": skimage_data.rocket,
        "tissue": skimage_data.immunohistochemistry,
        "retina": skimage_data.retina,
        "galaxies": skimage_data.hubble_deep_field,
    }
