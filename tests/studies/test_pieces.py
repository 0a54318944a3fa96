"""A study's experiments in pieces: results as one after another, found again by any folder."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyhole.errors import BadValue
from keyhole.progress import NullProgress
from keyhole.scale import Local, Machine, PiecesFailed, open_store
from keyhole_studies import STUDIES
from keyhole_studies.base import Experiment, ExperimentsFailed, Study, StudyContext
from keyhole_studies.pieces import build_experiment_piece, run_in_pieces


@dataclass(frozen=True)
class Toy(Experiment):
    """Writes a file of weights for others, or needs that of another."""

    needs: str = ""

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        if self.needs and not (context.runs / self.needs).is_file():
            raise BadValue(f"{self.needs}: run its experiment first")
        context.runs.mkdir(parents=True, exist_ok=True)
        (context.runs / self.name).touch()
        return {"name": self.name, "victims": context.changes.get("victims")}

    def describe(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    made = Study("toy", "Toys", "nobody", (Toy("b", "a"), Toy("a"), Toy("c", "nothing")))
    module = ModuleType("toy_study")
    module.STUDY = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_study", module)
    monkeypatch.setitem(STUDIES, "toy", "toy_study")
    return made


def run(study: Study, folder: Path, *names: str, **changes: Any) -> list[str]:
    context = StudyContext(folder / "runs", None, "cpu", NullProgress(), changes=changes)
    done = run_in_pieces(
        study,
        study.choose(names),
        context,
        results=folder / "results",
        store=open_store(folder / "pieces"),
        on=Local(),
        machine=Machine(),
    )
    return [experiment.name for experiment in done]


def test_what_needs_the_weights_of_others_runs_after_them(study: Study, tmp_path: Path) -> None:
    assert run(study, tmp_path, "a", "b", victims=3) == ["a", "b"]
    assert json.loads((tmp_path / "results" / "b.json").read_text()) == {"name": "b", "victims": 3}
    assert run(study, tmp_path, "a", "b", victims=3) == []


def test_what_fails_loses_nothing(study: Study, tmp_path: Path) -> None:
    with pytest.raises(PiecesFailed, match="toy c: nothing: run its experiment first"):
        run(study, tmp_path)
    assert {file.stem for file in (tmp_path / "results").glob("*.json")} == {"a", "b"}


def test_the_folder_of_runs_does_not_count_and_changes_do(study: Study, tmp_path: Path) -> None:
    def key(runs: str, **changes: Any) -> str:
        context = StudyContext(tmp_path / runs, None, "cpu", NullProgress(), changes=changes)
        return build_experiment_piece(study, study.find("a"), context).key

    assert key("here") == key("there", victims=None)
    assert key("here", victims=2) != key("here")


def test_one_that_fails_does_not_stop_those_after_it(study: Study, tmp_path: Path) -> None:
    context = StudyContext(tmp_path / "runs", None, "cpu", NullProgress())
    running = study.run(study.choose(["c", "a"]), context, results=tmp_path / "results")
    assert next(running).name == "a"
    with pytest.raises(ExperimentsFailed) as failed:
        next(running)
    assert str(failed.value) == "c: nothing: run its experiment first"


def test_several_failures_are_told_in_one_line() -> None:
    names = ("a", "b", "c", "d")
    error = ExperimentsFailed({name: BadValue(f"{name} is bad") for name in names})
    assert str(error) == ("4 experiments failed: a: a is bad; b: b is bad; c: c is bad; and 1 more")
