"""What has been measured so far in one setting; a killed run continues from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from keyhole.attacks import Reconstruction
from keyhole.auditing.defense_acted import checks_from_json, checks_to_json
from keyhole.auditing.kept_pictures import FIRST_VICTIMS, choose_kept
from keyhole.auditing.pictures import to_bytes
from keyhole.auditing.scoring import ScoredReconstruction
from keyhole.defenses import DefenseCheck, Telemetry

CURVE_POINTS = 60
"""Points of a loss curve that are kept, at most."""


def thin_curve(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A curve of few points, the last among them."""
    every = -(-len(curve) // CURVE_POINTS)
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

    def add(
        self, scored: ScoredReconstruction, reconstruction: Reconstruction, seconds: float
    ) -> None:
        """Adds what the attacker found of one victim, in ``seconds``."""
        confidence, curve = reconstruction.confidence, reconstruction.loss_curve
        self.extend(
            RunAccumulator(
                scores=scored.scores,
                confidence=[] if confidence is None else [float(c) for c in confidence],
                diagnostics={k: [float(v)] for k, v in reconstruction.diagnostics.items()},
                seconds=seconds,
                loss_curves=[thin_curve(curve)] if curve else [],
                notes=list(reconstruction.notes),
            )
        )

    def extend(self, other: RunAccumulator) -> None:
        """Adds what the attacker found of further victims."""
        for name, values in other.scores.items():
            self.scores.setdefault(name, []).extend(values)
        self.confidence.extend(other.confidence)
        for name, values in other.diagnostics.items():
            self.diagnostics.setdefault(name, []).extend(values)
        self.seconds += other.seconds
        self.loss_curves.extend(other.loss_curves[: FIRST_VICTIMS - len(self.loss_curves)])
        self.notes = list(dict.fromkeys([*self.notes, *other.notes]))


@dataclass
class SettingAccumulator:
    """All attackers of one setting, what the defense reported, and the pictures to keep."""

    runs: list[RunAccumulator]
    telemetry: list[Telemetry] = field(default_factory=list)
    client_seconds: float = 0.0
    pictures: dict[str, Tensor] = field(default_factory=dict)
    checks: list[DefenseCheck] = field(default_factory=list)
    victims: int | None = 0
    """How many victims this covers; None: an older run folder does not say."""
    clearness: dict[str, float] = field(default_factory=dict)
    """How clearly each kept picture ``seen.RUN.VICTIM`` shows the original."""

    @classmethod
    def empty(cls, runs: int) -> SettingAccumulator:
        return cls([RunAccumulator() for _ in range(runs)])

    def add_pictures(
        self, victim: int, run: int, truth: Tensor | None, scored: ScoredReconstruction
    ) -> None:
        """Keeps the first image of a victim's batch, and what was seen of it.

        Films are kept of the first victims alone.
        """
        if scored.images is None or not len(scored.images):
            return
        name = f"seen.{run}.{victim:04d}"
        if truth is not None:
            self.pictures[f"truth.{victim:04d}"] = to_bytes(truth[0])
        self.pictures[name] = to_bytes(scored.images[0])
        self.clearness[name] = scored.scores["ssim"][0] if "ssim" in scored.scores else 0.0
        if scored.film is not None and victim < FIRST_VICTIMS:
            self.pictures[f"film.{run}.{victim:04d}"] = to_bytes(scored.film)
            self.pictures[f"film.{run}.{victim:04d}.at"] = torch.tensor(scored.film_at)

    def make_room(self, run: int) -> None:
        """Drops pictures of one attacker that the run folder has no room for."""
        prefix = f"seen.{run}."
        seen = {int(n.removeprefix(prefix)): n for n in self.pictures if n.startswith(prefix)}
        if not seen:
            return
        clearness = {victim: self.clearness.get(name, 0.0) for victim, name in seen.items()}
        kept = choose_kept(clearness, next(self.pictures[n].nbytes for n in seen.values()))
        for victim in seen.keys() - kept:
            del self.pictures[seen[victim]]
            self.clearness.pop(seen[victim], None)
            if not any(f"seen.{each}.{victim:04d}" in self.pictures for each in self.all_runs):
                self.pictures.pop(f"truth.{victim:04d}", None)

    @property
    def all_runs(self) -> range:
        """The numbers of the attackers."""
        return range(len(self.runs))

    def stack_pictures(self, run: int) -> dict[str, Tensor]:
        """The pictures of one attacker, uint8 ``[n, C, H, W]``: ``seen``, and ``truth`` if known.

        ``seen.at`` has the victims' numbers. Of iterative attacks also ``film.i``, the frames of
        picture i, and ``film.i.at``, their iterations. Of defenses on updates ``heat``, overlays of
        heat maps, and ``plain``, the images below them.
        """
        kinds = {"heat": "heat.", "plain": "plain.", "seen": f"seen.{run}."}
        names = {
            kind: sorted(name for name in self.pictures if name.startswith(prefix))
            for kind, prefix in kinds.items()
        }
        victims = [name.removeprefix(kinds["seen"]) for name in names["seen"]]
        names["truth"] = [f"truth.{v}" for v in victims if f"truth.{v}" in self.pictures]
        found = {
            kind: torch.stack([self.pictures[name] for name in each])
            for kind, each in names.items()
            if each
        }
        if victims:
            found["seen.at"] = torch.tensor([int(victim) for victim in victims])
        for number, victim in enumerate(victims):
            for part in ("", ".at"):
                film = self.pictures.get(f"film.{run}.{victim}{part}")
                if film is not None:
                    found[f"film.{number}{part}"] = film
        return found

    def extend(self, other: SettingAccumulator) -> None:
        """Adds what was measured of further victims."""
        for mine, others in zip(self.runs, other.runs, strict=True):
            mine.extend(others)
        self.telemetry.extend(other.telemetry)
        self.checks.extend(other.checks)
        self.client_seconds += other.client_seconds
        self.pictures.update(other.pictures)
        self.clearness.update(other.clearness)
        for run in self.all_runs:
            self.make_room(run)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [asdict(run) for run in self.runs],
            "telemetry": self.telemetry,
            "checks": checks_to_json(self.checks),
            "client_seconds": self.client_seconds,
            "victims": self.victims,
            "clearness": self.clearness,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any], pictures: dict[str, Tensor]) -> SettingAccumulator:
        runs = [RunAccumulator(**row) for row in values["rows"]]
        seconds, victims = values["client_seconds"], values.get("victims")
        checks = checks_from_json(values.get("checks", []))
        clearness = values.get("clearness", {})
        return cls(runs, values["telemetry"], seconds, pictures, checks, victims, clearness)

    def mean_telemetry(self) -> Telemetry:
        """Numbers averaged over clients; words as the first client reported them."""
        summary: Telemetry = {"client_seconds": self.client_seconds}
        for name in self.telemetry[0] if self.telemetry else ():
            values = [t[name] for t in self.telemetry]
            numbers = [float(v) for v in values if not isinstance(v, str)]
            summary[name] = fmean(numbers) if numbers else values[0]
        return summary
