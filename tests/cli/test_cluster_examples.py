"""The files of examples/cluster, as far as a machine without a cluster can try them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from keyhole.auditing import AuditResult, read_sweep
from keyhole.scale.audit_run import list_audit_pieces
from scripts import ROOT

EXAMPLES = ROOT / "examples" / "cluster"
SMALL = """
seed = [0, 1]
[[stage]]
model = "mlp"
data = "digits"
defenses = ["none", "gaussian(sigma=[1e-5,1e-1])"]
attacks = ["linear"]
victims = 1
"""
KEYHOLE = f'exec {sys.executable} -m keyhole "$@"'


def run(folder: Path, script: str, *arguments: str, **variables: str) -> str:
    """Runs a script in a folder whose ``bin`` comes first on the PATH."""
    done = subprocess.run(
        ["bash", str(EXAMPLES / script), *arguments],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def put_commands(folder: Path, **commands: str) -> None:
    (folder / "bin").mkdir()
    for name, line in commands.items():
        file = folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)


def test_the_plan_of_the_examples_has_as_many_pieces_as_it_says() -> None:
    pieces = list_audit_pieces(read_sweep(EXAMPLES / "plan.toml"))
    first = (EXAMPLES / "plan.toml").read_text(encoding="utf-8").splitlines()[0]
    assert f"= {len(pieces)} pieces" in first


def test_an_array_of_jobs_and_the_job_that_merges_them(tmp_path: Path) -> None:
    put_commands(tmp_path, keyhole=KEYHOLE)
    (tmp_path / "plan.toml").write_text(SMALL)
    for task in ("4", "5"):
        variables = {
            "SLURM_ARRAY_TASK_ID": task,
            "SLURM_ARRAY_TASK_MIN": "4",
            "SLURM_ARRAY_TASK_COUNT": "2",
            "SLURM_CPUS_PER_TASK": "1",
        }
        run(tmp_path, "slurm-array.sh", "plan.toml", **variables)
    told = run(tmp_path, "slurm-merge.sh", "2")
    assert "sigma" in told
    assert len(AuditResult.load(tmp_path / "runs" / "whole").findings) == 10


def test_a_job_with_ray_starts_a_head_then_workers_then_the_driver(tmp_path: Path) -> None:
    put_commands(
        tmp_path,
        scontrol='printf "node-1\\nnode-2\\nnode-3\\n"',
        srun='echo "$@" >> calls',
    )
    variables = {
        "SLURM_JOB_NODELIST": "node-[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_CPUS_PER_TASK": "8",
        "RAY_START_SECONDS": "0.3",
    }
    run(tmp_path, "slurm-ray.sh", "plan.toml", **variables)
    head, workers, driver = (tmp_path / "calls").read_text().splitlines()
    assert "-w node-1 ray start --head --port=6379 --num-cpus=8 --num-gpus=0" in head
    assert "--exclude=node-1 ray start --address=node-1:6379" in workers
    assert "keyhole audit plan.toml --on ray --address node-1:6379 --gpus-per-piece 0" in driver


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.sh")), ids=lambda file: file.name)
def test_a_script_says_what_it_needs(script: Path) -> None:
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "sbatch" in done.stderr


def test_the_cluster_of_ray_is_whole() -> None:
    values = yaml.safe_load((EXAMPLES / "ray-cluster.yaml").read_text(encoding="utf-8"))
    assert values["provider"]["type"] == "local"
    assert values["max_workers"] == len(values["provider"]["worker_ips"])
    assert any("ray start --head" in line for line in values["head_start_ray_commands"])
    schema = pytest.importorskip("ray.autoscaler._private.util", reason="needs the extra 'ray'")
    schema.validate_config(schema.prepare_config(values))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_images_install_keyhole_with_ray_and_run_as_a_user(kind: str) -> None:
    lines = (EXAMPLES / f"Dockerfile.{kind}").read_text(encoding="utf-8").splitlines()
    words = [line.split()[0] for line in lines if line and line[0].isupper()]
    assert words[0] == "FROM"
    assert set(words) <= {"FROM", "ARG", "RUN", "ENV", "USER", "WORKDIR", "CMD"}
    assert any('"keyhole[ray] @ $KEYHOLE_PACKAGE"' in line for line in lines)
    assert "USER keyhole" in lines
