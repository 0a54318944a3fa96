"""Captured folders in which one client, or whoever handed them over, meant harm."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import ClassVar

from safetensors.torch import load_file, save_file

from keyhole.auditing import Plan, Stage, run_plan
from keyhole.federation import TrainingPlan, train
from torture.captured_mutations import mutate
from torture.fuzzing import Fuzzer
from torture.mutations import spoil_bytes, spoil_json_file, spoil_path
from torture.weights import spoilt_tensors


class CapturedFolders(Fuzzer):
    name: ClassVar[str] = "captured folders"

    def prepare(self) -> None:
        plan = TrainingPlan(
            model="mlp", clients=3, images=1, steps=1, batch_size=1, rounds=2, together="no"
        )
        train(plan, out=self.root / "run", capture=self.root / "seen")

    def run(self, draw: random.Random, folder: Path) -> None:
        seen = folder / "seen"
        shutil.copytree(self.root / "seen", seen)
        if draw.random() < 0.6:
            mutate(seen, draw)
        else:
            files = sorted(path for path in seen.rglob("*") if path.is_file())
            for path in draw.sample(files, draw.choice([1, 1, 1, 2, 3])):
                spoil(draw, path)
        stage = Stage(
            model="mlp",
            data="digits",
            captured=seen,
            attacks=("linear", "labels"),
            rounds=draw.choice([None, "all", "1,2"]),
        )
        run_plan(Plan(stage=(stage,)))


def spoil(draw: random.Random, path: Path) -> None:
    if draw.random() < 0.1:
        spoil_path(draw, path)
    elif path.suffix == ".json":
        spoil_json_file(draw, path)
    elif draw.random() < 0.6:
        tensors = spoilt_tensors(draw, load_file(path))
        path.unlink()
        save_file(tensors, path)
    else:
        path.write_bytes(spoil_bytes(draw, path.read_bytes()))
