"""Reads what a curious server wrote (see :mod:`keyhole.federation.capture` for the layout).

Much of it comes from clients, so nothing is trusted: only regular files of bounded size are opened,
and what one client sent can make only that client unusable.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.errors import BadUpdate, RunFolderError, one_line
from keyhole.federation.capture import (
    GLOBAL,
    MANIFEST,
    TRUTH,
    JsonObject,
    is_integer,
    read_description,
    to_plain_json,
)
from keyhole.federation.capture_folder import check_capture_folder
from keyhole.untrusted import check_regular, parse_json, printable, read_regular
from keyhole.update import read_safetensors

MAX_JSON_BYTES = 1 << 26
MAX_ROUND = 10**9
MAX_LISTED = 20
"""Notes name this many rounds or clients one by one, and count the others."""
MAX_NAME_LENGTH = 100


@dataclass(frozen=True)
class CapturedRound:
    """One captured round; tensors are read from disk on request.

    Args:
        folder: The round's folder.
        number: The round's number.
        config: The config that the server sent.
        clients: The ``node``, ``file``, ``examples`` and ``metrics`` of each client that replied;
            for a secure sum also how many ``clients`` it has, and who its ``members`` are.
        lost: Clients that sent nothing, and why.
        left_out: Clients whose entries cannot be used, and why.
    """

    folder: Path
    number: int
    config: JsonObject
    clients: tuple[JsonObject, ...]
    lost: Mapping[str, str]
    left_out: Mapping[str, str]

    def read_weights(self, max_bytes: int | None = None) -> dict[str, Tensor]:
        """Returns the weights that the server sent; raises if the file is too large."""
        return read_tensors(self.folder / GLOBAL, max_bytes)

    def read_change(self, client: JsonObject, max_bytes: int | None = None) -> dict[str, Tensor]:
        """Returns what a client changed; raises if the file is too large."""
        return read_tensors(self.folder / str(client["file"]), max_bytes)


@dataclass(frozen=True)
class Capture:
    """A captured folder.

    Args:
        root: The folder.
        about: What the folder says about the run as a whole.
        rounds: The complete rounds, in order.
        truth: Which images each client has, where the folder says so.
        problems: Sentences about what is missing or cannot be used.
    """

    root: Path
    about: JsonObject
    rounds: tuple[CapturedRound, ...]
    truth: JsonObject | None
    problems: tuple[str, ...]

    @classmethod
    def open(cls, root: Path) -> Capture:
        """Reads a captured folder; a round that cannot be used becomes one of its problems.

        Args:
            root: The folder that a curious server wrote.
        """
        check_capture_folder(root)
        problems: list[str] = []
        rounds: dict[int, CapturedRound] = {}
        for folder in sorted(root.glob("round-*")):
            try:
                found = read_round(folder)
                if found.number in rounds:
                    raise RunFolderError(f"{folder} is a second round {found.number}")
                rounds[found.number] = found
            except RunFolderError as error:
                problems.append(str(error))
        if not rounds:
            why = problems[0] if problems else "did its training end before a client answered?"
            raise RunFolderError(f"{root} holds no captured round ({why})")
        problems = limit_lines(problems, "captured folders cannot be used")
        about, left_out = read_description(root)
        problems += list_missing_rounds({*rounds, *left_out}, max(rounds))
        problems += limit_lines(
            [f"round {number} was left out when it was captured" for number in left_out],
            "rounds were left out when they were captured",
        )
        truth = read_facts(root / TRUTH) if os.path.lexists(root / TRUTH) else None
        in_order = tuple(rounds[number] for number in sorted(rounds))
        return cls(root, about, in_order, truth, tuple(problems))


def list_missing_rounds(present: set[int], last: int) -> list[str]:
    """Returns sentences about the gaps between the ``present`` rounds up to ``last``."""
    listed: list[str] = []
    not_listed, before = 0, 0
    for number in sorted(n for n in present if n <= last):
        gap = range(before + 1, number)
        head = gap[: MAX_LISTED - len(listed)]
        listed += [f"round {missing} is missing" for missing in head]
        not_listed += len(gap) - len(head)
        before = number
    return listed + ([f"{not_listed:,} more rounds are missing"] if not_listed else [])


def limit_lines(lines: Iterable[str], what: str) -> list[str]:
    """Returns the first lines, and a line that counts the others."""
    found = list(lines)
    more = len(found) - MAX_LISTED
    return found[:MAX_LISTED] + ([f"{more:,} more {what}"] if more > 0 else [])


def read_round(folder: Path) -> CapturedRound:
    """Reads a round's manifest; raises if the round as a whole cannot be used."""
    path = folder / MANIFEST
    if not re.fullmatch(r"round-\d{1,18}", folder.name) or not os.path.lexists(path):
        raise RunFolderError(f"{folder} has no {MANIFEST}: the server stopped while writing it")
    found = read_facts(path)
    try:
        number, config = found["round"], dict(found.get("config", {}))
        entries, lost = found["clients"], dict(found.get("lost", {}))
        recorded = dict(found.get("left_out", {}))
        if not isinstance(entries, list) or not is_integer(number):
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(f"{path} is not the manifest of a captured round") from None
    if not 1 <= number <= MAX_ROUND or number != int(folder.name.removeprefix("round-")):
        raise RunFolderError(f"{path} says that it is round {printable(number)}: left out")
    clients: dict[str, JsonObject] = {}
    left_out = printable_reasons(recorded)
    for place, entry in enumerate(entries):
        try:
            client = read_client(entry)
            if client["node"] in clients:
                raise ValueError("it is listed twice")
            clients[client["node"]] = client
        except ValueError as error:
            left_out[client_name(entry, place)] = str(error)
    if entries and not clients:
        why = next(iter(left_out.values()))
        raise RunFolderError(f"{path} lists no client that can be used ({why})")
    return CapturedRound(
        folder,
        number,
        to_plain_json(config),
        tuple(clients.values()),
        printable_reasons(lost),
        left_out,
    )


