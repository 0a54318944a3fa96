"""Writes what a curious server sees: each round's global weights and every client's update.

    DIR/capture.json                    what the run is about, and which rounds were left out
    DIR/round-0001/global.safetensors   the weights that the server sent
    DIR/round-0001/client-7.safetensors what client 7 changed in them, as the server saw it
    DIR/round-0001/manifest.json        the server's config, and which clients replied; written last
    DIR/truth.json                      which images each client has, where that is known: for
                                        scoring only, no server sees it

All files are safetensors or JSON, and each is written whole or not at all; nothing is unpickled.
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

from keyhole.atomic import read_json, remove_unfinished, write_json, write_tensors
from keyhole.errors import RunFolderError, one_line
from keyhole.untrusted import printable

log = logging.getLogger("keyhole")

ABOUT, MANIFEST, GLOBAL, TRUTH = "capture.json", "manifest.json", "global.safetensors", "truth.json"
LIMIT_GB = 10.0
MAX_REPLY_RATIO, SPARE_BYTES = 4, 1 << 20
"""A reply may have this many times the bytes of the model that was sent, plus the spare bytes."""
MAX_TEXT_LENGTH = 2000
PLAIN_TYPES = (bool, int, float, str, type(None))

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What one client sent in one round.

    Args:
        node: The client's name.
        change: The change of every tensor.
        examples: The number of examples that the client says it trained on.
        metrics: What else the client reported.
        defense: The defense that the client says it applied, in its own words.
        clients: How many clients the change is the mean of; more than one under secure aggregation.
        members: The names of these clients, in the server's order, where it knows them.
    """

    node: str
    change: Mapping[str, Tensor]
    examples: int | None = None
    metrics: JsonObject = field(default_factory=dict)
    defense: str | None = None
    clients: int = 1
    members: Sequence[str] = ()


class CaptureWriter:
    """Writes rounds to a folder as they happen; a failure never stops the training.

    Early rounds leak most, so the first rounds are kept and later ones are left out when the disk
    space is used up. The same run may continue in a folder that already holds rounds.

    Args:
        root: The folder.
        limit_gb: The disk space that all rounds may use, in gigabytes.
        about: What a reader should know about the run.
        fresh: Whether to remove an earlier capture from the folder first.
        resume: Whether an earlier capture of the same run may be continued.
    """

    def __init__(
        self,
        root: Path,
        *,
        limit_gb: float = LIMIT_GB,
        about: JsonObject | None = None,
        fresh: bool = False,
        resume: bool = True,
    ) -> None:
        self.root = root
        self.limit = int(limit_gb * 1e9)
        if fresh:
            remove_capture(root)
        known, self.left_out = read_description(root)
        self.about: JsonObject = {**known, **to_plain_json(about or {})}
        if known.get("run", self.about.get("run")) != self.about.get("run"):
            raise RunFolderError(f"{root} holds the capture of another run: choose another folder")
        if not resume and (self.left_out or any(round_folders(root))):
            raise RunFolderError(
                f"{root} holds the capture of another run: choose another folder, or replace it "
                "with fresh=True"
            )
        for folder in (root, *round_folders(root)):
            remove_unfinished(folder, below=False)
        self._write_description()

    def begin_round(
        self, number: int, sent: Mapping[str, Tensor], *, config: JsonObject | None = None
    ) -> RoundWriter:
        """Returns a writer to which replies are added as they arrive.

        Args:
            number: The round's number.
            sent: The weights that the server sent.
            config: The config that the server sent with the weights.
        """
        return RoundWriter(self, number, sent, to_plain_json(config or {}))

    def write_round(
        self,
        number: int,
        sent: Mapping[str, Tensor],
        replies: Iterable[Reply],
        *,
        config: JsonObject | None = None,
        lost: Mapping[str, str] | None = None,
    ) -> bool:
        """Writes one round; returns False if it was left out.

        Args:
            number: The round's number.
            sent: The weights that the server sent.
            replies: What the clients sent back.
            config: The config that the server sent with the weights.
            lost: Clients that failed, and why.
        """
        writer = self.begin_round(number, sent, config=config)
        for reply in replies:
            writer.add(reply)
        for node, why in (lost or {}).items():
            writer.add_failure(node, why)
        return writer.close()

    def write_truth(self, data: str, owners: Mapping[str, Sequence[int]], **facts: Any) -> None:
        """Writes which images each client has; only scoring reads this.

        Args:
            data: The data set, by name or folder.
            owners: The indices of each client's images, by the client's name.
            facts: What else scoring needs to know, as values that JSON can hold.
        """
        images = {node: list(indices) for node, indices in owners.items()}
        write_json(self.root / TRUTH, {"data": data, **to_plain_json(facts), "clients": images})

    def mark_captured(self, number: int) -> None:
        """Removes a round that is now captured from the list of those left out.

        Args:
            number: The round's number.
        """
        if number in self.left_out:
            self.left_out.remove(number)
            self._write_description()

    def leave_out_round(self, number: int, why: str) -> None:
        """Notes that a round is not captured; the training continues.

        Args:
            number: The round's number.
            why: The reason, for the log.
        """
        log.warning("round %d is not captured: %s", number, why)
        self.left_out = sorted({*self.left_out, number})
        try:
            self._write_description()
        except (RunFolderError, OSError) as error:
            log.warning("%s", error)

    def _write_description(self) -> None:
        description = {"format": 1, "about": self.about, "left_out": self.left_out}
        write_json(self.root / ABOUT, description)

    def count_used_bytes(self, *, without: Path) -> int:
        """Returns the bytes of all rounds but one.

        Args:
            without: The folder of the round that does not count.
        """
        files = [f for f in self.root.rglob("*.safetensors") if f.parent != without]
        return sum(f.stat().st_size for f in files)


