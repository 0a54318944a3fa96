"""Experiments as pieces, to be run on Ray or in several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keyhole.atomic import check_writable
from keyhole.scale import (
    FinishedPiece,
    Machine,
    Piece,
    PiecesFailed,
    PieceStore,
    Place,
    Workspace,
    run_pieces,
)
from keyhole_studies import load_study
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.result_files import read_result, write_result

WORK = "keyhole_studies.pieces:measure_piece"
SHARED = "the folder that experiments share"
"""Stands for the folder of runs in a piece's key: results do not depend on where it is."""


def build_experiment_piece(study: Study, experiment: Experiment, context: StudyContext) -> Piece:
    """The piece that measures an experiment.

    Args:
        study: The study.
        experiment: One of its experiments.
        context: Where and how it runs; its folder of runs must be there on all machines.
    """
    runs = str(context.runs.absolute())
    changes = {name: value for name, value in context.changes.items() if value is not None}
    values = {"study": study.name, "experiment": experiment.name, "runs": runs, "changes": changes}
    described = {**values, "described": repr(experiment)}
    return Piece(WORK, described, f"{study.name} {experiment.name}", {runs: SHARED})


def measure_piece(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """Measures one experiment."""
    study = load_study(values["study"])
    context = StudyContext(
        runs=Path(values["runs"]),
        data_dir=space.machine.data_dir,
        device=space.machine.device,
        progress=space.progress,
        victims_at_once=space.machine.victims_at_once,
        changes=values["changes"],
    )
    return study.find(values["experiment"]).measure(study, context)


def run_in_pieces(
    study: Study,
    experiments: Sequence[Experiment],
    context: StudyContext,
    *,
    results: Path,
    store: PieceStore,
    on: Place,
    machine: Machine,
) -> Iterator[Experiment]:
    """Runs the experiments that have no result yet, and yields each that has one then.

    Experiments that need weights which others train are tried again when those are there.

    Args:
        study: The study.
        experiments: Which to run.
        context: Where and how they run.
        results: The folder of results.
        store: Where pieces keep theirs.
        on: Where to run them.
        machine: What each may use.
    """
    check_writable(results)
    machine = replace(machine, victims_at_once=context.victims_at_once)
    waiting = [e for e in experiments if not has_result(e, results, context)]
    while waiting:
        pieces = {e.name: build_experiment_piece(study, e, context) for e in waiting}
        failed: PiecesFailed | None = None
        try:
            run_pieces(
                list(pieces.values()), store, on=on, machine=machine, progress=context.progress
            )
        except PiecesFailed as error:
            failed = error
        done = [e for e in waiting if store.is_finished(pieces[e.name])]
        for experiment in done:
            found = FinishedPiece(pieces[experiment.name], store).result
            write_result(results, experiment.name, found)
            yield experiment
        if failed is not None and not done:
            raise failed
        waiting = [e for e in waiting if e not in done]


def has_result(experiment: Experiment, results: Path, context: StudyContext) -> bool:
    """Whether an experiment has a result that is as good as a new one."""
    known = read_result(results, experiment.name)
    return known is not None and experiment.covers(known, context)
