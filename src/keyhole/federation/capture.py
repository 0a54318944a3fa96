"""What a curious server wrote down: each round's global weights, and every client's update.

    DIR/capture.json                    what the run was about, rounds that were left out
    DIR/round-0001/global.safetensors   the weights the server sent
    DIR/round-0001/client-7.safetensors what client 7 changed in them, as the server saw it
    DIR/round-0001/manifest.json        the recipe the server sent, and who answered; written last
    DIR/truth.json                      whose images were whose, where somebody noted it: for
                                        scoring only, no server sees it

Everything is safetensors and JSON, written whole or not at all; nothing is ever unpickled.
"""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.atomic import read_json, sweep, write_json, write_tensors
from keyhole.errors import RunFolderError, one_line
from keyhole.untrusted import printable

log = logging.getLogger("keyhole")

ABOUT, MANIFEST, GLOBAL, TRUTH = "capture.json", "manifest.json", "global.safetensors", "truth.json"
LIMIT_GB = 10.0
MOST_TIMES, SPARE = 4, 1 << 20
"""A reply may have so many times the bytes of the model that was sent, and some more."""
LONGEST_FACT = 2000
"""Characters."""
PLAIN = (bool, int, float, str, type(None))

Facts = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What one client sent in one round: the change of every tensor, and what it said beside it."""

    node: str
    change: Mapping[str, Tensor]
    examples: int | None = None
    metrics: Facts = field(default_factory=dict)
    defense: str | None = None
    """What the client says that its update went through, in its own words."""


class Recorder:
    """Writes rounds down as they happen, up to ``limit_gb``; the training never fails for it.

    Early rounds leak most, so the first ones are kept and later ones left out. A folder that holds
    rounds may be written to again by the same run, which goes on there; ``resume=False``: by none.
    """

    def __init__(
        self,
        root: Path,
        *,
        limit_gb: float = LIMIT_GB,
        about: Facts | None = None,
        fresh: bool = False,
        resume: bool = True,
    ) -> None:
        self.root = root
        self.limit = int(limit_gb * 1e9)
        if fresh:
            clear(root)
        known, self.left_out = description(root)
        self.about: Facts = {**known, **plain(about or {})}
        if known.get("run", self.about.get("run")) != self.about.get("run"):
            raise RunFolderError(f"{root} holds what another run sent: choose another folder")
        if not resume and (self.left_out or any(round_folders(root))):
            raise RunFolderError(
                f"{root} holds what another run sent: choose another folder, or replace it with "
                "fresh=True"
            )
        for folder in (root, *round_folders(root)):
            sweep(folder, below=False)
        write_json(root / ABOUT, self._description())

    def begin(
        self, number: int, sent: Mapping[str, Tensor], *, config: Facts | None = None
    ) -> RoundWriter:
        """Opens a round: replies are added to what this returns as they come."""
        return RoundWriter(self, number, sent, plain(config or {}))

    def round(
        self,
        number: int,
        sent: Mapping[str, Tensor],
        replies: Iterable[Reply],
        *,
        config: Facts | None = None,
        lost: Mapping[str, str] | None = None,
    ) -> bool:
        """Keeps one round; False where it was left out. ``lost``: clients that failed, and why."""
        writer = self.begin(number, sent, config=config)
        for reply in replies:
            writer.add(reply)
        for node, why in (lost or {}).items():
            writer.lose(node, why)
        return writer.close()

    def truth(self, data: str, owners: Mapping[str, Sequence[int]], **facts: Any) -> None:
        """Notes for the judge which images of ``data`` each client has."""
        images = {node: list(indices) for node, indices in owners.items()}
        write_json(self.root / TRUTH, {"data": data, **plain(facts), "clients": images})

    def keep(self, number: int) -> None:
        """Notes that a round that had been left out is there now."""
        if number in self.left_out:
            self.left_out.remove(number)
            write_json(self.root / ABOUT, self._description())

    def leave_out(self, number: int, why: str) -> None:
        """Notes that a round is not captured; the training goes on."""
        log.warning("round %d is not captured: %s", number, why)
        self.left_out = sorted({*self.left_out, number})
        try:
            write_json(self.root / ABOUT, self._description())
        except (RunFolderError, OSError) as error:
            log.warning("%s", error)

    def _description(self) -> Facts:
        return {"format": 1, "about": self.about, "left_out": self.left_out}

    def used(self, beside: Path) -> int:
        """Bytes that all rounds but one take."""
        files = [f for f in self.root.rglob("*.safetensors") if f.parent != beside]
        return sum(f.stat().st_size for f in files)


class RoundWriter:
    """One round on its way to disk: every reply is written as it comes, the manifest last.

    A reply that cannot be kept is left out alone. Where the disk fails, or its share of it is
    used up, the whole round is left out. Nothing here is raised into the training.
    """

    def __init__(
        self, recorder: Recorder, number: int, sent: Mapping[str, Tensor], config: Facts
    ) -> None:
        self.recorder, self.number, self.config = recorder, number, config
        self.folder = recorder.root / f"round-{number:04d}"
        self.clients: list[Facts] = []
        self.lost: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.failure: str | None = None
        self.whole = size_of(sent)
        self.used = 0
        try:
            self.used = recorder.used(beside=self.folder)
        except OSError as error:
            self.failure = one_line(error)
        self._write(GLOBAL, sent)

    def add(self, reply: Reply) -> None:
        """Keeps what one client sent."""
        size = size_of(reply.change)
        if size > MOST_TIMES * self.whole + SPARE:
            self.leave_out(reply.node, f"it sent {size:,} bytes for a model of {self.whole:,}")
            return
        file = f"client-{reply.node}.safetensors"
        taken = any(file == client["file"] for client in self.clients)
        if taken or not re.fullmatch(r"[\w.-]{1,100}", reply.node, re.ASCII):
            file = f"client-number-{len(self.clients) + 1}.safetensors"
        try:
            self._write(file, reply.change)
            entry = {"node": reply.node, "file": file, "examples": reply.examples}
            claim = {} if reply.defense is None else {"defense": reply.defense}
            self.clients.append({**entry, **plain(claim), "metrics": plain(reply.metrics)})
        except Exception as error:  # noqa: BLE001  no client's tensors may end the training
            self.leave_out(reply.node, one_line(error))

    def lose(self, node: str, why: str) -> None:
        """Notes a client that sent nothing."""
        self.lost[node] = printable(why)

    def leave_out(self, node: str, why: str) -> None:
        """Notes a client that sent what cannot be kept."""
        log.warning("client %s of round %d is not captured: %s", node, self.number, printable(why))
        self.left_out[node] = printable(why)

    def close(self) -> bool:
        """Writes the manifest; False where the round was left out."""
        manifest = {
            "round": self.number,
            "config": self.config,
            "clients": self.clients,
            "lost": self.lost,
            "left_out": self.left_out,
        }
        if self.failure is None:
            try:
                write_json(self.folder / MANIFEST, manifest)
                self.recorder.keep(self.number)
            except RunFolderError as error:
                self.failure = str(error)
        if self.failure is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.recorder.leave_out(self.number, self.failure)
        return self.failure is None

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.used += size_of(tensors)
        if self.failure is None and self.used > self.recorder.limit:
            self.failure = f"its folder may hold {self.recorder.limit / 1e9:g} GB"
        if self.failure is None:
            try:
                write_tensors(self.folder / name, tensors)
            except RunFolderError as error:
                self.failure = str(error)


def clear(root: Path) -> None:
    """Removes what an earlier capture wrote, and nothing else."""
    if (root / ABOUT).is_file():
        for folder in round_folders(root):
            shutil.rmtree(folder, ignore_errors=True)
        for name in (ABOUT, TRUTH):
            (root / name).unlink(missing_ok=True)


def round_folders(root: Path) -> Iterator[Path]:
    """Folders that a capture wrote, or may write again."""
    return (f for f in root.glob("round-*") if re.fullmatch(r"round-\d+", f.name) and f.is_dir())


def description(root: Path) -> tuple[Facts, list[int]]:
    """What a capture is about, and the rounds it left out."""
    if not (root / ABOUT).is_file():
        return {}, []
    found = read_json(root / ABOUT)
    try:
        about, left_out = dict(found.get("about", {})), list(found.get("left_out", []))
        if not all(is_whole_number(number) for number in left_out):
            raise TypeError
        return plain(about), sorted(set(left_out))
    except (AttributeError, TypeError, ValueError):
        raise RunFolderError(f"{root / ABOUT} is not the description of a capture") from None


def size_of(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def plain(facts: Mapping[str, Any]) -> Facts:
    """Only what JSON can hold and a reader can read; numbers that are none become words."""
    return {printable(k): plain_value(v) for k, v in facts.items() if isinstance(v, PLAIN)}


def plain_value(value: bool | int | float | str | None) -> bool | int | float | str | None:
    """A fact as it can be written and shown.

    >>> plain_value(float("nan")), plain_value(10**50), plain_value("a\\x07")
    ('nan', 'an integer of 167 bits', 'a\\\\x07')
    """
    if isinstance(value, str):
        return printable(value, LONGEST_FACT)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return value


def is_whole_number(value: object) -> bool:
    """Whether it is an integer; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


__all__ = ["Recorder", "Reply", "RoundWriter"]
