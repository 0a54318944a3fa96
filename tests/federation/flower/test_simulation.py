"""A training in Flower's simulation ends with the weights of one in process, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flower_processes import Flower
from keyhole.federation import TrainingPlan, train
from keyhole.update import read_safetensors

pytestmark = pytest.mark.flower

PLAN = {
    "model": "mlp",
    "data": "digits",
    "clients": 3,
    "rounds": 2,
    "fraction": 0.7,
    "images": 24,
    "epochs": 1,
    "defense": "dpsgd(noise=0.5)",
    "together": "no",
}
CODE = """
import json, sys, torch
from pathlib import Path
from keyhole.federation import TrainingPlan
from keyhole.federation.flower.simulation import train_in_simulation

torch.set_num_threads(1)
plan = TrainingPlan(**json.loads(sys.argv[1]))
limits = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
train_in_simulation(plan, out=Path(sys.argv[2]), capture=Path("captured"), options=limits)
"""


def test_the_same_weights_logs_and_captures(flower: Flower, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = train(TrainingPlan(**PLAN), out=tmp_path / "here")  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(PLAN), str(tmp_path / "there")],
        env=flower.environment | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    there, _ = read_safetensors(tmp_path / "there" / "checkpoint.safetensors")
    weights = here.model.state_dict()
    assert there.keys() == weights.keys()
    assert all(torch.equal(there[name], weights[name]) for name in weights)
    lines = (tmp_path / "there" / "rounds.jsonl").read_text().splitlines()
    for line, expected in zip(map(json.loads, lines), here.rounds, strict=True):
        assert {**line, "seconds": 0} == {**expected, "seconds": 0}
    assert any((tmp_path / "captured").glob("round-*"))
