"""One image file, opened with care: whoever wrote it may have meant harm."""

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
"""No format for which Pillow would start another program, as it does for EPS."""
BROKEN = (
    *(OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError),
    *(AttributeError, NotImplementedError, MemoryError, struct.error, zlib.error),
    *(Image.DecompressionBombError, RecursionError),
)
"""What Pillow raises on files that are not as they should be."""
MOST_PIXELS = 89_478_485
"""From here on Pillow suspects a small file that unpacks to exhaust the memory."""


@contextmanager
def opened_image(file: Path, most_pixels: int = MOST_PIXELS) -> Iterator[ImageFile.ImageFile]:
    """An image whose header has been read, by its content whatever its name says.

    Raises one of :data:`BROKEN` where it is not a regular file, not in one of :data:`FORMATS`, or
    has more than ``most_pixels``; reading its pixels may raise one of them, too.
    """
    with open_regular(file) as stream, image_in(stream, most_pixels) as image:
        yield image


@contextmanager
def image_in(stream: BinaryIO, most_pixels: int = MOST_PIXELS) -> Iterator[ImageFile.ImageFile]:
    """As :func:`opened_image`, for bytes that are open already."""
    with warnings.catch_warnings(action="ignore"), Image.open(stream, formats=FORMATS) as image:
        if image.width * image.height > most_pixels:
            raise ValueError(
                f"it has {image.width:,} x {image.height:,} pixels, more than {most_pixels:,}"
            )
        yield image


def reason_in_words(error: BaseException, file: Path) -> str:
    """Why an image cannot be read, on one line and without the file's name."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    text = (isinstance(error, OSError) and error.strerror) or str(error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line.replace(repr(str(file)), "the file").replace(str(file), "the file")
