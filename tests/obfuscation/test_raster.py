from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from keyhole.obfuscation.raster import Raster, UnusableImage, read_raster

RNG = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


RASTERS = [
    Raster("1", noise(11, 13) > 127),
    Raster("L", noise(11, 13)),
    Raster("LA", noise(11, 13, 2)),
    Raster("RGB", noise(11, 13, 3)),
    Raster("RGBA", noise(11, 13, 4)),
    Raster("I;16", RNG.integers(0, 65536, (11, 13), dtype=np.uint16)),
    Raster("RGB", noise(1, 1, 3)),
    Raster("1", noise(5, 1) > 127),
    Raster("L", noise(1, 9)),
]


def same(one: Raster, two: Raster) -> bool:
    return one.mode == two.mode and np.array_equal(one.pixels, two.pixels)


@pytest.mark.parametrize("raster", RASTERS, ids=lambda r: f"{r.mode} {r.size}")
def test_png_files_hold_every_bit_and_nothing_else(raster: Raster, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(raster.png())
    with Image.open(tmp_path / "a.png") as image:
        image.verify()
    with Image.open(tmp_path / "a.png") as image:
        image.load()
        assert (image.mode, image.info) == (raster.mode, {})
    found = read_raster(tmp_path / "a.png")
    assert same(found, raster)
    assert found.content() == raster.content()


@pytest.mark.parametrize("raster", RASTERS, ids=lambda r: f"{r.mode} {r.size}")
def test_planes_and_back(raster: Raster) -> None:
    planes = raster.planes()
    assert planes.shape[0] == 1
    assert tuple(planes.shape[2:]) == raster.size
    assert same(raster.with_planes(planes), raster)
    assert int(planes.max()) <= (1 if raster.mode == "1" else 65535)
    assert raster.with_planes(planes).content() == raster.content()


def test_content_tells_kinds_and_sizes_apart() -> None:
    flat = np.zeros((4, 6), np.uint8)
    contents = [
        Raster("L", flat).content(),
        Raster("L", flat.reshape(6, 4)).content(),
        Raster("1", flat.astype(bool)).content(),
        Raster("LA", flat.reshape(4, 3, 2)).content(),
    ]
    assert len(set(contents)) == 4


def saved(tmp_path: Path, image: Image.Image, name: str, **options: object) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


def test_palettes_are_written_out_with_their_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    image.putdata((noise(64) % 4).tolist())
    plain = read_raster(saved(tmp_path, image, "plain.png"))
    assert same(plain, Raster("RGB", np.asarray(image.convert("RGB"))))
    clear = read_raster(saved(tmp_path, image, "clear.png", transparency=2))
    assert clear.mode == "RGBA"
    assert np.array_equal(clear.pixels[..., 3] == 0, np.asarray(image) == 2)


def test_a_transparent_colour_becomes_alpha(tmp_path: Path) -> None:
    pixels = noise(8, 8, 3)
    pixels[2, 3] = (1, 2, 3)
    file = saved(tmp_path, Image.fromarray(pixels), "a.png", transparency=(1, 2, 3))
    found = read_raster(file)
    assert found.mode == "RGBA"
    assert np.array_equal(found.pixels[..., :3], pixels)
    assert found.pixels[2, 3, 3] == 0


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_grey_of_16_bits_is_kept(tmp_path: Path, suffix: str) -> None:
    deep = RNG.integers(0, 65536, (9, 7), dtype=np.uint16)
    found = read_raster(saved(tmp_path, Image.fromarray(deep), f"deep.{suffix}"))
    assert same(found, Raster("I;16", deep))


def test_pixels_are_kept_as_stored_whatever_the_camera_says(tmp_path: Path) -> None:
    image = Image.fromarray(noise(6, 10, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    file = saved(tmp_path, image, "a.png", exif=exif)
    found = read_raster(file)
    assert np.array_equal(found.pixels, np.asarray(image))
    assert b"eXIf" in file.read_bytes()
    assert b"eXIf" not in found.png()


def test_a_jpeg_is_what_pillow_decodes(tmp_path: Path) -> None:
    file = saved(tmp_path, Image.fromarray(noise(16, 16, 3)), "a.jpg")
    with Image.open(file) as image:
        assert np.array_equal(read_raster(file).pixels, np.asarray(image))


def colour_of_16_bits() -> bytes:
    """A PNG file of 2 x 1 pixels."""
    import struct
    import zlib

    from keyhole.obfuscation.raster import SIGNATURE, png_chunk

    head = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" + bytes(range(12)))
    return SIGNATURE + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def frames(kind: str) -> bytes:
    pictures = [Image.fromarray(noise(8, 8)) for _ in range(3)]
    file = io.BytesIO()
    pictures[0].save(file, kind, save_all=True, append_images=pictures[1:])
    return file.getvalue()


def in_mode(mode: str, kind: str) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (8, 8)).save(file, kind)
    return file.getvalue()


def half_a_png() -> bytes:
    whole = Raster("RGB", noise(64, 64, 3)).png()
    return whole[: len(whole) // 2]


REFUSED = {
    "cmyk.jpg": (in_mode("CMYK", "JPEG"), "CMYK, which PNG cannot hold"),
    "float.tiff": (in_mode("F", "TIFF"), "F, which PNG cannot hold"),
    "lab.tiff": (in_mode("LAB", "TIFF"), "LAB, which PNG cannot hold"),
    "deep.png": (colour_of_16_bits(), "16 bits per colour"),
    "deep.ppm": (b"P6 2 1 65535\n" + bytes(12), "16 bits per colour"),
    "moving.gif": (frames("GIF"), "3 frames"),
    "pages.tiff": (frames("TIFF"), "3 frames"),
    "moving.webp": (frames("WEBP"), "3 frames"),
    "empty.png": (b"", "cannot be read as an image"),
    "text.png": (b"not an image at all", "cannot be read as an image"),
    "head.png": (b"\x89PNG\r\n\x1a\n", "cannot be read as an image"),
    "half.png": (half_a_png(), "cannot be read as an image"),
    "script.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be read"),
    "huge.ppm": (b"P6 60000 60000 255\n", "exceeds limit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_exactly_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, words = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnusableImage) as raised:
        read_raster(tmp_path / name)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


def test_numbers_beyond_16_bits_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path, Image.fromarray(np.full((4, 4), 70_000, np.int32)), "a.tiff")
    with pytest.raises(UnusableImage, match="more than 16 bits"):
        read_raster(file)


def test_planes_of_16_bits_are_not_cut() -> None:
    deep = Raster("I;16", np.full((3, 3), 65535, np.uint16))
    assert torch.equal(deep.planes(), torch.full((1, 1, 3, 3), 65535, dtype=torch.int32))
