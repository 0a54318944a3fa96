from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from keyhole.atomic import read_json
from keyhole.errors import RunFolderError
from keyhole.untrusted import DEEPEST, open_regular, parse_json, read_regular


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name in ("pipe", "socket", "/dev/zero", "/dev/urandom"):
            with pytest.raises(OSError, match="not a regular file"):
                open_regular(Path(name))
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    assert read_regular(Path("file")) == read_regular(Path("link")) == b"abc"
    with pytest.raises(OSError, match="longer than 2 bytes"):
        read_regular(Path("file"), longest=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "more than 64 deep"),
        ('{"a":' * 900 + "1" + "}" * 900, "more than 64 deep"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "more than 64 deep"),
        ("9" * 5000, "an integer of 5000 digits"),
        ("9" * 100, "an integer of 100 digits"),
        ("NaN", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("1e999", "1e999 is too large"),
        ("{", "Expecting"),
        ("", "Expecting value"),
    ],
)
def test_json_that_would_do_harm_is_a_value_error(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"a\.json cannot be read") as raised:
        read_json(tmp_path / "a.json")
    assert "\n" not in str(raised.value)


def test_json_as_deep_as_allowed_is_read() -> None:
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)
    assert parse_json('{"a": [1, -2.5, "x", null, true]}') == {"a": [1, -2.5, "x", None, True]}
