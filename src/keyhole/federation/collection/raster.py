"""Pictures as arrays, bit for bit: read from any common format, written as PNG.

Pixels are kept as they are stored. Whatever else a file says (camera, place, orientation, colour
profile) is left behind. Palettes and transparent colours are written out.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile
from torch import Tensor

from keyhole.data.image_file import BROKEN, opened_image, reason_in_words
from keyhole.data.image_set import Array, Size
from keyhole.errors import KeyholeError

PNG_KINDS = {"1": (0, 1), "L": (0, 8), "LA": (4, 8), "RGB": (2, 8), "RGBA": (6, 8), "I;16": (0, 16)}
"""What is kept, by Pillow's name: PNG's colour type and bits a sample."""
SIGNATURE, SUB = b"\x89PNG\r\n\x1a\n", 1
MOST_PIXELS = 178_956_970
"""Twice as many as an audit reads: cameras of 100 million pixels exist."""


class Unusable(KeyholeError):
    """A picture cannot be read, or not without loss."""


@dataclass(frozen=True)
class Raster:
    """Pixels ``[H, W]`` or ``[H, W, C]``: bool, uint8 or uint16, as the mode says."""

    mode: str
    pixels: Array

    @property
    def size(self) -> Size:
        return self.pixels.shape[0], self.pixels.shape[1]

    def planes(self) -> Tensor:
        """As ``[1, C, H, W]``: uint8, or int32 for 16 bits."""
        whole = self.pixels.astype(np.int32 if self.mode == "I;16" else np.uint8)
        return torch.from_numpy(np.atleast_3d(whole)).permute(2, 0, 1)[None].contiguous()

    def with_planes(self, planes: Tensor) -> Raster:
        """A picture of the same kind with other pixels."""
        moved = planes[0].permute(1, 2, 0).reshape(self.pixels.shape)
        return Raster(self.mode, np.ascontiguousarray(moved.numpy().astype(self.pixels.dtype)))

    def content(self) -> bytes:
        """Kind, size and pixels: equal for equal pictures only."""
        head = f"{self.mode} {self.size[0]}x{self.size[1]}:".encode()
        little = self.pixels.astype(self.pixels.dtype.newbyteorder("<"), copy=False)
        return head + little.tobytes()

    def png(self) -> bytes:
        """As a PNG file."""
        colour, depth = PNG_KINDS[self.mode]
        if depth == 1:
            rows = np.packbits(self.pixels, axis=1)
        else:
            big = self.pixels.astype(self.pixels.dtype.newbyteorder(">"), copy=False)
            rows = np.frombuffer(big.tobytes(), np.uint8).reshape(len(big), -1)
        height, width = self.size
        head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
        packed = compressed(rows, max(1, rows.shape[1] // width))
        return SIGNATURE + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def compressed(rows: Array, pixel: int) -> bytes:
    """Bytes ``[H, n]`` as differences to the pixel on the left, then run lengths and Huffman codes.

    On shuffled photos as small as what Pillow makes at its best level, to a tenth, and ten times as
    fast: it tries all filters for every row, and searches for repetitions that are not there.
    """
    filtered = np.empty((rows.shape[0], rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = SUB
    filtered[:, 1 : pixel + 1] = rows[:, :pixel]
    np.subtract(rows[:, pixel:], rows[:, :-pixel], out=filtered[:, pixel + 1 :])
    deflate = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return deflate.compress(filtered.tobytes()) + deflate.flush()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG file: length, kind, data, checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def read_raster(file: Path) -> Raster:
    """The pixels of a file; raises :class:`Unusable` where they cannot be kept exactly."""
    try:
        with opened_image(file, MOST_PIXELS) as image:
            check_kept(image)
            return of_image(image)
    except BROKEN as error:
        why = reason_in_words(error, file)
        raise Unusable(f"it cannot be read as an image ({why})") from None


def check_kept(image: ImageFile.ImageFile) -> None:
    """Refuses pictures that are more than one PNG can hold; called before pixels are read."""
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a camera's JPEG with previews behind it
        raise Unusable(f"it has {frames} frames: save the one that is meant")
    if image.mode in {"RGB", "RGBA", "LA"} and deep(image):
        raise Unusable("it has 16 bits a colour, which would be cut to 8: save it with 8")
    if image.mode not in PNG_KINDS.keys() | {"P", "PA", "I", "I;16B", "I;16L", "I;16N"}:
        raise Unusable(f"it is {image.mode}, which PNG does not hold: convert it to RGB or L")


def deep(image: ImageFile.ImageFile) -> bool:
    """Whether the file has more bits a colour than Pillow is about to read."""
    for tile in image.tile:
        arguments = tile.args if isinstance(tile.args, tuple) else (tile.args,)
        if any(";16" in part for part in arguments if isinstance(part, str)):
            return True
        if tile.codec_name.startswith("ppm") and int(arguments[-1]) > 255:
            return True
    return False


def of_image(image: Image.Image) -> Raster:
    if image.mode.startswith("I"):
        levels = np.asarray(image)
        if levels.min() < 0 or levels.max() > 0xFFFF:
            raise Unusable("it has more than 16 bits a pixel, which PNG does not hold")
        return Raster("I;16", levels.astype(np.uint16))
    if image.mode == "1":  # whose truth, as Pillow hands it over, is any byte but 0
        return Raster("1", np.asarray(image.convert("L")) > 0)
    see_through = "transparency" in image.info
    if image.mode == "PA" or (image.mode == "P" and image.palette and image.palette.mode == "RGBA"):
        see_through = True
    if image.mode in {"P", "PA"}:
        image = image.convert("RGBA" if see_through else "RGB")
    elif see_through and image.mode in {"L", "RGB"}:
        image = image.convert(f"{image.mode}A")
    return Raster(image.mode, np.asarray(image))
