"""What has been measured so far of one setting; it can be written down and taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from keyhole.attacks import Reconstruction
from keyhole.auditing.scoring import Seen
from keyhole.auditing.store import to_bytes
from keyhole.defenses import Telemetry

KEPT = 8
"""Victims whose first image is kept as a picture."""


POINTS = 60
"""Points of a loss curve that are kept, at most."""


def thinned(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A curve of few points, the last among them."""
    every = -(-len(curve) // POINTS)
    return [*curve[:-1:every], curve[-1]]


@dataclass
class RunAccumulator:
    """Scores of one attacker, in the victims' order."""

    scores: dict[str, list[float]] = field(default_factory=dict)
    confidence: list[float] = field(default_factory=list)
    diagnostics: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    loss_curves: list[list[tuple[int, float]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, seen: Seen, found: Reconstruction, seconds: float) -> None:
        for name, values in seen.scores.items():
            self.scores.setdefault(name, []).extend(values)
        if found.confidence is not None:
            self.confidence.extend(float(c) for c in found.confidence)
        for name, value in found.diagnostics.items():
            self.diagnostics.setdefault(name, []).append(float(value))
        self.seconds += seconds
        if found.loss_curve and len(self.loss_curves) < KEPT:
            self.loss_curves.append(thinned(found.loss_curve))
        self._note(found.notes)

    def extend(self, other: RunAccumulator) -> None:
        for name, values in other.scores.items():
            self.scores.setdefault(name, []).extend(values)
        self.confidence.extend(other.confidence)
        for name, values in other.diagnostics.items():
            self.diagnostics.setdefault(name, []).extend(values)
        self.seconds += other.seconds
        self.loss_curves.extend(other.loss_curves[: KEPT - len(self.loss_curves)])
        self._note(other.notes)

    def _note(self, notes: Sequence[str]) -> None:
        self.notes.extend(note for note in notes if note not in self.notes)


@dataclass
class SettingAccumulator:
    """All rows of one setting, what the defense reported, and the pictures kept."""

    rows: list[RunAccumulator]
    telemetry: list[Telemetry] = field(default_factory=list)
    client_seconds: float = 0.0
    pictures: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def empty(cls, rows: int) -> SettingAccumulator:
        return cls([RunAccumulator() for _ in range(rows)])

    def keep(self, victim: int, row: int, truth: Tensor | None, seen: Seen) -> None:
        """Keeps the first image of an early victim's batch, and what was seen of it."""
        if victim < KEPT and seen.images is not None and len(seen.images):
            if truth is not None:
                self.pictures[f"truth.{victim:04d}"] = to_bytes(truth[0]).cpu()
            self.pictures[f"seen.{row}.{victim:04d}"] = to_bytes(seen.images[0]).cpu()
            if seen.film is not None:
                self.pictures[f"film.{row}.{victim:04d}"] = to_bytes(seen.film).cpu()
                self.pictures[f"film.{row}.{victim:04d}.at"] = torch.tensor(seen.film_at)

    def extend(self, other: SettingAccumulator) -> None:
        for mine, others in zip(self.rows, other.rows, strict=True):
            mine.extend(others)
        self.telemetry.extend(other.telemetry)
        self.client_seconds += other.client_seconds
        self.pictures.update(other.pictures)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [asdict(row) for row in self.rows],
            "telemetry": self.telemetry,
            "client_seconds": self.client_seconds,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any], pictures: dict[str, Tensor]) -> SettingAccumulator:
        rows = [RunAccumulator(**row) for row in values["rows"]]
        return cls(rows, values["telemetry"], values["client_seconds"], pictures)

    def mean_telemetry(self) -> Telemetry:
        """Numbers averaged over clients; words as the first client reported them."""
        summary: Telemetry = {"client_seconds": self.client_seconds}
        for name in self.telemetry[0] if self.telemetry else ():
            values = [t[name] for t in self.telemetry]
            numbers = [float(v) for v in values if not isinstance(v, str)]
            summary[name] = fmean(numbers) if numbers else values[0]
        return summary
