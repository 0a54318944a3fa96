"""The checkpointer of an attack in an audit: its state in the run folder, its progress shown."""

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
    """The state of one attack: one file, there as a whole or not at all.

    Attacks get this object, and files beside it show the truth of earlier findings. So it holds
    two functions, and no path that would lead there. ``read`` returns what was written last, None
    if nothing was.
    """

    read: Callable[[], Saved | None]
    write: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]

    def __init__(self, path: Path) -> None:
        self.read = lambda: read_state(path)
        self.write = lambda tensors, facts: write_state(path, tensors, facts)


def read_state(path: Path) -> Saved | None:
    """What :func:`write_state` wrote; raises if the file has changed since."""
    if not path.is_file():
        return None
    try:
        tensors, header = read_safetensors(path)
        if digest_tensors(tensors, header["facts"]) != header["digest"]:
            raise ValueError
        return tensors, dict(json.loads(header["facts"]))
    except (BadUpdate, KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{path} cannot be read: remove it, and its attack starts again"
        ) from None


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    text = json.dumps(dict(facts))
    write_tensors(path, tensors, {"facts": text, "digest": digest_tensors(tensors, text)})


def digest_tensors(tensors: Mapping[str, Tensor], text: str) -> str:
    """A digest of tensors, sorted by name because safetensors reorders them, and a text."""
    return digest_of(dict(sorted(tensors.items())), text)


class StoreCheckpointer:
    """Keeps one attack's state in its own file, if there is a run folder.

    Attacks get this object: nothing that it holds leads to the truth.
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
