"""What is killed: every command that goes on where it was stopped, and what it must end with."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file

from keyhole import cli
from keyhole.auditing import Stage
from keyhole.progress import NullProgress
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.base import Study, StudyContext

VARIES = {"seconds", "client_seconds", "gate_seconds"}
"""What no two runs have in common."""


@dataclass(frozen=True)
class Job:
    """``prepare`` lays out a folder; ``work`` is done in it; ``results`` are what must not differ.

    ``prepare`` may leave an earlier, other run there, which ``work`` replaces.
    """

    name: str
    prepare: Callable[[Path], None]
    work: Callable[[], object]
    results: Callable[[Path], dict[str, Any]]


def command(*arguments: str) -> Callable[[], object]:
    """The command line, with attacks that save at every look."""

    def run() -> object:
        importlib.import_module("keyhole.auditing.store_checkpointer").SECONDS_BETWEEN_SAVES = 0
        sys.argv = ["keyhole", *arguments]
        return cli.main()

    return run


def timeless(value: Any) -> Any:
    """JSON without what varies."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in VARIES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def bits(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights(path: Path) -> dict[str, str]:
    """Each tensor's bits."""
    found = {n: t.contiguous().view(torch.uint8) for n, t in load_file(path).items() if t.dim()}
    return {n: hashlib.sha256(t.numpy().tobytes()).hexdigest() for n, t in found.items()}


def lines(path: Path) -> list[Any]:
    return [timeless(json.loads(line)) for line in path.read_text().splitlines()]


def tidy(folder: Path) -> dict[str, Any]:
    """Files that a run should not leave."""
    hidden = sorted(str(p.relative_to(folder)) for p in folder.rglob(".*"))
    begun = sorted(p.name for name in ("states", "chunks") for p in folder.rglob(f"{name}/*"))
    return {"left behind": hidden + begun}


def of_audit(folder: Path) -> dict[str, Any]:
    """Findings in order, verdicts, the bits of every picture."""
    run = folder / "run"
    summary = json.loads((run / "summary.json").read_text())
    pictures = {p.name: bits(p) for p in sorted((run / "pictures").iterdir())}
    findings = {p.name: timeless(json.loads(p.read_text())) for p in (run / "findings").iterdir()}
    summary = {k: v for k, v in timeless(summary).items() if k != "run"}
    page = (run / "report.html").is_file()
    return {
        **tidy(folder),
        "summary": summary,
        "pictures": pictures,
        "findings": findings,
        "page": page,
    }


def of_training(folder: Path) -> dict[str, Any]:
    """Weights, records, and all that was captured."""
    seen = folder / "seen"
    captured = {str(p.relative_to(seen)): bits(p) for p in seen.rglob("*") if p.is_file()}
    run = folder / "run"
    record = lines(run / "rounds.jsonl")
    return {
        **tidy(folder),
        "weights": weights(run / "checkpoint.safetensors"),
        "rounds": record,
        "captured": captured,
    }


def of_shuffling(folder: Path) -> dict[str, Any]:
    files = {str(p.relative_to(folder)): bits(p) for p in folder.rglob("*") if p.is_file()}
    return {**tidy(folder), "files": files}


def of_membership(folder: Path) -> dict[str, Any]:
    run = folder / "run"
    found = timeless(json.loads((run / "result.json").read_text()))
    trials = {p.name: timeless(json.loads(p.read_text())) for p in (run / "trials").iterdir()}
    models = sorted(p.name for p in (run / "models").iterdir())
    return {**tidy(folder), "result": found, "trials": trials, "models": models}


def of_study(folder: Path) -> dict[str, Any]:
    results = sorted((folder / "results").glob("*.json"))
    return {**tidy(folder), **{p.name: timeless(json.loads(p.read_text())) for p in results}}


def empty(folder: Path) -> None:
    """Nothing was there."""


def some_images(folder: Path) -> None:
    """Four photos and a key."""
    draws = torch.Generator().manual_seed(0)
    for number in range(4):
        path = folder / "photos" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(256, (24, 20, 3), generator=draws).to(torch.uint8)
        Image.fromarray(pixels.numpy()).save(path)
    (folder / "key").write_text(f"{bytes(range(32)).hex()}\n")


def measure_study() -> None:
    """A study of two experiments, each an audit of its own."""
    importlib.import_module("keyhole.auditing.store_checkpointer").SECONDS_BETWEEN_SAVES = 0
    stages = [
        Stage(data="digits", defenses=(d,), attacks=("ig",), victims=2, iterations=100)
        for d in ("none", "dropout")
    ]
    experiments = tuple(AuditExperiment(f"piece-{s.defenses[0]}", stage=s) for s in stages)
    study = Study("torture", "A study", "nobody 2026", experiments)
    context = StudyContext(runs=Path("runs"), data_dir=None, device="cpu", progress=NullProgress())
    for _ in study.run(experiments, context, results=Path("results")):
        pass


AUDIT = (
    *("audit", "--model", "mlp", "--data", "digits", "--defense", "none,dropout"),
    *("--attack", "linear,ig", "--iterations", "100", "--victims", "2", "--out", "run"),
)
SMALL_AUDIT = (
    *("audit", "--model", "mlp", "--data", "digits", "--defense", "none", "--attack", "linear,ig"),
    *("--iterations", "100", "--victims", "1", "--out", "run"),
)
TRAIN = (
    *("train", "--data", "digits", "--model", "lenet", "--clients", "3", "--rounds", "3"),
    *("--images", "8", "--epochs", "1", "--defense", "dp", "--out", "run", "--capture", "seen"),
)
MEMBERSHIP = (
    *("membership", "--data", "digits", "--model", "lenet", "--members", "30", "--epochs", "2"),
    *("--attack", "loss,shadow", "--defense", "none,pruning", "--out", "run"),
)
SHUFFLE = ("obfuscate", "photos", "out", "--epochs", "2", "--key-file", "key", "--jobs", "1")

JOBS = (
    Job("audit", empty, command(*AUDIT), of_audit),
    Job("train", empty, command(*TRAIN), of_training),
    Job("obfuscate", some_images, command(*SHUFFLE), of_shuffling),
    Job("study", empty, measure_study, of_study),
    Job("membership", empty, command(*MEMBERSHIP), of_membership),
)
SMALL = Job("small audit", empty, command(*SMALL_AUDIT), of_audit)


def replacing(job: Job, earlier: tuple[str, ...], now: tuple[str, ...]) -> Job:
    """The same with ``--fresh``, where another run has been."""

    def prepare(folder: Path) -> None:
        from torture.kills import run_command

        assert run_command(folder, command(*earlier)).code == 0

    return Job(f"{job.name} --fresh", prepare, command(*now, "--fresh"), job.results)


FRESH = (
    replacing(JOBS[0], (*AUDIT, "--seed", "5"), AUDIT),
    replacing(JOBS[1], (*TRAIN, "--seed", "5"), TRAIN),
)
