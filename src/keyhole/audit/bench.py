"""The workbench of an attack inside an audit: its state in the run folder, its progress shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from keyhole.attacks.workbench import Saved
from keyhole.audit.progress import Progress
from keyhole.audit.store import Store

SECONDS_BETWEEN_SAVES = 20.0


class AuditBench:
    """Keeps one attack's state in the store under ``name``, if there is a store."""

    def __init__(
        self,
        name: str,
        store: Store | None,
        progress: Progress,
        victims_at_once: int | None = None,
    ) -> None:
        self.name, self.store, self.progress = name, store, progress
        self.victims_at_once = victims_at_once
        self.saved_at = time.monotonic()

    def load(self) -> Saved | None:
        return None if self.store is None else self.store.state(self.name)

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if self.store is not None:
            self.store.keep_state(self.name, dict(tensors), dict(facts))
        self.saved_at = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.saved_at >= SECONDS_BETWEEN_SAVES

    def watch(self, done: int, total: int, text: str) -> None:
        self.progress.iterate(done, total, text)
