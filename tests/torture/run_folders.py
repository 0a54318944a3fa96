"""The folder of an audit, changed before its report is written again."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import ClassVar

from safetensors.torch import load_file, save_file

from keyhole.auditing import audit
from keyhole.auditing.results import AuditResult
from keyhole.auditing.verdict import BROKEN, NOT_BROKEN, NOT_SCORED, NOT_TESTED
from keyhole.report import render
from torture.fuzzing import BrokenPromise, Fuzzer
from torture.mutations import spoil_bytes, spoil_json_file, spoil_path
from torture.weights import spoilt_tensors

STATUSES = {BROKEN, NOT_BROKEN, NOT_SCORED, NOT_TESTED}


class RunFolders(Fuzzer):
    name: ClassVar[str] = "run folders"

    def prepare(self) -> None:
        audit(
            model="mlp",
            data="digits",
            defenses=["none", "gaussian"],
            attacks=["linear", "labels"],
            victims=2,
            out=self.root / "run",
        )

    def run(self, draw: random.Random, folder: Path) -> None:
        run = folder / "run"
        shutil.copytree(self.root / "run", run)
        files = sorted(path for path in run.rglob("*") if path.is_file())
        for path in draw.sample(files, draw.choice([1, 1, 2])):
            spoil(draw, path)
        result = AuditResult.load(run)
        page = render(result)
        result.to_json()
        for written in (result.to_csv(), result.to_csv(per_image=True), result.to_latex()):
            written.encode("utf-8", "backslashreplace")
        if {verdict.status for verdict in result.verdicts} - STATUSES or "<html" not in page:
            raise BrokenPromise("a verdict of no known kind")


def spoil(draw: random.Random, path: Path) -> None:
    if draw.random() < 0.1:
        spoil_path(draw, path)
    elif path.suffix == ".json":
        spoil_json_file(draw, path)
    elif path.suffix == ".safetensors" and draw.random() < 0.7:
        tensors = spoilt_tensors(draw, load_file(path))
        path.unlink()
        save_file(tensors, path)
    else:
        path.write_bytes(spoil_bytes(draw, path.read_bytes()))
