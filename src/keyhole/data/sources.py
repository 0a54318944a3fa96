"""The data sets that Keyhole knows by name, and where their files are; imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import BadValue, DataMissing
from keyhole.lazy import import_on_call
from keyhole.spelling import unknown_name

if TYPE_CHECKING:
    from keyhole.data.image_set import ImageSet, Size

Reader = Callable[[Path, "Size | None", str], "ImageSet | None"]


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


def _built_in(name: str) -> Reader:
    make = import_on_call(f"keyhole.data.builtin:{name}")
    return lambda root, size, split: make(size)


def _files(name: str) -> Reader:
    return import_on_call(f"keyhole.data.files:{name}")


def _victims(of: str) -> Reader:
    read = import_on_call("keyhole.data.files:dia_victims")
    return lambda root, size, split: read(root, size, of=of)


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("digits", "1,797 handwritten digits, 8x8 grey", "", _built_in("digits")),
        Source("faces", "100 faces (and 100 non-faces), 25x25", "", _built_in("faces")),
        Source("photos", "10 colour photos, whole and quarters", "", _built_in("photos")),
        Source(
            "mnist",
            "60,000 handwritten digits, 28x28 grey",
            "mnist/MNIST/raw/train-images-idx3-ubyte.gz and its labels (torchvision's layout)",
            _files("mnist"),
            ("train", "test"),
            "mnist/MNIST/raw/t10k-images-idx3-ubyte.gz and its labels (torchvision's layout)",
        ),
        Source(
            "cifar10",
            "50,000 colour images of 10 classes, 32x32",
            "cifar10/cifar10_jpeg_train.npz, or cifar-10-batches-py/ (torchvision's layout)",
            _files("cifar10"),
            ("train", "test"),
            "cifar10/cifar10_jpeg_test.npz, or cifar-10-batches-py/ (torchvision's layout)",
        ),
        Source(
            "cifar100",
            "colour images of 100 classes, 32x32",
            "cifar100/cifar100_lossless_subset.npz, or cifar-100-python/ (torchvision's layout)",
            _files("cifar100"),
            ("train", "test"),
        ),
        Source(
            "tiny-imagenet",
            "colour images of 200 classes, 64x64",
            "tiny_imagenet/tiny_imagenet_train100.npz, or tiny-imagenet-200/train/",
            _files("tiny_imagenet"),
            ("train", "test"),
            "tiny_imagenet/tiny_imagenet_val.npz, or tiny-imagenet-200/val/",
        ),
        Source(
            "imagenet-sample",
            "1,000 ImageNet images, one per class, 224x224",
            "imagenet_sample/imagenet_sample_224.npz, or imagenet_sample/CLASS/IMAGE.jpg",
            _files("imagenet_sample"),
        ),
        Source(
            "orl-faces",
            "400 faces of 40 persons, 112x92 grey",
            "orl_faces/orl_faces.npz, or orl_faces/s1/1.pgm ... s40/10.pgm",
            _files("orl_faces"),
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


OWN_FOLDER = "PATH/TO/FOLDER"
"""How a folder of images is named."""


def data_folder(data_dir: str | Path | None = None) -> Path | None:
    """Returns the folder of file-based data sets: the argument, or else ``KEYHOLE_DATA``."""
    chosen = data_dir or os.environ.get("KEYHOLE_DATA")
    return Path(chosen).expanduser() if chosen else None


def check_source(name: str, *, data_dir: str | Path | None = None, split: str = "train") -> None:
    """Raises where :func:`keyhole.data.load` cannot find a data set; reads none of its images.

    Args:
        name: The name of a data set, or a path.
        data_dir: The folder of file-based data sets; None means ``KEYHOLE_DATA``.
        split: ``train`` or ``test``.
    """
    if name in SOURCES:
        find_root(SOURCES[name], data_dir, split)
    elif is_path(name):
        check_folder(Path(name).expanduser())
    else:
        raise unknown_name("data set", name, known_sources())


def known_sources() -> list[str]:
    """Returns what a data set may be called."""
    return [*SOURCES, OWN_FOLDER]


def is_path(name: str) -> bool:
    """Returns whether a name stands for a folder rather than for a data set."""
    return os.sep in name or Path(name).is_dir()


def check_folder(root: Path) -> None:
    """Raises where there is no folder of images."""
    if not root.is_dir():
        raise DataMissing(f"{root} is not a folder of images")


def find_root(source: Source, data_dir: str | Path | None, split: str) -> Path:
    """Returns the folder that a data set is read from; raises where it cannot be there."""
    if split not in source.splits:
        listed = ", ".join(source.splits)
        raise BadValue(f"data set {source.name!r} has no {split!r} part, only {listed}")
    root = data_folder(data_dir)
    if not source.where:
        return Path()
    if root is None:
        raise DataMissing(
            f"data set {source.name!r} is read from files: put {source.expected_files(split)} into "
            "a folder and name it with --data-dir or KEYHOLE_DATA"
        )
    if not root.is_dir():
        raise DataMissing(f"the data folder {root} does not exist: see --data-dir, KEYHOLE_DATA")
    return root
