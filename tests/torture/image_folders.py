"""Folders of images that somebody else filled."""

from __future__ import annotations

import io
import os
import random
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from keyhole.data import load
from torture.fuzzing import Fuzzer
from torture.mutations import spoil_bytes

KNOWN = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF", "GIF")
FOREIGN = ("EPS", "PDF", "ICO", "TGA", "PCX", "DDS", "JPEG2000", "SGI")
MODES = ("RGB", "L", "1", "RGBA", "P", "CMYK", "I;16", "LA", "F", "I")
NAMES = ("a.png", "cat/b.jpg", "cat/dog/c.PNG", "ü\n.bmp", "[red].gif", ".png", "x.tiff", "y.webp")


class ImageFolders(Fuzzer):
    name: ClassVar[str] = "image folders"

    def prepare(self) -> None:
        self.images = [
            (kind, made)
            for kind in (*KNOWN, *FOREIGN)
            for mode in MODES
            if (made := saved(kind, mode))
        ]

    def run(self, draw: random.Random, folder: Path) -> None:
        for name in draw.sample(NAMES, draw.randrange(1, 4)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            put(draw, path, self.images)
        size = draw.choice([None, 8, "8x6", 1])
        data = load(f"{folder}/", image_size=size, by_user=draw.random() < 0.1)
        indices = range(len(data))
        assert data.images(indices).shape[1:] == data.shape


def saved(kind: str, mode: str) -> bytes | None:
    """A small image of this kind; None where it does not hold such pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    try:
        Image.fromarray(pixels).convert(mode).save(buffer, kind)
    except (OSError, ValueError, KeyError):
        return None
    return buffer.getvalue()


def put(draw: random.Random, path: Path, images: list[tuple[str, bytes]]) -> None:
    """An image, sound or spoilt, or something that is no image."""
    _, content = draw.choice(images)
    match draw.randrange(12):
        case 0:
            path.write_bytes(content)
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(draw.choice(["/dev/zero", "/dev/stdin", "nowhere", path.name, "."]))
        case 3:
            path.mkdir()
        case 4:
            path.write_bytes(bomb(draw))
        case 5:
            path.write_bytes(draw.randbytes(draw.randrange(200)))
        case _:
            path.write_bytes(spoil_bytes(draw, content))


def bomb(draw: random.Random) -> bytes:
    """A PNG file of a few bytes and many pixels."""
    width, height = draw.choice([(1, 2**31 - 1), (50_000, 50_000), (20_000, 3_000), (0, 5), (9, 9)])
    head = struct.pack(">IIBBBBB", width, height, draw.choice([1, 8, 16]), 0, 0, 0, 0)
    data = zlib.compress(bytes(1 << draw.randrange(20)))
    parts = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    whole = [
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(whole)
