"""The public images that the shipped unscrambler learnt from, and those it was chosen by.

Victims are drawn from the training parts of data sets, so that an audit never meets an image of
these: they are of the test parts of tiny-imagenet and MNIST, whose digits other people wrote.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from keyhole.attacks.unshuffle.learned.puzzles import Album
from keyhole.data import load

PHOTOS = range(9_500)
DIGITS = range(1_000, 9_500)
"""The first thousand are left for whoever wants to try the test part."""
HELD_OUT = range(9_500, 10_000)
"""Of both sets: settings are chosen by these."""
TRAINED_ON = (
    "tiny-imagenet's test images 0-9499 at 25, 32 (grey, colour) and 64 px, "
    "MNIST's test images 1000-9499"
)


def public_albums(data_dir: str | Path | None = None, *, most: int | None = None) -> list[Album]:
    """Photos in grey at three scales and in colour, and before each of them digits again.

    ``most``: so many of each set, for a trial.
    """

    def photos(side: int) -> Tensor:
        data = load("tiny-imagenet", image_size=side, data_dir=data_dir, split="test")
        return data.pixels(PHOTOS[:most])

    read = load("mnist", data_dir=data_dir, split="test").pixels(DIGITS[:most])
    digits = Album(read, (28,), mirrored=False)
    small = photos(32)
    scenes = [
        Album(grey(small), (28, 32)),
        Album(grey(photos(25)), (24,)),
        Album(small, (32,)),
        Album(grey(photos(64)), (32,)),
    ]
    return [album for scene in scenes for album in (digits, scene)]


def grey(pixels: Tensor) -> Tensor:
    """The mean of the planes of ``pixels [N, C, H, W]``, uint8 ``[N, 1, H, W]``."""
    return pixels.float().mean(1, keepdim=True).round().byte()
