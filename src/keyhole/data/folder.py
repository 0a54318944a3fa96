"""Any folder of images: one subfolder per class, or images alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from keyhole.data.image_file import IMAGE_ERRORS, describe_error, open_image
from keyhole.data.image_set import ImageSet, Pixels, Size, resize
from keyhole.data.sources import check_folder
from keyhole.errors import DataMissing

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp", ".tif", ".tiff", ".gif"}
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def load_image_folder(
    root: Path, size: Size | None, *, name: str | None = None, by_user: bool = False
) -> ImageSet:
    """Loads ``root/class/image.png`` (torchvision's ImageFolder), or ``root/image.png``.

    With ``by_user``, ``root/user/class/image.png``. All images must have the same size unless
    ``size`` is given; then each is scaled and centre-cropped.
    """
    files, labels, classes = find_images(root, depth=1 if by_user else 0)
    users = user_numbers([file.relative_to(root) for file in files]) if by_user else None
    sizes: dict[Size, Path] = {}
    grey = True
    for file in files:
        file_size, file_is_grey = read_image_header(file)
        sizes.setdefault(file_size, file)
        grey = grey and file_is_grey
    target = common_size(root, sizes, size)
    pixels = make_reader(files, target, grey=grey)
    return make_image_set(
        name or str(root), pixels, labels, classes, target, grey=grey, users=users
    )


def read_image_header(file: Path) -> tuple[Size, bool]:
    """Returns the size of an image, and whether it is grey; the error names an unreadable file."""
    try:
        with open_image(file) as image:
            return (image.height, image.width), image.mode in {"L", "1"}
    except IMAGE_ERRORS as error:
        raise unreadable_image(file, error) from None


def common_size(root: Path, sizes: Mapping[Size, Path], wanted: Size | None) -> Size:
    """Returns the wanted size, or the one that all images have; raises if they differ."""
    if wanted is None and len(sizes) > 1:
        (one, at), (two, other) = list(sizes.items())[:2]
        raise DataMissing(
            f"the images under {root} differ in size ({at.name} is {one[0]}x{one[1]}, "
            f"{other.name} {two[0]}x{two[1]}): pass --image-size"
        )
    return wanted or next(iter(sizes))


def make_reader(files: Sequence[Path], size: Size, *, grey: bool) -> Pixels:
    """Returns a reader that opens files on request."""

    def read(indices: Sequence[int]) -> Tensor:
        return torch.cat([resize(decode_image(files[i], grey=grey), size) for i in indices])

    return read


def make_image_set(
    name: str,
    pixels: Pixels,
    labels: Sequence[int],
    classes: tuple[str, ...],
    size: Size,
    *,
    grey: bool,
    users: Tensor | None = None,
    versions: tuple[Pixels, ...] = (),
) -> ImageSet:
    """Returns a data set with a default normalisation: nothing is known besides the files."""
    return ImageSet(
        name=name,
        pixels=pixels,
        labels=torch.tensor(labels),
        classes=classes,
        size=size,
        mean=(0.5,) if grey else IMAGENET_MEAN,
        std=(0.25,) if grey else IMAGENET_STD,
        users=users,
        versions=versions,
    )


def find_images(root: Path, depth: int = 0) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Returns files, labels and classes in ``root``, sorted; classes are folders at ``depth``."""
    check_folder(root)
    found = [
        Path(folder).relative_to(root) / name
        for folder, _, names in sorted(os.walk(root))
        for name in sorted(names)
        if Path(name).suffix.lower() in SUFFIXES
    ]
    if not found:
        raise DataMissing(f"no images under {root}: it should hold CLASS/IMAGE.png, or images")
    files, labels, classes = group_by_class(found, depth, root)
    return [root / file for file in files], labels, classes


def group_by_class(
    files: Sequence[Path], depth: int = 0, root: Path = Path()
) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Returns the paths sorted by class, their labels, and the classes."""
    groups: dict[str, list[Path]] = {}
    for file in files:
        folders = file.parent.parts
        if len(folders) < depth:
            raise DataMissing(f"{root / file} belongs to no user: name it USER/CLASS/IMAGE")
        group = folders[depth] if len(folders) > depth else "images"
        groups.setdefault(group, []).append(file)
    classes = tuple(sorted(groups))
    ordered = [file for c in classes for file in groups[c]]
    return ordered, [i for i, c in enumerate(classes) for _ in groups[c]], classes


def user_numbers(files: Sequence[Path]) -> Tensor:
    """Returns each image's user as a number, from the first folder of its path."""
    users = [file.parts[0] for file in files]
    numbers = {user: number for number, user in enumerate(sorted(set(users)))}
    return torch.tensor([numbers[user] for user in users])


def decode_image(file: Path, *, grey: bool) -> Tensor:
    """Reads one image file as uint8 ``[1, C, H, W]``."""
    try:
        with open_image(file) as image:
            array = np.asarray(to_eight_bits(image).convert("L" if grey else "RGB"))
    except IMAGE_ERRORS as error:
        raise unreadable_image(file, error) from None
    tensor = torch.from_numpy(array.copy())
    return tensor[None, None] if grey else tensor.permute(2, 0, 1)[None]


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Scales an image of 16 bits per pixel to 8, which Pillow would cut off."""
    if not image.mode.startswith("I"):
        return image
    levels = (np.asarray(image) / 257).round().clip(0, 255)
    return Image.fromarray(levels.astype(np.uint8))


def unreadable_image(file: Path, error: BaseException) -> DataMissing:
    why = describe_error(error, file)
    return DataMissing(f"{file} cannot be read as an image ({why}): replace or remove it")
