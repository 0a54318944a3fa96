"""The run folder: one JSON a finding, safetensors for pictures, everything written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.atomic import (
    digest_of,
    is_unfinished,
    read_json,
    remove_tree,
    remove_unfinished,
    write_json,
    write_tensors,
    write_text,
)
from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_check import typed
from keyhole.auditing.run_folder import PLAN, check_is_run, read_object, read_run_plan
from keyhole.auditing.store_checkpointer import StateFile, in_order
from keyhole.errors import BadUpdate, RunFolderError, one_line
from keyhole.lock import LOCK, FolderLock, make_folder
from keyhole.spelling import shorten
from keyhole.update import read_safetensors

ORDER, SUMMARY = "order.json", "summary.json"
FOLDERS = ("findings", "pictures", "chunks", "states")
OWN = (SUMMARY, "report.html", *FOLDERS, ORDER)
"""What an audit writes beside its plan, in the order in which it is removed: a finding goes before
its pictures. The plan is written first and never removed before the rest."""

MARK = "stage"
"""What tells an audit's plan from those of trainings and membership runs."""
KINDS = {".json", ".safetensors"}
MARKS = {PLAN: b"", ORDER: b"[", SUMMARY: b'"verdicts"', "report.html": b"Keyhole"}
"""What tells an audit's own files from a user's of the same name."""


