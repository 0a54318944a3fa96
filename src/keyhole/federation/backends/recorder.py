"""Repeats pieces of GPU work from recordings (CUDA graphs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Protocol

import torch

WARM_UP = 3
"""How often a piece runs before it is recorded: libraries then have what they allocate once."""

Work = Callable[[], None]


class Recording(Protocol):
    """What can be replayed."""

    def replay(self) -> None: ...


class Recorder:
    """Runs pieces of work that always read and write the same tensors.

    The first times a piece runs as it is, on a GPU on a stream of its own. Then it is recorded, and
    from then on replayed: one launch in place of a thousand. A rare piece is never recorded. A
    piece must leave no tensor that it made itself, since all recordings share their memory. On a
    CPU nothing is recorded.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.records = device.type == "cuda"
        self.runs: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording] = {}
        self.stream: torch.cuda.Stream | None = None

    def run(self, key: Hashable, work: Work) -> None:
        """Does a piece of work.

        Args:
            key: Tells pieces apart; the same key is always the same work.
            work: Does it, without a look at any tensor's values.
        """
        if not self.records:
            work()
        elif key in self.recordings:
            self.recordings[key].replay()
        elif self.runs[key] < WARM_UP:
            self.runs[key] += 1
            self.launch(work)
        else:
            self.recordings[key] = self.record(work)
            self.recordings[key].replay()

    def forget(self) -> None:
        """Drops all recordings: the tensors that they read are gone."""
        self.runs.clear()
        self.recordings.clear()

    def launch(self, work: Work) -> None:
        """Does the work on the stream on which it will be recorded."""
        if self.device.type != "cuda":
            work()
            return
        if self.stream is None:
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            work()
        current.wait_stream(self.stream)

    def record(self, work: Work) -> Recording:
        """Records the work; nothing is computed yet."""
        pool = next((r.pool() for r in self.recordings.values() if hasattr(r, "pool")), None)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph, pool=pool, stream=self.stream):
            work()
        return graph
