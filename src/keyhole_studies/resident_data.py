"""Data sets in the device's memory: which images train, which test, and accuracy on the latter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from keyhole.data import SOURCES, ImageSet, load
from keyhole.defenses import ClientSide, Defense
from keyhole.seeds import generator

TEST_SHARE = 0.2
"""The share of a data set that is kept for tests where it has no test part of its own."""
READ_AT_ONCE = 5000
EVALUATED_AT_ONCE = 1000


@dataclass(frozen=True)
class ResidentData:
    """A data set in memory.

    Args:
        data: The images to train on, and perhaps others.
        train_indices: Indices of the images to train on.
        test: The images to test on, and perhaps others; may be ``data`` itself.
        test_indices: Indices of the images to test on.
    """

    data: ImageSet
    train_indices: list[int]
    test: ImageSet
    test_indices: list[int]


@lru_cache(maxsize=1)
def load_resident_data(
    name: str,
    data_dir: str | None,
    seed: int,
    device: torch.device,
    image_size: int | None = None,
) -> ResidentData:
    """Loads a data set into memory. The last one that was asked for stays there.

    Tests take the data set's own test part where it has one, else a fifth of the images.

    Args:
        name: The data set.
        data_dir: Folder of data sets; None: the one that ``KEYHOLE_DATA`` names.
        seed: Decides which fifth is tested on.
        device: Where images are kept.
        image_size: Images are scaled to it; None: they keep their size.
    """
    data = keep_on_device(load(name, image_size=image_size, data_dir=data_dir), device)
    every = list(range(len(data)))
    if name in SOURCES and "test" in SOURCES[name].splits:
        test = keep_on_device(
            load(name, image_size=image_size, data_dir=data_dir, split="test"), device
        )
        return ResidentData(data, every, test, list(range(len(test))))
    order = torch.randperm(len(every), generator=generator(seed, "held out")).tolist()
    count = round(TEST_SHARE * len(order))
    return ResidentData(data, sorted(order[count:]), data, sorted(order[:count]))


def keep_on_device(data: ImageSet, device: torch.device) -> ImageSet:
    """The set with all its images decoded once and kept on the device."""
    starts = range(0, len(data), READ_AT_ONCE)
    pixels = torch.cat(
        [data.pixels(range(i, min(i + READ_AT_ONCE, len(data)))) for i in starts]
    ).to(device)
    return replace(data, pixels=lambda indices: pixels[torch.as_tensor(indices).to(device)])


@torch.no_grad()
def measure_accuracy(
    model: nn.Module,
    data: ImageSet,
    indices: Sequence[int],
    *,
    defense: Defense | None = None,
    seed: int = 0,
) -> float:
    """The share of images that a model classifies right, in evaluation mode.

    Args:
        model: Left in evaluation mode.
        data: The images.
        indices: Which of them are classified.
        defense: Changes the images before the model sees them.
        seed: Of the defense's draws.
    """
    model.eval()
    side = ClientSide(generator(seed, "evaluation"))
    right = 0
    for images, labels in iterate_batches(data, indices, next(model.parameters())):
        shown = images if defense is None else defense.on_images(images, side)
        right += int((model(data.normalise(shown)).argmax(1) == labels).sum())
    return right / len(indices)


def iterate_batches(
    data: ImageSet, indices: Sequence[int], like: Tensor, size: int = EVALUATED_AT_ONCE
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images ``[n, C, H, W]`` in [0, 1] and labels ``[n]`` in order, as ``like`` is placed."""
    for start in range(0, len(indices), size):
        some = list(indices[start : start + size])
        yield data.images(some).to(like), data.labels[some].to(like.device)
