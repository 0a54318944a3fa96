"""Reads what a curious server wrote down (see :mod:`keyhole.federation.capture` for the layout).

Clients chose much of what lies there, so nothing is trusted: only regular files of bounded size
are opened, and what one client sent can cost no more than that client.
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
    Facts,
    description,
    is_whole_number,
    plain,
)
from keyhole.untrusted import check_regular, parse_json, printable, read_regular
from keyhole.update import read_safetensors

LONGEST_JSON = 1 << 26
"""Bytes of a manifest."""
LAST_ROUND = 10**9
"""A round of a higher number is none."""
NAMED = 20
"""Rounds or clients that are named one by one in notes; the others are counted."""
LONGEST_NAME = 100
"""Characters of a client's name."""


@dataclass(frozen=True)
class CapturedRound:
    """One round as it lies on disk; tensors are read when they are asked for."""

    folder: Path
    number: int
    config: Facts
    clients: tuple[Facts, ...]
    """Of each client that answered: ``node``, ``file``, ``examples``, ``metrics``."""
    lost: Mapping[str, str]
    """Clients that sent nothing, and why."""
    left_out: Mapping[str, str]
    """Clients of which nothing can be used, and why."""

    def weights(self, longest: int | None = None) -> dict[str, Tensor]:
        """What the server sent; raises where the file has more than ``longest`` bytes."""
        return read_tensors(self.folder / GLOBAL, longest)

    def change(self, client: Facts, longest: int | None = None) -> dict[str, Tensor]:
        """What a client changed; raises where the file has more than ``longest`` bytes."""
        return read_tensors(self.folder / str(client["file"]), longest)


@dataclass(frozen=True)
class Capture:
    """A captured folder: whole rounds in order, and in words what is not as it should be."""

    root: Path
    about: Facts
    rounds: tuple[CapturedRound, ...]
    truth: Facts | None
    problems: tuple[str, ...]

    @classmethod
    def open(cls, root: Path) -> Capture:
        """Looks at a folder; a round that cannot be used becomes a problem, the others stay."""
        if not root.is_dir():
            raise RunFolderError(f"{root} is not a folder: name one that a curious server wrote")
        problems: list[str] = []
        rounds: dict[int, CapturedRound] = {}
        for folder in sorted(root.glob("round-*")):
            try:
                found = read_round(folder)
                if found.number in rounds:
                    raise RunFolderError(f"{folder} is round {found.number} once more")
                rounds[found.number] = found
            except RunFolderError as error:
                problems.append(str(error))
        if not rounds:
            why = f" ({problems[0]})" if problems else ""
            raise RunFolderError(f"{root} holds no captured round{why}")
        problems = first_few(problems, "captured folders cannot be used")
        about, left_out = description(root)
        problems += missing_rounds({*rounds, *left_out}, max(rounds))
        problems += first_few(
            [f"round {number} was left out when it was captured" for number in left_out],
            "rounds were left out when they were captured",
        )
        truth = read_facts(root / TRUTH) if os.path.lexists(root / TRUTH) else None
        in_order = tuple(rounds[number] for number in sorted(rounds))
        return cls(root, about, in_order, truth, tuple(problems))


def missing_rounds(there: set[int], last: int) -> list[str]:
    """The gaps between the rounds that are known of, in words."""
    named: list[str] = []
    unnamed, before = 0, 0
    for number in sorted(n for n in there if n <= last):
        gap = range(before + 1, number)
        room = gap[: NAMED - len(named)]
        named += [f"round {missing} is missing" for missing in room]
        unnamed += len(gap) - len(room)
        before = number
    return named + ([f"{unnamed:,} more rounds are missing"] if unnamed else [])


def first_few(lines: Iterable[str], what: str) -> list[str]:
    """The first lines, and how many there are beyond."""
    found = list(lines)
    more = len(found) - NAMED
    return found[:NAMED] + ([f"{more:,} more {what}"] if more > 0 else [])


