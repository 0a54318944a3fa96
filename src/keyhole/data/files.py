"""Data sets read from files under a data folder.

Each function first looks for a compact archive (npz), then for the layout that torchvision or the
data set's own distribution uses. ``SOURCES`` of :mod:`keyhole.data` says which files go where.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from keyhole.data.folder import IMAGENET_MEAN, IMAGENET_STD, load_image_folder
from keyhole.data.image_file import IMAGE_ERRORS, describe_error, open_image_stream
from keyhole.data.image_set import Array, ImageSet, Pixels, Size, array_reader, resize
from keyhole.errors import DataMissing, one_line

MNIST_MEAN, MNIST_STD = (0.13066,), (0.30811,)
CIFAR10_MEAN, CIFAR10_STD = (0.49147, 0.48226, 0.44677), (0.24703, 0.24349, 0.26159)
CIFAR100_MEAN, CIFAR100_STD = (0.50707, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def find_first(root: Path, *candidates: str) -> Path | None:
    """Returns the first of ``candidates`` that exists in ``root``."""
    return next((root / c for c in candidates if (root / c).exists()), None)


@cache
def load_archive(path: Path) -> dict[str, Array]:
    """Reads the arrays of an npz file, once; object arrays (pickles) are refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise DataMissing(f"{path} cannot be read ({one_line(error)}): copy it again") from None


def jpeg_reader(arrays: dict[str, Array], size: Size | None, *, exact: dict[int, Array]) -> Pixels:
    """Returns a reader over concatenated JPEGs; ``exact`` has lossless pixels of some indices."""
    data, offsets = arrays["bytes"], arrays["offsets"]

    def decode(i: int) -> Tensor:
        if i in exact:
            array = exact[i]
        else:
            raw = io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes())
            array = decode_jpeg(raw, i)
        image = torch.from_numpy(np.array(array)).permute(2, 0, 1)[None]
        return resize(image, size) if size else image

    def read(indices: Sequence[int]) -> Tensor:
        return torch.cat([decode(int(i)) for i in indices])

    return read


def decode_jpeg(raw: io.BytesIO, number: int) -> Array:
    """Decodes an image of an archive."""
    try:
        with open_image_stream(raw) as image:
            return np.asarray(image.convert("RGB"))
    except IMAGE_ERRORS as error:
        why = describe_error(error, Path())
        raise DataMissing(f"image {number} of an archive cannot be read ({why})") from None


def mnist(root: Path, size: Size | None, split: str) -> ImageSet | None:
    part = "train" if split == "train" else "t10k"
    files = []
    for kind in ("images-idx3", "labels-idx1"):
        stem = f"MNIST/raw/{part}-{kind}-ubyte"
        found = find_first(root, f"mnist/{stem}.gz", f"mnist/{stem}", f"{stem}.gz", stem)
        if found is None:
            return None
        files.append(found)
    images, labels = read_idx_file(files[0], dimensions=3), read_idx_file(files[1], dimensions=1)
    if len(images) != len(labels):
        raise DataMissing(
            f"{files[0].name} has {len(images)} images, {files[1].name} {len(labels)} labels: "
            "copy both again"
        )
    return ImageSet(
        name="mnist",
        pixels=array_reader(images, size),
        labels=torch.from_numpy(labels.copy()).long(),
        classes=tuple(str(c) for c in range(10)),
        size=size or (images.shape[1], images.shape[2]),
        mean=MNIST_MEAN,
        std=MNIST_STD,
    )


