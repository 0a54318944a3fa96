"""Images and labels: built-in sets, files under a data folder, any folder of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keyhole.data import builtin, files
from keyhole.data.folder import load_image_folder
from keyhole.data.image_set import ImageSet, Size, denormalise, normalise, parse_size
from keyhole.data.normalisation import Normalisation
from keyhole.data.versions import has_versions, load_versions
from keyhole.errors import BadValue, DataMissing
from keyhole.mean_and_std import check_mean_and_std
from keyhole.registry import unknown

__all__ = [
    "SOURCES",
    "ImageSet",
    "Normalisation",
    "Size",
    "Source",
    "denormalise",
    "load",
    "normalise",
    "parse_size",
]

Reader = Callable[[Path, Size | None, str], ImageSet | None]


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded by name.

    Args:
        name: The data set's name.
        summary: One line about it.
        where: The files that it needs in the data folder; empty for built-in data sets.
        read: Loads it from the data folder, at a size and for a split.
        splits: The parts that it has.
        where_test: The files of the test part, if they are others.
    """

    name: str
    summary: str
    where: str
    read: Reader
    splits: tuple[str, ...] = ("train",)
    where_test: str = ""

    def expected_files(self, split: str) -> str:
        """Returns the files that a part needs in the data folder.

        Args:
            split: ``train`` or ``test``.
        """
        return self.where_test if split == "test" and self.where_test else self.where


def _built_in(make: Callable[[Size | None], ImageSet]) -> Reader:
    return lambda root, size, split: make(size)


def _victims(of: str) -> Reader:
    return lambda root, size, split: files.dia_victims(root, size, of=of)


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("digits", "1,797 handwritten digits, 8x8 grey", "", _built_in(builtin.digits)),
        Source("faces", "100 faces (and 100 non-faces), 25x25", "", _built_in(builtin.faces)),
        Source("photos", "10 colour photos, whole and quarters", "", _built_in(builtin.photos)),
        Source(
            "mnist",
            "60,000 handwritten digits, 28x28 grey",
            "mnist/MNIST/raw/train-images-idx3-ubyte.gz and its labels (torchvision's layout)",
            files.mnist,
            ("train", "test"),
            "mnist/MNIST/raw/t10k-images-idx3-ubyte.gz and its labels (torchvision's layout)",
        ),
        Source(
            "cifar10",
            "50,000 colour images of 10 classes, 32x32",
            "cifar10/cifar10_jpeg_train.npz, or cifar-10-batches-py/ (torchvision's layout)",
            files.cifar10,
            ("train", "test"),
            "cifar10/cifar10_jpeg_test.npz, or cifar-10-batches-py/ (torchvision's layout)",
        ),
        Source(
            "cifar100",
            "colour images of 100 classes, 32x32",
            "cifar100/cifar100_lossless_subset.npz, or cifar-100-python/ (torchvision's layout)",
            files.cifar100,
            ("train", "test"),
        ),
        Source(
            "tiny-imagenet",
            "colour images of 200 classes, 64x64",
            "tiny_imagenet/tiny_imagenet_train100.npz, or tiny-imagenet-200/train/",
            files.tiny_imagenet,
            ("train", "test"),
            "tiny_imagenet/tiny_imagenet_val.npz, or tiny-imagenet-200/val/",
        ),
        Source(
            "imagenet-sample",
            "1,000 ImageNet images, one per class, 224x224",
            "imagenet_sample/imagenet_sample_224.npz, or imagenet_sample/CLASS/IMAGE.jpg",
            files.imagenet_sample,
        ),
        Source(
            "orl-faces",
            "400 faces of 40 persons, 112x92 grey",
            "orl_faces/orl_faces.npz, or orl_faces/s1/1.pgm ... s40/10.pgm",
            files.orl_faces,
        ),
        Source(
            "dia-cifar10",
            "the 128 CIFAR-10 victims of the DIA paper",
            "victims/cifar10_128.npz",
            _victims("cifar10"),
        ),
        Source(
            "dia-mnist",
            "the 128 MNIST victims of the DIA paper",
            "victims/mnist_128.npz",
            _victims("mnist"),
        ),
    )
}


def data_folder(data_dir: str | Path | None = None) -> Path | None:
    """Returns the folder of file-based data sets: the argument, or else ``KEYHOLE_DATA``."""
    chosen = data_dir or os.environ.get("KEYHOLE_DATA")
    return Path(chosen).expanduser() if chosen else None


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
    if name not in SOURCES:
        if os.sep in name or Path(name).is_dir():
            folder = Path(name).expanduser()
            read = load_versions if has_versions(folder) else load_image_folder
            return read(folder, size, by_user=by_user)
        raise unknown("data set", name, [*SOURCES, "PATH/TO/FOLDER"])
    source = SOURCES[name]
    if split not in source.splits:
        raise BadValue(f"data set {name!r} has no {split!r} part, only {', '.join(source.splits)}")
    root = data_folder(data_dir)
    if not source.where:
        root = Path()
    elif root is None:
        raise DataMissing(
            f"data set {name!r} is read from files: put {source.expected_files(split)} into a "
            "folder and name it with --data-dir or KEYHOLE_DATA"
        )
    elif not root.is_dir():
        raise DataMissing(f"the data folder {root} does not exist: see --data-dir, KEYHOLE_DATA")
    found = source.read(root, size, split)
    if found is None:
        part = "" if split == "train" else f"the {split} part of "
        raise DataMissing(
            f"{part}data set {name!r} is not in {root}: put {source.expected_files(split)} there"
        )
    return found
