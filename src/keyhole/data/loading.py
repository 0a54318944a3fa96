"""Loads a data set by its name, or any folder of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keyhole.data.folder import load_image_folder
from keyhole.data.image_set import ImageSet, Size, parse_size
from keyhole.data.sources import SOURCES, Source, check_source, find_root
from keyhole.data.versions import has_versions, load_versions
from keyhole.errors import DataMissing
from keyhole.mean_and_std import check_mean_and_std


def load(
    name: str,
    *,
    image_size: str | int | Size | None = None,
    data_dir: str | Path | None = None,
    split: str = "train",
    by_user: bool = False,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> ImageSet:
    """Loads a data set by name, or any folder of images by its path.

    Args:
        name: The name of a data set, or a path.
        image_size: The size to scale images to: ``224``, or ``112x92`` (height x width). None means
            their own size.
        data_dir: The folder of file-based data sets; None means ``KEYHOLE_DATA``.
        split: ``train`` or ``test``.
        by_user: Whether a folder is read as USER/CLASS/IMAGE.
        mean: Replaces the data set's mean: one number, or one per channel; given with ``std``.
        std: Replaces its standard deviation.

    >>> digits = load("digits")
    >>> len(digits), digits.shape, digits.images([0]).shape
    (1797, (1, 8, 8), torch.Size([1, 1, 8, 8]))
    """
    check_mean_and_std(mean, std)
    data = _read(name, parse_size(image_size), data_dir, split, by_user=by_user)
    return data if mean is None or std is None else data.with_normalisation(mean, std)


def _read(
    name: str, size: Size | None, data_dir: str | Path | None, split: str, *, by_user: bool
) -> ImageSet:
    if name in SOURCES:
        return _read_source(SOURCES[name], size, data_dir, split)
    check_source(name)
    folder = Path(name).expanduser()
    read = load_versions if has_versions(folder) else load_image_folder
    return read(folder, size, by_user=by_user)


def _read_source(
    source: Source, size: Size | None, data_dir: str | Path | None, split: str
) -> ImageSet:
    root = find_root(source, data_dir, split)
    found = source.read(root, size, split)
    if found is None:
        part = "" if split == "train" else f"the {split} part of "
        raise DataMissing(
            f"{part}data set {source.name!r} is not in {root}: put {source.expected_files(split)} "
            "there"
        )
    return found
