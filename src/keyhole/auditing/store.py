"""The run folder: one JSON per finding, safetensors for pictures, everything written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.atomic import (
    read_json,
    remove_tree,
    remove_unfinished,
    write_json,
    write_tensors,
    write_text,
)
from keyhole.auditing.finding import Finding
from keyhole.auditing.pictures import check_pictures
from keyhole.auditing.run_folder import PLAN, check_is_run, read_object, read_run_plan
from keyhole.auditing.store_checkpointer import StateFile, digest_tensors
from keyhole.auditing.store_folder import FOLDERS, ORDER, OWN, SUMMARY, check_folder
from keyhole.errors import BadUpdate, RunFolderError, one_line
from keyhole.lock import FolderLock, make_folder
from keyhole.update import read_safetensors


class Store:
    """The folder of one audit. A killed run leaves whole files only; the same plan continues it.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock: FolderLock | None = None

    @classmethod
    def open(cls, root: Path, plan: dict[str, Any], *, fresh: bool = False) -> Store:
        """Makes the folder for a plan, or opens it where an earlier run of the plan stopped.

        No other process can open it until :meth:`release`.

        Args:
            root: The folder.
            plan: The plan, as JSON holds it.
            fresh: Removes an earlier audit first, also one of another plan.
        """
        store = cls(root)
        check_folder(root, plan, fresh=fresh)
        make_folder(root)
        store.lock = FolderLock(root)
        try:
            check_folder(root, plan, fresh=fresh)  # another may have come before the lock
            if fresh:
                store._clear()
            write_json(root / PLAN, plan)
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

    @classmethod
    def existing(cls, root: Path) -> Store:
        """Opens the folder of an earlier audit to read it.

        Args:
            root: The folder.
        """
        check_is_run(root)
        return cls(root)

    def plan(self) -> dict[str, Any] | None:
        """The plan, as JSON holds it; None where there is none."""
        return read_run_plan(self.root)

    def _clear(self) -> None:
        """Removes what an earlier audit wrote here, and nothing else; its plan stays."""
        for name in OWN:
            remove_tree(self.root / name)

    def discard_if_empty(self) -> None:
        """Removes the folder if nothing was found yet, so that a failed start leaves no trace."""
        if any(path for folder in FOLDERS for path in (self.root / folder).glob("*")):
            return
        self._clear()
        remove_tree(self.root / PLAN)
        self.release()
        if not any(self.root.iterdir()):
            self.root.rmdir()

    def write_text(self, name: str, text: str) -> Path:
        """Writes a file of text, such as the report.

        Args:
            name: The file's name in the folder.
            text: Its content.
        """
        return write_text(self.root / name, text)

    def finding(self, key: str) -> Finding | None:
        """A finding; None if it is not there yet.

        Args:
            key: The finding's key.
        """
        path = self.root / "findings" / f"{key}.json"
        return self._read_finding(path) if path.is_file() else None

    def findings(self) -> list[Finding]:
        """All findings in the order of the plan; those it does not name last, oldest first."""
        paths = list((self.root / "findings").glob("*.json"))
        if not paths:
            raise RunFolderError(f"{self.root} holds no findings yet: run its audit again")
        place = {key: number for number, key in enumerate(self.order())}
        paths.sort(key=lambda p: (place.get(p.stem, len(place)), p.lstat().st_mtime_ns, p.name))
        return [self._read_finding(path) for path in paths]

    @staticmethod
    def _read_finding(path: Path) -> Finding:
        finding = Finding.from_json(read_json(path), source=str(path))
        if finding.key != path.stem:
            raise RunFolderError(f"{path} is the finding {finding.key!r}: remove it")
        return finding

    def order(self) -> list[str]:
        """The findings' keys in the order of the plan; of old folders, in that of the summary."""
        path = self.root / ORDER
        if path.is_file():
            keys = read_json(path)
            return [str(key) for key in keys] if isinstance(keys, list) else []
        findings = self.summary().get("findings", ())
        return [str(f.get("key")) for f in findings if isinstance(f, dict)]

    def write_order(self, keys: Sequence[str]) -> None:
        """Writes down the order of the findings, before any of them is there.

        Args:
            keys: The findings' keys in the order of the plan.
        """
        if not (self.root / ORDER).is_file() or self.order() != list(keys):
            write_json(self.root / ORDER, list(keys))

    def summary(self) -> dict[str, Any]:
        """The result of a finished audit as JSON holds it; empty while it has not finished."""
        path = self.root / SUMMARY
        return read_object(path) if path.is_file() else {}

    def write_summary(self, result: Mapping[str, Any]) -> None:
        """Writes the result of a finished audit.

        Args:
            result: The result, as JSON holds it.
        """
        write_json(self.root / SUMMARY, result)

    def add(self, finding: Finding, pictures: dict[str, Tensor]) -> None:
        """Writes a finding; its pictures go first, so that a finding is never without them.

        Args:
            finding: The finding.
            pictures: Its pictures by name, uint8 ``[n, C, H, W]``.
        """
        if pictures:
            write_tensors(self.root / "pictures" / f"{finding.key}.safetensors", pictures)
        write_json(self.root / "findings" / f"{finding.key}.json", finding.to_json())

    def pictures(self, key: str) -> dict[str, Tensor]:
        """The pictures of a finding by name, uint8 ``[n, C, H, W]``.

        Args:
            key: The finding's key.
        """
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
        """What :meth:`add_chunk` wrote; None if nothing was.

        Args:
            name: The chunk's name.
        """
        path = self.root / "chunks" / f"{name}.json"
        if not path.is_file():
            return None
        tensors = path.with_suffix(".safetensors")
        measured = read_object(path)
        pictures = read_safetensors(tensors)[0] if tensors.is_file() else {}
        if measured.pop("digest", None) != digest_tensors(pictures, json.dumps(measured)):
            raise RunFolderError(
                f"{path} is not as an audit wrote it: remove it, and its victims are attacked again"
            )
        return measured, pictures

    def add_chunk(self, name: str, measured: dict[str, Any], pictures: dict[str, Tensor]) -> None:
        """Writes what was measured of some victims of an unfinished setting.

        Args:
            name: The chunk's name: the setting's, and the first victim's number.
            measured: The scores and what else was measured, as JSON holds it.
            pictures: The pictures kept so far, uint8 ``[C, H, W]``.
        """
        path = self.root / "chunks" / f"{name}.json"
        if pictures:
            write_tensors(path.with_suffix(".safetensors"), pictures)
        write_json(path, {**measured, "digest": digest_tensors(pictures, json.dumps(measured))})

    def state(self, name: str) -> StateFile:
        """The file in which an attack keeps its state.

        Args:
            name: The chunk's name, and the attacker's number.
        """
        return StateFile(self.root / "states" / f"{name}.safetensors")

    def remove_unfinished(self, setting: str) -> None:
        """Removes the chunks and states of a setting that is finished.

        Args:
            setting: The name that their files start with.
        """
        for folder in ("chunks", "states"):
            for path in (self.root / folder).glob(f"{setting}-*"):
                remove_tree(path)
