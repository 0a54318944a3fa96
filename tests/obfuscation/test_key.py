from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.data.versions import ScryptSettings
from keyhole.errors import BadValue, DataMissing
from keyhole.obfuscation.key import (
    SiteKey,
    check_scrypt_settings,
    make_key,
    new_scrypt_settings,
    read_key,
)

KEY = SiteKey(bytes(range(32)))


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    made = make_key(tmp_path / "site.key")
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    assert read_key(tmp_path / "site.key") == made
    assert len(made.derive_key(None).material) == 32
    with pytest.raises(DataMissing, match="File exists"):
        make_key(tmp_path / "site.key")
    assert make_key(tmp_path / "other.key") != made


@pytest.mark.parametrize("moment", ["write", "link"])
def test_a_kill_leaves_no_half_key_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A process that dies while it makes a key: the next one makes another."""
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "fsync" if moment == "write" else "link", lambda *_: os._exit(9))
        make_key(tmp_path / "site.key")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "site.key").exists()
    assert len(list(tmp_path.iterdir())) == 1
    made = make_key(tmp_path / "site.key")
    assert [file.name for file in tmp_path.iterdir()] == ["site.key"]
    assert read_key(tmp_path / "site.key") == made


def test_space_around_a_key_does_not_count_and_hex_is_read_as_such(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(KEY.material.hex())
    (tmp_path / "b").write_text(f"\n {KEY.material.hex().upper()} \r\n")
    (tmp_path / "c").write_bytes(KEY.material.hex().encode() + b"\n")
    assert {read_key(tmp_path / name).derive_key(None) for name in "abc"} == {KEY}


def test_random_bytes_are_taken_as_they_are_and_words_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("correct horse battery staple\n")
    (tmp_path / "raw").write_bytes(bytes(range(128, 160)))
    raw, words = read_key(tmp_path / "raw"), read_key(tmp_path / "words")
    assert raw.derive_key(None).material == bytes(range(128, 160))
    assert (raw.is_text, words.is_text) == (False, True)
    assert (
        words.derive_key(None).material == b"correct horse battery staple"
    )  # as older folders did


@pytest.mark.parametrize(
    "content",
    [
        b"correct horse\nbattery staple\n",
        b"correct\thorse battery staple",
        "Schl\xfcssel f\xfcr alle F\xe4lle".encode("latin-1"),
        "correct horse battery".encode("utf-16"),
        "\u6b63\u78ba\u306a\u99ac\u306e\u96fb\u6c60\u306e\u91d8".encode(),
        b"a\0b\0 list\0 of\0 words",
    ],
)
def test_words_in_any_encoding_and_on_several_lines_are_words(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "words").write_bytes(content)
    assert read_key(tmp_path / "words").is_text


def test_words_are_stretched_by_scrypt_with_a_salt(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("correct horse battery staple\n")
    held = read_key(tmp_path / "words")
    cheap = ScryptSettings("00ff", n=16, r=8, p=1)
    expected = hashlib.scrypt(
        b"correct horse battery staple", salt=b"\x00\xff", n=16, r=8, p=1, dklen=32
    )
    assert held.derive_key(cheap).material == expected
    one, two = new_scrypt_settings(), new_scrypt_settings()
    assert one.salt != two.salt
    assert 128 * one.n * one.r * one.p >= 1 << 26  # bytes of memory for each guess
    check_scrypt_settings(one)
    assert held.derive_key(one) != held.derive_key(two)


@pytest.mark.parametrize(
    "stretch",
    [
        *(
            ScryptSettings("00", n=1 << 30, r=8, p=1),
            ScryptSettings("00", n=1 << 10, r=1 << 20, p=1),
        ),
        *(
            ScryptSettings("00", n=1000, r=8, p=1),
            ScryptSettings("00", n=0, r=8, p=1),
            ScryptSettings("00", 1, 8, 1),
        ),
        *(
            ScryptSettings("00", n=16, r=-8, p=1),
            ScryptSettings("0g", 16, 8, 1),
            ScryptSettings("000", 16, 8, 1),
        ),
    ],
)
def test_a_record_cannot_ask_for_endless_stretching(stretch: ScryptSettings) -> None:
    with pytest.raises(BadValue, match="the manifest"):
        check_scrypt_settings(stretch)


@pytest.mark.parametrize("name", ["/dev/urandom", "/dev/zero", "pipe"])
def test_a_key_is_read_from_a_regular_file_only(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataMissing, match="not a regular file"):
        read_key(tmp_path / name)


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
        *(KEY.sign("file", b"ab", b"c"), KEY.sign("file", b"a", b"bc"), KEY.sign("file", b"abc")),
        *(
            KEY.sign("pixels", b"abc"),
            other.sign("file", b"abc"),
            KEY.fingerprint,
            other.fingerprint,
        ),
    ]
    assert len(set(marks)) == len(marks)
    assert KEY.sign("file", b"abc") == KEY.sign("file", b"abc")


@given(st.binary(max_size=70))
def test_veiled_twice_is_clear(data: bytes) -> None:
    veiled = KEY.xor(data, "here")
    assert len(veiled) == len(data)
    assert KEY.xor(veiled, "here") == data
    if len(data) > 8:
        assert veiled != data
        assert KEY.xor(veiled, "there") != data