def read_idx_file(path: Path, *, dimensions: int) -> Array:
    """Reads the unsigned bytes of an IDX file, plain or gzipped, in the shape of its header."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataMissing(f"{path} cannot be read ({one_line(error)}): copy it again") from None


def cifar10(root: Path, size: Size | None, split: str) -> ImageSet | None:
    jpegs = find_first(root, f"cifar10/cifar10_jpeg_{split}.npz")
    if jpegs is None:
        return torchvision_cifar(root, size, split, name="cifar10")
    arrays = load_archive(jpegs)
    exact: dict[int, Array] = {}
    lossless = find_first(root, "cifar10/cifar10_lossless_subset.npz")
    if lossless is not None:
        subset = load_archive(lossless)
        indices = (int(i) for i in subset[f"{split}_index"])
        exact = dict(zip(indices, subset[f"{split}_images"], strict=True))
    return ImageSet(
        name="cifar10",
        pixels=jpeg_reader(arrays, size, exact=exact),
        labels=torch.from_numpy(arrays["labels"].astype(np.int64)),
        classes=CIFAR10_CLASSES,
        size=size or (32, 32),
        mean=CIFAR10_MEAN,
        std=CIFAR10_STD,
    )


def cifar100(root: Path, size: Size | None, split: str) -> ImageSet | None:
    path = find_first(root, "cifar100/cifar100_lossless_subset.npz")
    if path is None:
        return torchvision_cifar(root, size, split, name="cifar100")
    arrays = load_archive(path)
    return ImageSet(
        name="cifar100",
        pixels=array_reader(arrays[f"{split}_images"], size),
        labels=torch.from_numpy(arrays[f"{split}_labels"].astype(np.int64)),
        classes=tuple(str(c) for c in arrays["classes"]),
        size=size or (32, 32),
        mean=CIFAR100_MEAN,
        std=CIFAR100_STD,
    )


def torchvision_cifar(root: Path, size: Size | None, split: str, *, name: str) -> ImageSet | None:
    """Loads torchvision's layout; torchvision checks the files' md5 sums first."""
    from torchvision import datasets

    kind = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
    for folder in (root, root / name):
        if (folder / kind.base_folder).is_dir():
            listed = kind.train_list if split == "train" else kind.test_list
            for file in (*(file for file, _ in listed), kind.meta["filename"]):
                path = folder / kind.base_folder / file
                if not path.is_file():
                    raise DataMissing(f"{path} is missing: put it there")
            try:
                data = kind(str(folder), train=split == "train", download=False)
            except RuntimeError as error:
                raise DataMissing(f"{folder / kind.base_folder}: {one_line(error)}") from None
            return ImageSet(
                name=name,
                pixels=array_reader(data.data, size),
                labels=torch.tensor(data.targets),
                classes=tuple(data.classes),
                size=size or (32, 32),
                mean=CIFAR10_MEAN if name == "cifar10" else CIFAR100_MEAN,
                std=CIFAR10_STD if name == "cifar10" else CIFAR100_STD,
            )
    return None


def imagenet_jpegs(path: Path, size: Size | None, *, name: str, natural: Size) -> ImageSet:
    arrays = load_archive(path)
    return ImageSet(
        name=name,
        pixels=jpeg_reader(arrays, size, exact={}),
        labels=torch.from_numpy(arrays["labels"].astype(np.int64)),
        classes=tuple(str(c) for c in arrays["names"]),
        size=size or natural,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def tiny_imagenet(root: Path, size: Size | None, split: str) -> ImageSet | None:
    stem = "tiny_imagenet_train100" if split == "train" else "tiny_imagenet_val"
    path = find_first(root, f"tiny_imagenet/{stem}.npz")
    if path is not None:
        return imagenet_jpegs(path, size, name="tiny-imagenet", natural=(64, 64))
    folder = find_first(root, f"tiny-imagenet-200/{'train' if split == 'train' else 'val'}")
    return (
        None
        if folder is None
        else load_image_folder(folder, size or (64, 64), name="tiny-imagenet")
    )


def imagenet_sample(root: Path, size: Size | None, split: str) -> ImageSet | None:
    del split  # one image per class: there is only one part
    path = find_first(root, "imagenet_sample/imagenet_sample_224.npz")
    if path is not None:
        return imagenet_jpegs(path, size, name="imagenet-sample", natural=(224, 224))
    folder = find_first(root, "imagenet_sample", "imagenet-sample")
    return (
        None
        if folder is None
        else load_image_folder(folder, size or (224, 224), name="imagenet-sample")
    )


def orl_faces(root: Path, size: Size | None, split: str) -> ImageSet | None:
    del split
    path = find_first(root, "orl_faces/orl_faces.npz")
    if path is None:
        folder = find_first(root, "orl_faces", "orl-faces", "att_faces")
        return None if folder is None else load_image_folder(folder, size, name="orl-faces")
    arrays = load_archive(path)
    return ImageSet(
        name="orl-faces",
        pixels=array_reader(arrays["images"], size),
        labels=torch.from_numpy(arrays["labels"].astype(np.int64)),
        classes=tuple(f"s{i + 1}" for i in range(40)),
        size=size or (112, 92),
        mean=(0.44169,),
        std=(0.19578,),
    )


def dia_victims(root: Path, size: Size | None, *, of: str) -> ImageSet | None:
    """Loads the 128 images that the DIA paper attacks, in its order."""
    path = find_first(root, f"victims/{of}_128.npz")
    if path is None:
        return None
    arrays = load_archive(path)
    pixels = np.transpose(arrays["images_u8"], (0, 2, 3, 1))
    grey = pixels.shape[-1] == 1
    return ImageSet(
        name=f"dia-{of}",
        pixels=array_reader(pixels[..., 0] if grey else pixels, size),
        labels=torch.from_numpy(arrays["targets"].astype(np.int64)),
        classes=CIFAR10_CLASSES if of == "cifar10" else tuple(str(c) for c in range(10)),
        size=size or (pixels.shape[1], pixels.shape[2]),
        mean=tuple(float(m) for m in arrays["mean"].reshape(-1)),
        std=tuple(float(s) for s in arrays["std"].reshape(-1)),
        curated=True,
    )
