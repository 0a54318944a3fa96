"""The run folder: one JSON a finding, safetensors for pictures, everything written atomically."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.atomic import read_json, sweep, write_json, write_tensors, write_text
from keyhole.audit.finding import Finding
from keyhole.errors import BadUpdate, RunFolderError, one_line
from keyhole.update import read_safetensors

PLAN = "plan.json"
FOLDERS = ("findings", "pictures", "chunks", "states")
OWN = (PLAN, *FOLDERS, "summary.json", "report.html")


class Store:
    """One audit's folder. A killed run leaves whole files only; the same plan continues it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, root: Path, plan: dict[str, Any], *, fresh: bool = False) -> Store:
        """Makes the folder for this plan, or takes up where an earlier run of it stopped."""
        store = cls(root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            known = store.plan()
            if fresh:
                store._clear()
            if known is None and any(root.iterdir()):
                raise RunFolderError(f"{root} holds other files: choose another --out")
            if known is not None and known != plan and not fresh:
                raise RunFolderError(
                    f"{root} holds another audit: choose another --out, or replace it with --fresh"
                )
            for folder in FOLDERS:
                (root / folder).mkdir(exist_ok=True)
            sweep(root)
            store.write_json(PLAN, plan)
        except OSError as error:
            why = error.strerror or one_line(error)
            raise RunFolderError(f"cannot write to {root} ({why}): choose another --out") from None
        return store

    @classmethod
    def existing(cls, root: Path) -> Store:
        """The folder of an audit that was run before."""
        store = cls(root)
        if store.plan() is None:
            raise RunFolderError(f"{root} is not the folder of an audit: it has no {PLAN}")
        return store

    def plan(self) -> dict[str, Any] | None:
        path = self.root / PLAN
        return read_json(path) if path.is_file() else None

    def _clear(self) -> None:
        """Removes what an earlier audit wrote here, and nothing else."""
        if self.plan() is None:
            return
        for name in OWN:
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()

    def discard_if_empty(self) -> None:
        """Removes what was begun here, if nothing was found yet: a failed start leaves no trace."""
        begun = [path for folder in FOLDERS for path in (self.root / folder).glob("*")]
        if begun:
            return
        self._clear()
        if not any(self.root.iterdir()):
            self.root.rmdir()

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.root / name, value)

    def write_text(self, name: str, text: str) -> Path:
        return write_text(self.root / name, text)

    def write_tensors(
        self, name: str, tensors: dict[str, Tensor], header: dict[str, str] | None = None
    ) -> None:
        write_tensors(self.root / name, tensors, header)

    def finding(self, key: str) -> Finding | None:
        path = self.root / "findings" / f"{key}.json"
        return Finding.from_json(read_json(path)) if path.is_file() else None

    def findings(self) -> list[Finding]:
        """All findings in the order of the audit."""
        paths = sorted((self.root / "findings").glob("*.json"), key=lambda p: p.stat().st_mtime_ns)
        if not paths:
            raise RunFolderError(f"{self.root} holds no findings yet: run its audit again")
        return [Finding.from_json(read_json(path)) for path in paths]

    def summary(self) -> dict[str, Any]:
        """What a finished audit concluded; empty while it has not finished."""
        path = self.root / "summary.json"
        found: dict[str, Any] = read_json(path) if path.is_file() else {}
        return found

    def add(self, finding: Finding, pictures: dict[str, Tensor]) -> None:
        """Keeps a finding; its pictures go first, so that a finding is never without them."""
        if pictures:
            self.write_tensors(f"pictures/{finding.key}.safetensors", pictures)
        self.write_json(f"findings/{finding.key}.json", finding.to_json())

    def pictures(self, key: str) -> dict[str, Tensor]:
        path = self.root / "pictures" / f"{key}.safetensors"
        if not path.is_file():
            return {}
        try:
            return read_safetensors(path)[0]
        except BadUpdate as error:
            raise RunFolderError(str(error)) from None

    def chunk(self, name: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """What an interrupted run had finished of a scene."""
        path = self.root / "chunks" / f"{name}.json"
        if not path.is_file():
            return None
        tensors = self.root / "chunks" / f"{name}.safetensors"
        return read_json(path), read_safetensors(tensors)[0] if tensors.is_file() else {}

    def add_chunk(self, name: str, value: dict[str, Any], pictures: dict[str, Tensor]) -> None:
        if pictures:
            self.write_tensors(f"chunks/{name}.safetensors", pictures)
        self.write_json(f"chunks/{name}.json", value)

    def state(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Where an attack stood when it was last saved."""
        path = self.root / "states" / f"{name}.safetensors"
        if not path.is_file():
            return None
        tensors, header = read_safetensors(path)
        return tensors, json.loads(header["facts"])

    def keep_state(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keeps where an attack stands: one file, there as a whole or not at all."""
        self.write_tensors(f"states/{name}.safetensors", tensors, {"facts": json.dumps(facts)})

    def drop_begun(self, prefix: str) -> None:
        """Removes what was kept of a scene that is done."""
        for folder in ("chunks", "states"):
            for path in (self.root / folder).glob(f"{prefix}-*"):
                path.unlink()


def to_bytes(images: Tensor) -> Tensor:
    """[0, 1] images as uint8."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