class RoundWriter:
    """Writes one round: every reply as it arrives, the manifest last.

    A reply that cannot be written is left out; the others stay. If the disk fails or the space is
    used up, the whole round is left out. No error is raised into the training.
    """

    def __init__(
        self, capture: CaptureWriter, number: int, sent: Mapping[str, Tensor], config: JsonObject
    ) -> None:
        self.capture, self.number, self.config = capture, number, config
        self.folder = capture.root / f"round-{number:04d}"
        self.clients: list[JsonObject] = []
        self.lost: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.failure: str | None = None
        self.model_bytes = count_bytes(sent)
        self.used_bytes = 0
        try:
            self.used_bytes = capture.count_used_bytes(without=self.folder)
        except OSError as error:
            self.failure = one_line(error)
        self._write(GLOBAL, sent)

    def add(self, reply: Reply) -> None:
        """Writes what one client sent."""
        size = count_bytes(reply.change)
        if size > MAX_REPLY_RATIO * self.model_bytes + SPARE_BYTES:
            why = f"it sent {size:,} bytes for a model of {self.model_bytes:,}"
            self.leave_out_client(reply.node, why)
            return
        file = f"client-{reply.node}.safetensors"
        taken = any(file == client["file"] for client in self.clients)
        if taken or not re.fullmatch(r"[\w.-]{1,100}", reply.node, re.ASCII):
            file = f"client-number-{len(self.clients) + 1}.safetensors"
        try:
            self._write(file, reply.change)
            entry = {"node": reply.node, "file": file, "examples": reply.examples}
            claim: JsonObject = {} if reply.defense is None else {"defense": reply.defense}
            if reply.clients > 1:
                claim |= {"clients": reply.clients, "members": ",".join(reply.members)}
            metrics = to_plain_json(reply.metrics)
            self.clients.append({**entry, **to_plain_json(claim), "metrics": metrics})
        except Exception as error:  # noqa: BLE001  no client's tensors may end the training
            self.leave_out_client(reply.node, one_line(error))

    def add_failure(self, node: str, why: str) -> None:
        """Notes a client that sent nothing."""
        self.lost[node] = printable(why)

    def leave_out_client(self, node: str, why: str) -> None:
        """Notes a client whose reply cannot be written."""
        log.warning("client %s of round %d is not captured: %s", node, self.number, printable(why))
        self.left_out[node] = printable(why)

    def close(self) -> bool:
        """Writes the manifest; returns False if the round was left out."""
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
                self.capture.mark_captured(self.number)
            except RunFolderError as error:
                self.failure = str(error)
        if self.failure is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.capture.leave_out_round(self.number, self.failure)
        return self.failure is None

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.used_bytes += count_bytes(tensors)
        if self.failure is None and self.used_bytes > self.capture.limit:
            self.failure = f"its folder may hold {self.capture.limit / 1e9:g} GB"
        if self.failure is None:
            try:
                write_tensors(self.folder / name, tensors)
            except RunFolderError as error:
                self.failure = str(error)


def remove_capture(root: Path) -> None:
    """Removes what an earlier capture wrote, and nothing else."""
    if (root / ABOUT).is_file():
        for folder in round_folders(root):
            shutil.rmtree(folder, ignore_errors=True)
        for name in (ABOUT, TRUTH):
            (root / name).unlink(missing_ok=True)


def round_folders(root: Path) -> Iterator[Path]:
    """Yields the folders of captured rounds."""
    return (f for f in root.glob("round-*") if re.fullmatch(r"round-\d+", f.name) and f.is_dir())


def read_description(root: Path) -> tuple[JsonObject, list[int]]:
    """Returns what a capture is about, and the rounds it left out."""
    if not (root / ABOUT).is_file():
        return {}, []
    found = read_json(root / ABOUT)
    try:
        about, left_out = dict(found.get("about", {})), list(found.get("left_out", []))
        if not all(is_integer(number) for number in left_out):
            raise TypeError
        return to_plain_json(about), sorted(set(left_out))
    except (AttributeError, TypeError, ValueError):
        raise RunFolderError(f"{root / ABOUT} is not the description of a capture") from None


def count_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def to_plain_json(values: Mapping[str, Any]) -> JsonObject:
    """Returns the values that JSON can hold, made printable; others are dropped."""
    return {printable(k): plain_value(v) for k, v in values.items() if isinstance(v, PLAIN_TYPES)}


def plain_value(value: bool | int | float | str | None) -> bool | int | float | str | None:
    """Returns a value that JSON can hold and a terminal can show.

    >>> plain_value(float("nan")), plain_value(10**50), plain_value("a\\x07")
    ('nan', 'an integer of 167 bits', 'a\\\\x07')
    """
    if isinstance(value, str):
        return printable(value, MAX_TEXT_LENGTH)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return value


def is_integer(value: object) -> bool:
    """Returns whether a value is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)
