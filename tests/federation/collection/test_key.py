from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.errors import BadValue, DataMissing
from keyhole.federation.collection.key import SiteKey, make_key, read_key

KEY = SiteKey(bytes(range(32)))


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    made = make_key(tmp_path / "site.key")
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    assert read_key(tmp_path / "site.key") == made
    assert len(made.material) == 32
    with pytest.raises(DataMissing, match="File exists"):
        make_key(tmp_path / "site.key")
    assert make_key(tmp_path / "other.key") != made


def test_space_around_a_key_does_not_count_and_hex_is_read_as_such(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(KEY.material.hex())
    (tmp_path / "b").write_text(f"\n {KEY.material.hex().upper()} \r\n")
    (tmp_path / "c").write_bytes(KEY.material.hex().encode() + b"\n")
    assert {read_key(tmp_path / name) for name in "abc"} == {KEY}


def test_any_bytes_can_be_a_key(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("correct horse battery staple\n")
    (tmp_path / "raw").write_bytes(bytes(range(128, 160)))
    assert read_key(tmp_path / "words").material == b"correct horse battery staple"
    assert read_key(tmp_path / "raw").material == bytes(range(128, 160))


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"short", b"0123456789abcdef0123", b"a" * 64, b"00" * 32, b"x" * 70_000],
    ids=["empty", "blank", "short", "ten bytes as hex", "one letter", "zeros", "a large file"],
)
def test_what_anyone_could_guess_is_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(BadValue, match="holds no key: it needs 16 random bytes"):
        read_key(tmp_path / "key")


def test_a_key_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="No such file"):
        read_key(tmp_path / "nothing")
    with pytest.raises(DataMissing, match="Is a directory"):
        read_key(tmp_path)
    with pytest.raises(DataMissing, match=r"cannot make the key file .*No such file"):
        make_key(tmp_path / "no folder" / "key")


def test_a_key_is_not_shown() -> None:
    assert KEY.material.hex() not in repr(KEY)
    assert "material" not in repr(KEY)


def test_marks_tell_keys_purposes_and_parts_apart() -> None:
    other = SiteKey(bytes(range(1, 33)))
    marks = [
        *(KEY.mark("file", b"ab", b"c"), KEY.mark("file", b"a", b"bc"), KEY.mark("file", b"abc")),
        *(KEY.mark("pixels", b"abc"), other.mark("file", b"abc"), KEY.check, other.check),
    ]
    assert len(set(marks)) == len(marks)
    assert KEY.mark("file", b"abc") == KEY.mark("file", b"abc")


@given(st.binary(max_size=70))
def test_veiled_twice_is_clear(data: bytes) -> None:
    veiled = KEY.veiled(data, "here")
    assert len(veiled) == len(data)
    assert KEY.veiled(veiled, "here") == data
    if len(data) > 8:
        assert veiled != data
        assert KEY.veiled(veiled, "there") != data
