"""Trainings of which a plan lists several: one for each combination, and means over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from keyhole.atomic import write_json
from keyhole.federation.plan import TrainingPlan
from keyhole.progress import Progress
from keyhole.scale.outcome import Place
from keyhole.scale.parts import check_parts
from keyhole.scale.piece import Machine
from keyhole.scale.piece_store import PieceStore
from keyhole.scale.run import FinishedPiece, run_pieces
from keyhole.scale.training_pieces import CHECKPOINT, build_training_piece

TRAININGS = "trainings.json"


@dataclass(frozen=True)
class TrainingRow:
    """Trainings that differ in their seed alone.

    Args:
        defense: The defense.
        model: The model.
        seeds: The seeds.
        accuracy: The mean accuracy after the last round.
        low: Lower end of its 95% interval, Student's t over seeds; None: one seed has none.
        high: Its upper end.
        seconds: The mean of a round's seconds.
        weights: The files of trained weights, one for each seed.
    """

    defense: str
    model: str
    seeds: tuple[int, ...]
    accuracy: float
    low: float | None
    high: float | None
    seconds: float
    weights: tuple[str, ...]


def run_trainings(
    plans: Sequence[TrainingPlan],
    *,
    out: Path,
    store: PieceStore,
    on: Place | None = None,
    machine: Machine | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> list[TrainingRow]:
    """Runs the trainings that have no result yet; writes what became of all of them.

    Args:
        plans: What to train.
        out: The folder of ``trainings.json``, which names the weights of each.
        store: Where trainings keep their run folders.
        on: Where to run them; None: in this process.
        machine: What each may use.
        fresh: Trains again what has a result.
        progress: Shows how much is done; None: nothing is shown.
    """
    check_parts(
        defenses=(plan.defense for plan in plans), partitions=(plan.partition for plan in plans)
    )
    pieces = [build_training_piece(plan) for plan in plans]
    if fresh:
        for piece in pieces:
            store.forget(piece)
    done = run_pieces(pieces, store, on=on, machine=machine, progress=progress)
    groups: dict[str, list[tuple[TrainingPlan, FinishedPiece]]] = {}
    for plan, finished in zip(plans, done, strict=True):
        same = repr(plan.model_copy(update={"seed": 0}))
        groups.setdefault(same, []).append((plan, finished))
    rows = [summarise_trainings(group) for group in groups.values()]
    write_json(out / TRAININGS, [vars(row) for row in rows])
    return rows


def summarise_trainings(group: Sequence[tuple[TrainingPlan, FinishedPiece]]) -> TrainingRow:
    """One row for trainings that differ in their seed."""
    first = group[0][0]
    results = [finished.result for _, finished in group]
    accuracies = [float(result["accuracy"]) for result in results]
    half = None
    if len(accuracies) > 1:
        from scipy.stats import t

        quantile = float(t.ppf(0.975, len(accuracies) - 1))
        half = quantile * stdev(accuracies) / math.sqrt(len(accuracies))
    mean = fmean(accuracies)
    return TrainingRow(
        defense=first.defense,
        model=first.model,
        seeds=tuple(plan.seed for plan, _ in group),
        accuracy=mean,
        low=None if half is None else max(0.0, mean - half),
        high=None if half is None else min(1.0, mean + half),
        seconds=fmean(line["seconds"] for result in results for line in result["rounds"]),
        weights=tuple(str(finished.folder / CHECKPOINT) for _, finished in group),
    )