class Store:
    """One audit's folder. A killed run leaves whole files only; the same plan continues it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock: FolderLock | None = None

    @classmethod
    def open(cls, root: Path, plan: dict[str, Any], *, fresh: bool = False) -> Store:
        """Makes the folder for this plan, or takes up where an earlier run of it stopped.

        No other process can open it until :meth:`release`.
        """
        store = cls(root)
        store._check(plan, fresh=fresh)
        make_folder(root)
        store.lock = FolderLock(root)
        try:
            store._check(plan, fresh=fresh)  # another may have come before the lock
            if fresh:
                store._clear()
            store.write_json(PLAN, plan)
            remove_unfinished(root)
            for folder in FOLDERS:
                make_folder(root / folder)
        except BaseException:
            store.release()
            raise
        return store

    def release(self) -> None:
        """Lets others open the folder."""
        if self.lock is not None:
            self.lock.release()

    def _check(self, plan: dict[str, Any], *, fresh: bool) -> None:
        """Refuses a folder that holds anything but this audit, or that ``fresh`` may replace."""
        if self.root.exists() and not self.root.is_dir():
            raise RunFolderError(f"{self.root} is not a folder: choose another --out")
        try:
            known = self.plan()
        except RunFolderError:
            if not fresh:
                raise
            known = None
        if known is None:
            self._check_unplanned(fresh=fresh)
        elif not isinstance(known, dict) or MARK not in known:
            raise RunFolderError(f"{self.root} holds another run, no audit: choose another --out")
        elif known != plan and not fresh:
            raise RunFolderError(
                f"{self.root} holds another audit, or one that another version of keyhole began: "
                "choose another --out, or replace it with --fresh"
            )

    def _check_unplanned(self, *, fresh: bool) -> None:
        """A folder without a plan may hold what a killed audit left: nothing, or parts of ours."""
        if not self.root.is_dir():
            return
        if any(not is_own(path) for path in self.root.iterdir()):
            raise RunFolderError(f"{self.root} holds other files: choose another --out")
        whole = [p for p in self.root.rglob("*") if p.is_file() and not is_stray(p)]
        if whole and not fresh:
            raise RunFolderError(
                f"{self.root} holds parts of an audit but no {PLAN}: choose another --out, or "
                "replace them with --fresh"
            )

    @classmethod
    def existing(cls, root: Path) -> Store:
        """The folder of an audit that was run before."""
        check_is_run(root)
        return cls(root)

    def plan(self) -> dict[str, Any] | None:
        return read_run_plan(self.root)

    def _clear(self) -> None:
        """Removes what an earlier audit wrote here, and nothing else; its plan stays."""
        for name in OWN:
            remove_tree(self.root / name)

    def discard_if_empty(self) -> None:
        """Removes what was begun here, if nothing was found yet: a failed start leaves no trace."""
        begun = [path for folder in FOLDERS for path in (self.root / folder).glob("*")]
        if begun:
            return
        self._clear()
        remove_tree(self.root / PLAN)
        self.release()
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
        return self._read_finding(path) if path.is_file() else None

    def findings(self) -> list[Finding]:
        """All findings in the order of the audit; those it does not name last, oldest first."""
        paths = list((self.root / "findings").glob("*.json"))
        if not paths:
            raise RunFolderError(f"{self.root} holds no findings yet: run its audit again")
        place = {key: number for number, key in enumerate(self.order())}
        paths.sort(key=lambda p: (place.get(p.stem, len(place)), p.lstat().st_mtime_ns, p.name))
        return [self._read_finding(path) for path in paths]

    @staticmethod
    def _read_finding(path: Path) -> Finding:
        found = Finding.from_json(read_json(path), source=str(path))
        if found.key != path.stem:
            raise RunFolderError(f"{path} is the finding {found.key!r}: remove it")
        return found

    def order(self) -> list[str]:
        """The keys of the findings as the plan orders them; of old folders, as they concluded."""
        path = self.root / ORDER
        if path.is_file():
            found = read_json(path)
            return [str(key) for key in found] if isinstance(found, list) else []
        concluded = self.summary().get("findings", ())
        return [str(f.get("key")) for f in concluded if isinstance(f, dict)]

    def keep_order(self, keys: Sequence[str]) -> None:
        """Notes before the work in which order its findings belong."""
        if not (self.root / ORDER).is_file() or self.order() != list(keys):
            self.write_json(ORDER, list(keys))

    def summary(self) -> dict[str, Any]:
        """What a finished audit concluded; empty while it has not finished."""
        path = self.root / SUMMARY
        return read_object(path) if path.is_file() else {}

    def skipped_and_notes(self) -> tuple[tuple[Skipped, ...], tuple[str, ...]]:
        """What a finished audit says of attacks it could not try and material it could not use."""
        return read_skipped_and_notes(self.summary(), str(self.root / SUMMARY))

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
            found = read_safetensors(path)[0]
            check_pictures(found)
        except (BadUpdate, ValueError) as error:
            raise RunFolderError(
                f"{path} is not as an audit writes it ({one_line(error)}): remove it and its "
                "finding, and run the same audit again"
            ) from None
        return found

    def chunk(self, name: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """What an interrupted run had finished of a setting."""
        path = self.root / "chunks" / f"{name}.json"
        if not path.is_file():
            return None
        tensors = self.root / "chunks" / f"{name}.safetensors"
        value = read_object(path)
        pictures = read_safetensors(tensors)[0] if tensors.is_file() else {}
        if value.pop("digest", None) != digest_of(in_order(pictures), json.dumps(value)):
            raise RunFolderError(
                f"{path} is not as an audit wrote it: remove it, and its victims are attacked anew"
            )
        return value, pictures

    def add_chunk(self, name: str, value: dict[str, Any], pictures: dict[str, Tensor]) -> None:
        if pictures:
            self.write_tensors(f"chunks/{name}.safetensors", pictures)
        digest = digest_of(in_order(pictures), json.dumps(value))
        self.write_json(f"chunks/{name}.json", {**value, "digest": digest})

    def state(self, name: str) -> StateFile:
        """Where an attack keeps its state."""
        return StateFile(self.root / "states" / f"{name}.safetensors")

    def drop_begun(self, prefix: str) -> None:
        """Removes what was kept of a setting that is done."""
        for folder in ("chunks", "states"):
            for path in (self.root / folder).glob(f"{prefix}-*"):
                remove_tree(path)


def read_skipped_and_notes(
    values: Mapping[str, Any], source: str
) -> tuple[tuple[Skipped, ...], tuple[str, ...]]:
    """These two parts of a result in JSON; ``source`` says in an error where it came from."""
    try:
        skipped = tuple(typed(Skipped, each) for each in typed(list, values.get("skipped", [])))
        return skipped, typed(tuple[str, ...], values.get("notes", []))
    except ValueError as error:
        raise RunFolderError(
            f"{source} is not as an audit writes it ({one_line(error)}): run the same audit again"
        ) from None


def is_own(path: Path) -> bool:
    """Whether an audit may have written what lies at the top of a folder without a plan."""
    if is_stray(path):
        return True
    if path.name in FOLDERS:
        return path.is_dir() and all(is_stray(p) or p.suffix in KINDS for p in path.iterdir())
    return path.is_file() and path.name in MARKS and MARKS[path.name] in path.read_bytes()


def is_stray(path: Path) -> bool:
    """What a killed process may have left."""
    return is_unfinished(path) or path.name == LOCK


def check_pictures(found: Mapping[str, Tensor]) -> None:
    """Raises ValueError where tensors are not the pictures that an audit keeps."""
    for name, tensor in found.items():
        if name.startswith("film.") and name.endswith(".at"):
            fits = tensor.dtype == torch.int64 and tensor.ndim == 1
        else:
            fits = tensor.dtype == torch.uint8 and tensor.ndim == 4 and tensor.shape[1] in (1, 3)
            fits = fits and tensor.numel() > 0
        if not fits:
            raise ValueError(f"{shorten(name)} holds no pictures")
    pairs = [("seen", "truth"), *((name, f"{name}.at") for name in found if is_film(name))]
    for one, other in pairs:
        if one in found and other in found and len(found[one]) != len(found[other]):
            raise ValueError(f"{one} and {other} differ in length")
        if is_film(one) and other not in found:
            raise ValueError(f"{other} is missing")


def is_film(name: str) -> bool:
    return name.startswith("film.") and not name.endswith(".at")


def to_bytes(images: Tensor) -> Tensor:
    """[0, 1] images as uint8."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