def read_round(folder: Path) -> CapturedRound:
    """A round by its manifest; raises where the round as a whole cannot be used."""
    path = folder / MANIFEST
    if not re.fullmatch(r"round-\d{1,18}", folder.name) or not os.path.lexists(path):
        raise RunFolderError(f"{folder} has no {MANIFEST}: the server stopped while it wrote")
    found = read_facts(path)
    try:
        number, config = found["round"], dict(found.get("config", {}))
        entries, lost = found["clients"], dict(found.get("lost", {}))
        recorded = dict(found.get("left_out", {}))
        if not isinstance(entries, list) or not is_whole_number(number):
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(f"{path} is not a manifest of this kind") from None
    if not 1 <= number <= LAST_ROUND or number != int(folder.name.removeprefix("round-")):
        raise RunFolderError(f"{path} says that it is of round {printable(number)}: left out")
    clients: dict[str, Facts] = {}
    left_out = in_words(recorded)
    for place, entry in enumerate(entries):
        try:
            client = read_client(entry)
            if client["node"] in clients:
                raise ValueError("it is there twice")
            clients[client["node"]] = client
        except ValueError as error:
            left_out[name_in(entry, place)] = str(error)
    if entries and not clients:
        why = next(iter(left_out.values()))
        raise RunFolderError(f"{path} names no client that can be used ({why})")
    return CapturedRound(
        folder, number, plain(config), tuple(clients.values()), in_words(lost), left_out
    )


def read_client(entry: object) -> Facts:
    """What a manifest says of one client; raises ValueError where it makes no sense."""
    if not isinstance(entry, dict):
        raise ValueError("the manifest's words on it are no object")
    node, file, metrics = entry.get("node"), entry.get("file"), entry.get("metrics") or {}
    if not (is_whole_number(node) or isinstance(node, str)) or not is_name(str(node)):
        raise ValueError("it has no name of up to 100 printable characters")
    if not isinstance(file, str) or not is_file_name(file):
        raise ValueError(f"its file {printable(file)!r} is no name of a file beside the manifest")
    if not isinstance(metrics, dict):
        raise ValueError("its metrics are no object")
    inner = {name: plain(value) for name, value in entry.items() if isinstance(value, dict)}
    return {**plain(entry), **inner, "node": str(node), "file": file, "metrics": plain(metrics)}


def is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()


def is_file_name(text: str) -> bool:
    return is_name(text) and Path(text).name == text and text not in (".", "..")


def name_in(entry: object, place: int) -> str:
    """What to call a client that cannot be used."""
    node = entry.get("node") if isinstance(entry, dict) else None
    return printable(node, LONGEST_NAME) if node is not None else f"number {place + 1}"


def in_words(reasons: Mapping[Any, Any]) -> dict[str, str]:
    """Clients and what is said of them, as lines that can be shown."""
    return {printable(node, LONGEST_NAME): printable(why) for node, why in reasons.items()}


def read_facts(path: Path) -> Any:
    """The JSON of a file; numbers that are none are words, so that they cost only themselves."""
    try:
        regular_size(path)
        text = read_regular(path, LONGEST_JSON).decode("utf-8")
        return parse_json(text, odd_numbers_as_words=True)
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise RunFolderError(f"{path} cannot be read ({why})") from None


def read_tensors(path: Path, longest: int | None) -> dict[str, Tensor]:
    """The tensors of a file in a captured folder."""
    try:
        size = regular_size(path)
    except FileNotFoundError:
        raise BadUpdate(f"{path} does not exist") from None
    except OSError as error:
        raise BadUpdate(f"{path} cannot be read ({error.strerror})") from None
    if longest is not None and size > longest:
        raise BadUpdate(f"{path} has {size:,} bytes: too many for this model")
    return read_safetensors(path)[0]


def regular_size(path: Path) -> int:
    """A file's bytes; raises OSError where it is none, or a link: a captured folder has its own."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.EINVAL, "it is a link, not a file")
    check_regular(found.st_mode)
    return found.st_size


__all__ = ["Capture", "CapturedRound"]
