"""The workbench of an attack inside an audit: its state in the run folder, its progress shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.atomic import digest_of, write_tensors
from keyhole.attacks.checkpointer import Saved
from keyhole.errors import BadUpdate, RunFolderError
from keyhole.progress import Progress
from keyhole.update import read_safetensors

SECONDS_BETWEEN_SAVES = 20.0


class StateFile:
    """Where one attack stands: one file, there as a whole or not at all.

    An attack is handed this object, and files beside its own show the truth of earlier findings:
    so it holds two functions, and no path that would lead there.
    """

    read: Callable[[], Saved | None]
    """What was written last; None where nothing was."""
    write: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]

    def __init__(self, path: Path) -> None:
        self.read = lambda: read_state(path)
        self.write = lambda tensors, facts: write_state(path, tensors, facts)


def read_state(path: Path) -> Saved | None:
    """What :func:`write_state` wrote; raises where it is not as it was written."""
    if not path.is_file():
        return None
    try:
        tensors, header = read_safetensors(path)
        if digest_of(in_order(tensors), header["facts"]) != header["digest"]:
            raise ValueError
        return tensors, dict(json.loads(header["facts"]))
    except (BadUpdate, KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{path} cannot be read: remove it, and its attack begins anew"
        ) from None


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    words = json.dumps(dict(facts))
    write_tensors(path, tensors, {"facts": words, "digest": digest_of(in_order(tensors), words)})


def in_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By name: safetensors has an order of its own."""
    return dict(sorted(tensors.items()))


class StoreCheckpointer:
    """Keeps one attack's state in its own file, if there is a run folder.

    An attack is handed this object: nothing that it holds leads to the truth.
    """

    deadline: float | None = None

    def __init__(
        self, state: StateFile | None, progress: Progress, victims_at_once: int | None = None
    ) -> None:
        self.state, self.progress = state, progress
        self.victims_at_once = victims_at_once
        self.saved_at = time.monotonic()

    def load(self) -> Saved | None:
        return None if self.state is None else self.state.read()

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if self.state is not None:
            self.state.write(tensors, facts)
        self.saved_at = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.saved_at >= SECONDS_BETWEEN_SAVES

    def watch(self, done: int, total: int, text: str) -> None:
        self.progress.iterate(done, total, text)
