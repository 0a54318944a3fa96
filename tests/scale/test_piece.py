"""What identifies a piece: its work, its values, and the contents of what they name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.errors import DataMissing
from keyhole.scale import Piece, build_piece
from keyhole.scale.contents import digest_path


def key(values: dict[str, object], **more: object) -> str:
    return build_piece("piece_works:square", values, **more).key  # type: ignore[arg-type]


def test_the_same_values_have_the_same_key_in_any_order() -> None:
    assert key({"a": 1, "b": [1, 2]}) == key({"b": (1, 2), "a": 1})
    assert key({"a": 1}) != key({"a": 2})
    assert key({"a": 1}) == key({"a": 1}, title="called otherwise")
    assert Piece("piece_works:pid", {"a": 1}).key != key({"a": 1})


def test_another_version_of_keyhole_finds_other_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    now = key({"a": 1})
    monkeypatch.setattr("keyhole.scale.piece.__version__", "99.0")
    assert key({"a": 1}) != now


def test_contents_count_and_places_do_not(tmp_path: Path) -> None:
    here, there = tmp_path / "here.bin", tmp_path / "far" / "there.bin"
    there.parent.mkdir()
    here.write_bytes(b"weights")
    there.write_bytes(b"weights")
    same = {key({"weights": str(each)}, reads=[each]) for each in (here, there)}
    assert len(same) == 1
    inside = {key({"attack": f"gifd(g={str(e)!r})"}, reads=[e, None]) for e in (here, there)}
    assert len(inside) == 1
    there.write_bytes(b"WEIGHTS")
    assert key({"weights": str(there)}, reads=[there]) not in same


def test_a_folder_counts_by_names_and_bytes_not_by_dates(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"1")
    before = digest_path(tmp_path)
    os.utime(tmp_path / "a" / "1.png", (1, 1))
    assert digest_path(tmp_path) == before
    (tmp_path / "a" / "1.png").rename(tmp_path / "a" / "2.png")
    assert digest_path(tmp_path) != before


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(DataMissing, match="no-such-file cannot be read"):
        digest_path(Path("no-such-file"))


def test_code_of_ones_own_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "fog_parts.py"
    source.write_text("raise AssertionError('imported')\n")
    before = key({"d": "fog_parts:Fog(p=1)"}, parts=["fog_parts:Fog(p=1)", "gaussian"])
    source.write_text("raise AssertionError('and changed')\n")
    assert key({"d": "fog_parts:Fog(p=1)"}, parts=["fog_parts:Fog(p=1)"]) != before
