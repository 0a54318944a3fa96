"""What a study is: pieces that can be run one by one, anywhere, and put together again."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from keyhole.atomic import check_writable, write_json
from keyhole.audit import AuditResult, Finding, Plan, Progress, Stage, run_plan
from keyhole.errors import BadValue, RunFolderError
from keyhole.registry import unknown

RECIPE = ("batch_size", "victims", "seed", "image_size", "repeats")
"""What a study keeps of how its clients trained."""
KEPT = ("ssim", "psnr", "mse", "lpips", "fft2d", "mmd", "mask", "reid", "read")
"""Metrics of a row that a study keeps."""


@dataclass(frozen=True)
class Setting:
    """Where and how pieces are run; ``changes`` go to every audit's stage."""

    runs: Path
    data_dir: str | None
    device: str
    progress: Progress
    victims_at_once: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece(ABC):
    """What is measured in one go, and what the paper reports of it."""

    name: str
    figure: str = field(default="", kw_only=True)
    paper: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        """The result, as JSON can hold it."""

    def covers(self, known: dict[str, Any], setting: Setting) -> bool:
        """Whether an earlier result is as good as a new one would be."""
        return True

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What it does, for a list."""


@dataclass(frozen=True)
class AuditPiece(Piece):
    """One stage of an audit; ``paper`` is ``{attack: {metric: value}}``."""

    stage: Stage

    def plan(self, study: Study, setting: Setting) -> Plan:
        title = f"{study.title}: {self.name}"
        return Plan(title=title, seed=study.seed, stage=(self.stage,)).with_all(**setting.changes)

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        result = run_plan(
            self.plan(study, setting),
            out=setting.runs / self.name,
            data_dir=setting.data_dir,
            device=setting.device,
            progress=setting.progress,
            victims_at_once=setting.victims_at_once,
        )
        return condensed(self, result)

    def covers(self, known: dict[str, Any], setting: Setting) -> bool:
        """A result over fewer images than asked for does not count."""
        stage = self.stage.model_copy(update={k: v for k, v in setting.changes.items() if v})
        return bool(known["images"] >= images_of(stage))

    def about(self) -> dict[str, Any]:
        return {
            "model": self.stage.model,
            "data": self.stage.data,
            "defense": self.stage.defenses[0],
            "attacks": list(self.stage.attacks),
            "clients": self.stage.victims,
            "batch_size": self.stage.batch_size,
        }


Tables = Callable[["Study", Path], Iterator[str]]
"""A study's results as lines of text."""


@dataclass(frozen=True)
class Study:
    """A paper's tables as pieces."""

    name: str
    title: str
    paper: str
    pieces: tuple[Piece, ...]
    seed: int = 0
    tables: Tables | None = None
    """How results are shown; None: one line an attack."""
    draw: Callable[[Path, Path], list[Path]] | None = None
    """Draws the paper's figures from the results into a folder, if it can."""

    def chosen(self, names: Sequence[str]) -> list[Piece]:
        """The pieces of these names, all without any; ``curve-*-small`` stands for all such."""
        if not names:
            return list(self.pieces)
        found = []
        for name in names:
            same = [piece for piece in self.pieces if fnmatchcase(piece.name, name)]
            if not same:
                raise unknown(f"piece of study {self.name}", name, [p.name for p in self.pieces])
            found += same
        return list({piece.name: piece for piece in found}.values())

    def run(
        self,
        pieces: Sequence[Piece],
        setting: Setting,
        *,
        results: Path,
        within: float | None = None,
    ) -> Iterator[Piece]:
        """Runs pieces that have no result yet, one after the other; each can be interrupted.

        No piece is begun when ``within`` seconds have passed.
        """
        begun = time.monotonic()
        for piece in pieces:
            if within is not None and time.monotonic() - begun > within:
                return
            known = read_result(results, piece)
            if known is not None and piece.covers(known, setting):
                continue
            check_writable(results)
            write_result(results, piece, piece.measure(self, setting))
            yield piece


def images_of(stage: Stage) -> int:
    return stage.victims * stage.batch_size


def condensed(piece: AuditPiece, result: AuditResult) -> dict[str, Any]:
    """A piece's result without what can be computed from it."""
    first = result.findings[0]
    return {
        "piece": piece.name,
        "images": first.victims * piece.stage.batch_size,
        "stage": {k: first.recipe[k] for k in RECIPE},
        "device": first.recipe["device"],
        "versions": first.versions,
        "rows": rows_of(result.findings),
    }


def rows_of(findings: Sequence[Finding]) -> dict[str, dict[str, Any]]:
    """Findings by attack; where one who knows the defense used it too, that row says so."""
    rows: dict[str, dict[str, Any]] = {}
    for finding in findings:
        name = row_name(finding)
        rows[f"{name} ({finding.attacker})" if name in rows else name] = _row(finding)
    return rows


def row_name(finding: Finding) -> str:
    """An attack's name; one that reads masks off the update says so."""
    reads = finding.attack_parameters.get("masks") == "read"
    return f"{finding.attack}-read" if reads else finding.attack


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "attacker": finding.attacker,
        "parameters": finding.attack_parameters,
        "seconds": round(finding.seconds, 2),
        "iterations": finding.diagnostics.get("iterations"),
        "loss": finding.diagnostics.get("loss"),
        "notes": list(finding.notes),
        "metrics": {
            name: {
                "mean": round(summary.mean, 5),
                "low": round(summary.low, 5),
                "high": round(summary.high, 5),
                "per_image": [round(value, 4) for value in summary.per_image],
            }
            for name, summary in finding.metrics.items()
            if name in KEPT
        },
    }


def path_of(results: Path, piece: Piece) -> Path:
    return results / f"{piece.name}.json"


def read_result(results: Path, piece: Piece) -> dict[str, Any] | None:
    """What was found earlier; None where the piece has not been run."""
    path = path_of(results, piece)
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        raise RunFolderError(f"{path} cannot be read: remove it and run the piece again") from None
    return found


def write_result(results: Path, piece: Piece, value: dict[str, Any]) -> None:
    """Writes a result so that it is there as a whole or not at all."""
    write_json(path_of(results, piece), value, indent=None)


def find_study(name: str, studies: Mapping[str, Study]) -> Study:
    if name not in studies:
        raise unknown("study", name, studies)
    return studies[name]


SHIPPED = Path(__file__).parent / "results"
"""Our own results, which ship with the package: the repository's ``results/``."""


def folder_to_show(study: Study) -> Path:
    """Where a study's results are: ``results/NAME`` here if it has any, else those that ship."""
    here = Path("results") / study.name
    return here if any(read_result(here, p) for p in study.pieces) else SHIPPED / study.name


def require_results(results: Path, study: Study) -> None:
    """Raises where there is nothing to show."""
    if not any(read_result(results, piece) for piece in study.pieces):
        raise BadValue(
            f"{results} holds no results of study {study.name!r}: run `keyhole study {study.name}` "
            "or name their folder with --results"
        )
