"""Reads files that others wrote: regular ones of bounded length, and JSON of bounded depth."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from keyhole.errors import BadUpdate, one_line

LONGEST = 1 << 28
"""Bytes of a text file; Keyhole writes none that is as long."""
DEEPEST = 64
"""Levels of nested lists and objects in JSON and TOML."""
DIGITS = 40
"""The most digits of an integer."""


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to read its bytes; raises OSError for a pipe, a device, a socket or a folder.

    A link to a regular file is followed. The call never waits for another process.
    """
    check_regular(os.stat(path).st_mode)  # opening a device may have effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(os.fstat(descriptor).st_mode)  # it may have been replaced meanwhile
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_regular(mode: int) -> None:
    """Raises OSError where the mode in a file's status is not that of a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")


def read_regular(path: Path, longest: int = LONGEST) -> bytes:
    """Reads a regular file; raises OSError where it has more than ``longest`` bytes."""
    with open_regular(path) as file:
        found = file.read(longest + 1)
    if len(found) > longest:
        raise OSError(errno.EFBIG, f"longer than {longest:,} bytes")
    return found


def check_tensor_file(path: Path) -> None:
    """Raises :class:`BadUpdate` where there is no regular file to read tensors from."""
    try:
        open_regular(path).close()
    except FileNotFoundError:
        raise BadUpdate(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise not_safetensors(path, error) from None


def not_safetensors(path: Path, error: Exception) -> BadUpdate:
    """Returns the error for a file that holds no tensors."""
    why = (isinstance(error, OSError) and error.strerror) or one_line(error)
    return BadUpdate(
        f"{path} is not a safetensors file ({why[:200]}): "
        "write it with safetensors.torch.save_file; pickles are not read"
    )


def parse_json(text: str | bytes, *, odd_numbers_as_words: bool = False) -> Any:
    """Parses JSON by its standard; raises ValueError for anything else.

    Unlike ``json.loads`` it refuses NaN, infinite numbers, integers of more than 40 digits, and
    lists and objects that are nested more than 64 deep. With ``odd_numbers_as_words`` such numbers
    become texts, so that one client's numbers do not spoil a file of many clients.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json("[NaN, 1e999]", odd_numbers_as_words=True)
    ['NaN', '1e999']
    """
    wrap = _or_word if odd_numbers_as_words else _as_it_is
    try:
        found = json.loads(
            text,
            parse_constant=wrap(_refuse_constant),
            parse_int=wrap(_integer),
            parse_float=wrap(_finite),
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_depth(found)
    return found


def check_depth(value: object) -> None:
    """Raises ValueError where lists and tables are nested more than 64 deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = [child for outer in level for child in _children(outer)]
        level = [child for child in inner if isinstance(child, dict | list)]
    if level:
        raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"its lists and objects are nested more than {DEEPEST} deep"


def _children(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _as_it_is(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return read


def _or_word(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def number_or_word(digits: str) -> Any:
        try:
            return read(digits)
        except ValueError:
            return printable(digits)

    return number_or_word


def printable(value: object, longest: int = 300) -> str:
    r"""Returns a stranger's value as text: control characters escaped, cut where it is long.

    >>> print(printable("red \x1b[31m"), printable("x" * 9, longest=4))
    red \x1b[31m xxxx...
    """
    text = value if isinstance(value, str) else repr(value)
    safe = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:longest])
    return safe if len(text) <= longest else f"{safe}..."


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number in JSON")


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is too large a number")
    return number