def read_client(entry: object) -> JsonObject:
    """Checks a manifest's entry on one client; raises ValueError if it is invalid."""
    if not isinstance(entry, dict):
        raise ValueError("its entry in the manifest is not an object")
    node, file, metrics = entry.get("node"), entry.get("file"), entry.get("metrics") or {}
    if not (is_integer(node) or isinstance(node, str)) or not is_name(str(node)):
        raise ValueError("it has no name of up to 100 printable characters")
    if not isinstance(file, str) or not is_file_name(file):
        raise ValueError(f"its file {printable(file)!r} is not the name of a file in the folder")
    if not isinstance(metrics, dict):
        raise ValueError("its metrics are not an object")
    inner = {name: to_plain_json(value) for name, value in entry.items() if isinstance(value, dict)}
    return {
        **to_plain_json(entry),
        **inner,
        "node": str(node),
        "file": file,
        "metrics": to_plain_json(metrics),
    }


def is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_LENGTH and text.isprintable()


def is_file_name(text: str) -> bool:
    return is_name(text) and Path(text).name == text and text not in (".", "..")


def client_name(entry: object, place: int) -> str:
    """Returns a name for a client that cannot be used."""
    node = entry.get("node") if isinstance(entry, dict) else None
    return printable(node, MAX_NAME_LENGTH) if node is not None else f"number {place + 1}"


def printable_reasons(reasons: Mapping[Any, Any]) -> dict[str, str]:
    """Makes clients' names and the reasons that concern them printable."""
    return {printable(node, MAX_NAME_LENGTH): printable(why) for node, why in reasons.items()}


def read_facts(path: Path) -> Any:
    """Reads JSON; numbers that are not finite become strings, so that only they are lost."""
    try:
        regular_file_size(path)
        text = read_regular(path, MAX_JSON_BYTES).decode("utf-8")
        return parse_json(text, odd_numbers_as_words=True)
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise RunFolderError(f"{path} cannot be read ({why})") from None


def read_tensors(path: Path, max_bytes: int | None) -> dict[str, Tensor]:
    """Reads the tensors of a file in a captured folder."""
    try:
        size = regular_file_size(path)
    except FileNotFoundError:
        raise BadUpdate(f"{path} does not exist") from None
    except OSError as error:
        raise BadUpdate(f"{path} cannot be read ({error.strerror})") from None
    if max_bytes is not None and size > max_bytes:
        raise BadUpdate(f"{path} has {size:,} bytes: too many for this model")
    return read_safetensors(path)[0]


def regular_file_size(path: Path) -> int:
    """Returns a file's size; raises OSError for links and anything else but a regular file."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.EINVAL, "it is a link, not a file")
    check_regular(found.st_mode)
    return found.st_size
