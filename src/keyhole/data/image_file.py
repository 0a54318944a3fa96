"""Opens one image file, which may have been made to do harm."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageFile, UnidentifiedImageError

from keyhole.untrusted import open_regular

FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF", "GIF")
"""No format for which Pillow starts another program, as it does for EPS."""
IMAGE_ERRORS = (
    *(OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError),
    *(AttributeError, NotImplementedError, MemoryError, struct.error, zlib.error),
    *(Image.DecompressionBombError, RecursionError),
)
"""What Pillow raises on invalid files."""
MAX_PIXELS = 89_478_485
"""Above this, Pillow suspects a small file that expands until memory is exhausted."""


@contextmanager
def open_image(file: Path, max_pixels: int = MAX_PIXELS) -> Iterator[ImageFile.ImageFile]:
    """Opens an image and reads its header; the content decides the format, not the name.

    Raises one of :data:`IMAGE_ERRORS` if it is not a regular file, is in none of :data:`FORMATS`,
    or has more than ``max_pixels``. Reading its pixels may raise one of them, too.
    """
    with open_regular(file) as stream, open_image_stream(stream, max_pixels) as image:
        yield image


@contextmanager
def open_image_stream(
    stream: BinaryIO, max_pixels: int = MAX_PIXELS
) -> Iterator[ImageFile.ImageFile]:
    """Does the same as :func:`open_image` for an open stream."""
    with warnings.catch_warnings(action="ignore"), Image.open(stream, formats=FORMATS) as image:
        if image.width * image.height > max_pixels:
            raise ValueError(
                f"it has {image.width:,} x {image.height:,} pixels, more than {max_pixels:,}"
            )
        yield image


def describe_error(error: BaseException, file: Path) -> str:
    """Says why an image cannot be read, on one line and without the file's name."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    text = (isinstance(error, OSError) and error.strerror) or str(error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line.replace(repr(str(file)), "the file").replace(str(file), "the file")
