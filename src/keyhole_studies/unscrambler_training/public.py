"""The public images that the shipped unscrambler was trained on, and those it was chosen by.

They are from the test parts of tiny-imagenet and MNIST, whose digits other people wrote. Victims
are drawn from the training parts of data sets: an audit never meets any of these images.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from keyhole.data import load
from keyhole_studies.unscrambler_training.puzzles import PublicImages

PHOTOS = range(9_500)
DIGITS = range(1_000, 9_500)
"""The first thousand are left for whoever wants to try the test part."""
HELD_OUT = range(9_500, 10_000)
"""Of both sets: settings are chosen by these."""
TRAINED_ON = (
    "tiny-imagenet's test images 0-9499 at 25, 32 (grey, colour) and 64 px, "
    "MNIST's test images 1000-9499"
)


def load_public_images(
    data_dir: str | Path | None = None, *, most: int | None = None
) -> list[PublicImages]:
    """Photos in grey at three scales and in colour, and before each of these sets the digits again.

    Args:
        data_dir: The folder of tiny-imagenet and MNIST; None: the one that ``KEYHOLE_DATA`` names.
        most: At most so many images of each set, for a trial.
    """

    def photos(side: int) -> Tensor:
        data = load("tiny-imagenet", image_size=side, data_dir=data_dir, split="test")
        return data.pixels(PHOTOS[:most])

    read = load("mnist", data_dir=data_dir, split="test").pixels(DIGITS[:most])
    digits = PublicImages(read, (28,), mirrored=False)
    small = photos(32)
    scenes = [
        PublicImages(to_grey(small), (28, 32)),
        PublicImages(to_grey(photos(25)), (24,)),
        PublicImages(small, (32,)),
        PublicImages(to_grey(photos(64)), (32,)),
    ]
    return [images for scene in scenes for images in (digits, scene)]


def to_grey(pixels: Tensor) -> Tensor:
    """The mean over the channels of ``pixels [N, C, H, W]``, uint8 ``[N, 1, H, W]``."""
    return pixels.float().mean(1, keepdim=True).round().byte()
