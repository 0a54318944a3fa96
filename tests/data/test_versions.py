from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from keyhole.data import load
from keyhole.data.versions import (
    MANIFEST,
    ImageEntry,
    Manifest,
    ManifestHeader,
    append_to_manifest,
    epoch_folder,
    read_manifest,
    version_name,
    write_manifest,
)
from keyhole.errors import DataMissing

HEADER = ManifestHeader(made_by="something", key_check="00ff", complete=True)


def picture(source: str, versions: int = 2, mode: str = "RGB", side: int = 8) -> ImageEntry:
    lengths = tuple(range(1, versions + 1))
    return ImageEntry(source, mode, (side, side), "aa", "bb", "cc", lengths)


def folder(root: Path, *pictures: ImageEntry, about: ManifestHeader = HEADER) -> Path:
    """Versions whose grey level is ten times their number, plus the picture's."""
    for number, one in enumerate(pictures):
        for version in range(1, len(one.lengths) + 1):
            file = epoch_folder(root, version) / one.file
            file.parent.mkdir(parents=True, exist_ok=True)
            level = 10 * version + number
            colour = level if one.mode == "L" else (level, 0, 0)
            Image.new(one.mode, one.size, colour).save(file)
    write_manifest(root, Manifest(about, {one.source: one for one in pictures}))
    return root


def levels(images: torch.Tensor) -> list[int]:
    return (images[:, 0, 0, 0] * 255).round().int().tolist()


def test_an_epoch_shows_its_version_and_they_are_used_in_turns(tmp_path: Path) -> None:
    data = load(str(folder(tmp_path, picture("cat/a.jpg", 3), picture("dog/b.png", 3))))
    assert (len(data), data.classes, data.labels.tolist()) == (2, ("cat", "dog"), [0, 1])
    assert data.shape == (3, 8, 8)
    assert len(data.versions) == 3
    shown = [levels(data.images([0, 1], epoch)) for epoch in range(5)]
    assert shown == [[10, 11], [20, 21], [30, 31], [10, 11], [20, 21]]
    assert levels(data.images([1])) == [11]
    assert torch.equal(data.pixels([0]), data.versions[0]([0]))


def test_a_picture_with_fewer_versions_takes_its_own_in_turns(tmp_path: Path) -> None:
    data = load(str(folder(tmp_path, picture("a.png", 3), picture("b.png", 2))))
    assert [levels(data.images([0, 1], epoch)) for epoch in range(3)] == [
        [10, 11],
        [20, 21],
        [30, 11],
    ]


def test_sets_without_versions_are_the_same_in_every_epoch() -> None:
    digits = load("digits")
    assert digits.versions == ()
    assert torch.equal(digits.images([3], epoch=7), digits.images([3]))


NAMES = ["b.png", "cat/z.png", "cat-2/a.jpg", "cat/deep/a.png", "cat/deep-er/a.png", "a.jpg"]


@pytest.mark.parametrize("by_user", [False, True])
def test_images_come_in_the_order_of_their_sources(tmp_path: Path, by_user: bool) -> None:
    names = [f"user{i % 2}/{name}" for i, name in enumerate(NAMES)] if by_user else NAMES
    for name in names:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "src" / name)
    folder(tmp_path / "out", *(picture(name, 1, "L") for name in sorted(names)))
    sources = load(str(tmp_path / "src"), by_user=by_user)
    versions = load(str(tmp_path / "out"), by_user=by_user)
    assert versions.classes == sources.classes
    assert torch.equal(versions.labels, sources.labels)
    assert (versions.mean, versions.std, versions.size) == (sources.mean, sources.std, sources.size)
    if by_user:
        assert versions.users is not None
        assert torch.equal(versions.users, sources.users)


def test_pictures_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    folder(tmp_path, picture("a.png"), picture("b.png", side=16))
    with pytest.raises(DataMissing, match=r"a\.png is 8x8, b\.png 16x16\): pass --image-size"):
        load(str(tmp_path))
    assert load(str(tmp_path), image_size=12).images([0, 1], 1).shape == (2, 3, 12, 12)


def test_an_unfinished_folder_is_not_trained_on(tmp_path: Path) -> None:
    folder(tmp_path, picture("a.png"), about=ManifestHeader("something", "00", complete=False))
    with pytest.raises(DataMissing, match="is not finished"):
        load(str(tmp_path))


def test_a_folder_of_nothing_is_told(tmp_path: Path) -> None:
    folder(tmp_path)
    with pytest.raises(DataMissing, match="holds no versions"):
        load(str(tmp_path))


def test_a_version_that_is_gone_is_named(tmp_path: Path) -> None:
    data = load(str(folder(tmp_path, picture("a.png"))))
    (tmp_path / "epoch-002" / "a.png").unlink()
    data.images([0])
    with pytest.raises(DataMissing, match=r"epoch-002/a\.png cannot be read"):
        data.images([0], 1)


def test_the_record_holds_any_name_and_the_later_line_counts(tmp_path: Path) -> None:
    odd = os.fsdecode(b"dog/\xff\n \xc3\xa4.png")
    folder(tmp_path, picture("a.png"))
    append_to_manifest(tmp_path, [picture(odd), picture("a.png", 5)])
    found = read_manifest(tmp_path)
    assert found.header == HEADER
    assert found.images == {odd: picture(odd), "a.png": picture("a.png", 5)}
    assert found.epochs == 5
    write_manifest(tmp_path, found)
    assert read_manifest(tmp_path) == found
    assert len((tmp_path / MANIFEST).read_text(encoding="ascii").splitlines()) == 3


def test_a_line_that_was_being_written_does_not_count(tmp_path: Path) -> None:
    folder(tmp_path, picture("a.png"), picture("b.png"))
    whole = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(whole[:-1])
    assert set(read_manifest(tmp_path).images) == {"a.png"}


@pytest.mark.parametrize(
    "text",
    ["", "\n", "{}\n", "[]\n", "nonsense\n", '{"keyhole": "versions", "format": 2}\n', "\xff\n"],
)
def test_another_file_of_that_name_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode("latin1"))
    with pytest.raises(DataMissing, match=MANIFEST) as raised:
        load(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_versions_are_png_files() -> None:
    names = {"a.png": "a.png", "a.PNG": "a.PNG", "c/a.jpg": "c/a.jpg.png", "png": "png.png"}
    assert {name: version_name(name) for name in names} == names
