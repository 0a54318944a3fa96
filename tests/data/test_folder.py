from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from keyhole.data import load
from keyhole.errors import DataMissing


def write(file: Path, colour: tuple[int, ...] | int, size: tuple[int, int] = (12, 10)) -> Path:
    """An image of one colour, ``size`` being width and height."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(file)
    return file


RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def test_subfolders_are_classes(tmp_path: Path) -> None:
    write(tmp_path / "dog" / "b.png", GREEN)
    write(tmp_path / "dog" / "deeper" / "c.PNG", BLUE)
    write(tmp_path / "cat" / "a.png", RED)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    data = load(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 1, 1]
    assert data.shape == (3, 10, 12)
    images = data.images([0, 1, 2])
    assert torch.equal(images[:, :, 5, 5], torch.eye(3))


def test_images_alone_are_one_class(tmp_path: Path) -> None:
    write(tmp_path / "2.png", GREEN)
    write(tmp_path / "1.png", RED)
    data = load(str(tmp_path))
    assert data.classes == ("images",)
    assert data.labels.tolist() == [0, 0]
    assert torch.equal(data.images([0, 1])[:, :, 0, 0], torch.eye(3)[:2])


def test_a_folder_is_found_from_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "holiday" / "1.png", RED)
    monkeypatch.chdir(tmp_path)
    assert len(load("holiday")) == 1


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    write(tmp_path / "one.png", RED, (12, 10))
    write(tmp_path / "two.png", RED, (30, 20))
    with pytest.raises(
        DataMissing, match=r"one\.png is 10x12, two\.png 20x30\): pass --image-size"
    ):
        load(str(tmp_path))
    data = load(str(tmp_path), image_size=8)
    assert data.images([0, 1]).shape == (2, 3, 8, 8)


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    write(tmp_path / "dark.png", 51)
    write(tmp_path / "light.png", 204)
    data = load(str(tmp_path))
    assert data.shape == (1, 10, 12)
    assert data.images([0, 1])[:, 0, 0, 0].tolist() == pytest.approx([0.2, 0.8])


def test_grey_among_colour_is_shown_in_three_channels(tmp_path: Path) -> None:
    write(tmp_path / "a.png", 51)
    write(tmp_path / "b.png", RED)
    data = load(str(tmp_path))
    assert data.images([0])[0, :, 0, 0].tolist() == pytest.approx([0.2] * 3)


def test_grey_of_16_bits_keeps_its_tones(tmp_path: Path) -> None:
    ramp = (np.arange(64, dtype=np.uint16).reshape(8, 8)) * 1024
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    shown = load(str(tmp_path)).images([0])[0].mean(0)
    expected = torch.from_numpy(ramp.astype(np.float32) / 65535)
    assert (shown - expected).abs().max() < 0.01


@pytest.mark.parametrize("content", [b"", b"this is no image", b"\x89PNG\r\n\x1a\n"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "fine.png", RED)
    (tmp_path / "spoilt.png").write_bytes(content)
    with pytest.raises(DataMissing, match=r"spoilt\.png cannot be read as an image") as raised:
        load(str(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp"])
def test_a_file_broken_in_the_middle_is_named(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = tmp_path / f"half.{suffix}"
    Image.fromarray(pixels).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataMissing, match=rf"half\.{suffix} cannot be read as an image"):
        load(str(tmp_path)).images([0])


def test_a_folder_without_images_is_told(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing to see")
    with pytest.raises(DataMissing, match="no images under"):
        load(str(tmp_path))


def test_a_path_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="is not a folder of images"):
        load(str(tmp_path / "nowhere"))


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there as soon as somebody has started the program ``gs``."""
    marker, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    return marker


def test_a_file_of_another_format_starts_no_program(tmp_path: Path, ghostscript: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "x.eps")
    (tmp_path / "x.eps").rename(tmp_path / "images" / "x.png")
    with pytest.raises(DataMissing, match=r"x\.png cannot be read as an image \(it is none of PNG"):
        load(str(tmp_path / "images")).images([0])
    assert not ghostscript.exists()


def png_of_size(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that claims to have many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_an_image_that_would_fill_the_memory_is_refused(tmp_path: Path, side: int) -> None:
    (tmp_path / "bomb.png").write_bytes(png_of_size(side, side))
    with pytest.raises(DataMissing, match=r"bomb\.png cannot be read .*pixels"):
        load(str(tmp_path))


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataMissing, match=r"pipe\.png .*not a regular file"):
        load(str(tmp_path))
    (tmp_path / "pipe.png").unlink()
    (tmp_path / "device.png").symlink_to("/dev/zero")
    with pytest.raises(DataMissing, match=r"device\.png .*not a regular file"):
        load(str(tmp_path))


def test_a_link_to_an_image_is_an_image(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "a.png", RED)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.png").symlink_to(tmp_path / "elsewhere" / "a.png")
    assert load(str(tmp_path / "images")).images([0]).shape == (1, 3, 10, 12)
