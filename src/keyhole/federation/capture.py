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
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.atomic import read_json, write_json, write_tensors
from keyhole.errors import RunFolderError
from keyhole.update import read_safetensors

log = logging.getLogger("keyhole")

ABOUT, MANIFEST, GLOBAL, TRUTH = "capture.json", "manifest.json", "global.safetensors", "truth.json"
LIMIT_GB = 10.0
PLAIN = (bool, int, float, str, type(None))

Facts = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What one client sent in one round: the change of every tensor, and what it said beside it."""

    node: str
    change: Mapping[str, Tensor]
    examples: int | None = None
    metrics: Facts = field(default_factory=dict)


class Recorder:
    """Writes rounds down as they happen, up to ``limit_gb``; the training never fails for it.

    Early rounds leak most, so the first ones are kept and later ones left out.
    """

    def __init__(
        self,
        root: Path,
        *,
        limit_gb: float = LIMIT_GB,
        about: Facts | None = None,
        fresh: bool = False,
    ) -> None:
        self.root = root
        self.limit = int(limit_gb * 1e9)
        if fresh:
            clear(root)
        known, self.left_out = description(root)
        self.about: Facts = {**known, **plain(about or {})}
        if known.get("run", self.about.get("run")) != self.about.get("run"):
            raise RunFolderError(f"{root} holds what another run sent: choose another folder")
        write_json(root / ABOUT, self._description())

    def round(
        self,
        number: int,
        sent: Mapping[str, Tensor],
        replies: Sequence[Reply],
        *,
        config: Facts | None = None,
        lost: Mapping[str, str] | None = None,
    ) -> bool:
        """Keeps one round; False where it was left out. ``lost``: clients that failed, and why."""
        folder = self.root / f"round-{number:04d}"
        need = sum(size_of(tensors) for tensors in (sent, *(r.change for r in replies)))
        if self._used(beside=folder) + need > self.limit:
            self._leave_out(number, f"its folder may hold {self.limit / 1e9:g} GB")
            return False
        manifest = {
            "round": number,
            "config": plain(config or {}),
            "clients": [
                {
                    "node": reply.node,
                    "file": f"client-{reply.node}.safetensors",
                    "examples": reply.examples,
                    "metrics": plain(reply.metrics),
                }
                for reply in replies
            ],
            "lost": dict(lost or {}),
        }
        try:
            write_tensors(folder / GLOBAL, sent)
            for reply in replies:
                write_tensors(folder / f"client-{reply.node}.safetensors", reply.change)
            write_json(folder / MANIFEST, manifest)
            if number in self.left_out:
                self.left_out.remove(number)
                write_json(self.root / ABOUT, self._description())
        except RunFolderError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._leave_out(number, str(error))
            return False
        return True

    def truth(self, data: str, owners: Mapping[str, Sequence[int]], **facts: Any) -> None:
        """Notes for the judge which images of ``data`` each client has."""
        images = {node: list(indices) for node, indices in owners.items()}
        write_json(self.root / TRUTH, {"data": data, **plain(facts), "clients": images})

    def _leave_out(self, number: int, why: str) -> None:
        log.warning("round %d is not captured: %s", number, why)
        self.left_out = sorted({*self.left_out, number})
        try:
            write_json(self.root / ABOUT, self._description())
        except RunFolderError as error:
            log.warning("%s", error)

    def _description(self) -> Facts:
        return {"format": 1, "about": self.about, "left_out": self.left_out}

    def _used(self, beside: Path) -> int:
        """Bytes that all rounds but one take."""
        files = [f for f in self.root.rglob("*.safetensors") if f.parent != beside]
        return sum(f.stat().st_size for f in files)


def clear(root: Path) -> None:
    """Removes what an earlier capture wrote, and nothing else."""
    if (root / ABOUT).is_file():
        for folder in root.glob("round-*"):
            shutil.rmtree(folder, ignore_errors=True)
        for name in (ABOUT, TRUTH):
            (root / name).unlink(missing_ok=True)


def description(root: Path) -> tuple[Facts, list[int]]:
    """What a capture is about, and the rounds it left out."""
    if not (root / ABOUT).is_file():
        return {}, []
    found = read_json(root / ABOUT)
    try:
        return dict(found.get("about", {})), [int(n) for n in found.get("left_out", [])]
    except (AttributeError, TypeError, ValueError):
        raise RunFolderError(f"{root / ABOUT} is not the description of a capture") from None


@dataclass(frozen=True)
class CapturedRound:
    """One round as it lies on disk; tensors are read when they are asked for."""

    folder: Path
    number: int
    config: Facts
    clients: tuple[Facts, ...]
    """Of each client that answered: ``node``, ``file``, ``examples``, ``metrics``."""
    lost: Mapping[str, str]

    def weights(self) -> dict[str, Tensor]:
        return read_safetensors(self.folder / GLOBAL)[0]

    def change(self, client: Facts) -> dict[str, Tensor]:
        return read_safetensors(self.folder / str(client["file"]))[0]


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
        rounds = []
        for folder in sorted(root.glob("round-*")):
            try:
                rounds.append(_round(folder))
            except RunFolderError as error:
                problems.append(str(error))
        if not rounds:
            why = f" ({problems[0]})" if problems else ""
            raise RunFolderError(f"{root} holds no captured round{why}")
        about, left_out = description(root)
        there = {r.number for r in rounds}
        for number in range(1, max(there)):
            if number not in {*there, *left_out}:
                problems.append(f"round {number} is missing")
        problems += [f"round {number} was left out when it was captured" for number in left_out]
        truth = read_json(root / TRUTH) if (root / TRUTH).is_file() else None
        return cls(root, about, tuple(rounds), truth, tuple(problems))


def _round(folder: Path) -> CapturedRound:
    if not re.fullmatch(r"round-\d+", folder.name) or not (folder / MANIFEST).is_file():
        raise RunFolderError(f"{folder} has no {MANIFEST}: the server stopped while it wrote")
    found = read_json(folder / MANIFEST)
    try:
        clients = tuple(
            {**c, "node": str(c["node"]), "metrics": dict(c.get("metrics") or {})}
            for c in found["clients"]
        )
        if any(Path(str(c["file"])).name != c["file"] for c in clients):
            raise ValueError
        number, config = int(found["round"]), dict(found.get("config", {}))
        lost = dict(found.get("lost", {}))
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(f"{folder / MANIFEST} is not a manifest of this kind") from None
    return CapturedRound(folder, number, config, clients, lost)


def size_of(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def plain(facts: Mapping[str, Any]) -> Facts:
    """Only what JSON can hold and a reader can read; numbers that are none become words."""
    kept = {str(k): v for k, v in facts.items() if isinstance(v, PLAIN)}
    return {k: v if v == v and v not in (INFINITE, -INFINITE) else str(v) for k, v in kept.items()}


INFINITE = float("inf")

__all__ = ["Capture", "CapturedRound", "Recorder", "Reply"]
