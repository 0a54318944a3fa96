"""Captured folders for tests: damaging them, auditing them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from keyhole.auditing import AuditResult, Plan, Stage, run_plan


def linked(source: str, target: str) -> None:
    """Large files are shared among copies."""
    (os.link if source.endswith(".safetensors") else shutil.copy)(source, target)


def replaced(path: Path, tensors: dict[str, Tensor]) -> None:
    path.unlink()
    save_file(tensors, path)


def audited(seen: Path, out: Path | None = None, **values: Any) -> AuditResult:
    stage = Stage(**{"model": "vit-small", "data": "digits", "captured": seen, **values})
    return run_plan(Plan(stage=(stage,)), out=out)


def ssims(result: AuditResult, attack: str = "patch-lstsq") -> list[float]:
    return [
        v
        for f in result.findings
        if f.attack == attack and "ssim" in f.metrics
        for v in f.metrics["ssim"].per_image
    ]


def client_file(seen: Path, node: int = 0, number: int = 1) -> Path:
    return seen / f"round-{number:04d}" / f"client-{node}.safetensors"


def change_file(path: Path, change: Callable[[str, Tensor], Tensor]) -> None:
    replaced(path, {name: change(name, tensor) for name, tensor in load_file(path).items()})


def change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def manifest(seen: Path, number: int = 1) -> Path:
    return seen / f"round-{number:04d}" / "manifest.json"
