"""Pieces on a Ray cluster that loses a node, and whose driver dies: nothing is lost.

``make test-ray``; ``RAY_SEED`` names another moment for the losses.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from keyhole.auditing import AuditResult, Plan, expand_plan
from keyhole.scale import Piece, build_piece, open_store, run_pieces, run_sweep, split
from keyhole.seeds import derive
from ray_clusters import RayCluster

pytestmark = pytest.mark.ray

SEED = int(os.environ.get("RAY_SEED", "0"))
COUNTERS = 36
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from scale.test_ray import list_pieces
from keyhole.scale import Ray, open_store, run_pieces

run_pieces(list_pieces(), open_store(sys.argv[2]), on=Ray(sys.argv[1]))
"""
FOG = """
from dataclasses import dataclass

from keyhole.defenses.base import Defense


@dataclass(frozen=True, kw_only=True)
class Fog(Defense):
    share: float = 0.5

    def on_update(self, update, side=None):
        return update.map(lambda name, tensor: tensor * (1 - self.share))
"""


def list_pieces() -> list[Piece]:
    """Forty pieces: counters that write down each step, and audits with an iterative attack."""
    plan = Plan(
        stage=(  # type: ignore[arg-type]
            {
                "model": "mlp",
                "data": "digits",
                "defenses": ("gaussian(sigma=[1e-5,1e-3])",),
                "attacks": ("linear", "ig"),
                "iterations": 40,
                "victims": 2,
            },
        )
    )
    counters = [
        build_piece(
            "piece_works:count_slowly",
            {"steps": 20, "number": number, "seconds": 0.1},
            title=f"counter {number}",
        )
        for number in range(COUNTERS)
    ]
    return [*counters, *split(plan)]


def draw(what: str, low: int, high: int) -> int:
    """A number in ``[low, high]`` that the seed and a name determine."""
    return low + derive(SEED, "ray", what) % (high - low + 1)


def wait_until(store: Path, count: int, driver: Popen[bytes], cluster: RayCluster) -> None:
    """Until so many pieces have results."""
    give_up = time.monotonic() + 400
    while len(list(store.glob("*/result.json"))) < count:
        assert driver.poll() is None, cluster.read_log()
        assert time.monotonic() < give_up, cluster.read_log()
        time.sleep(0.05)


def without_seconds(value: Any) -> Any:
    """A finding without what differs from run to run."""
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if "seconds" not in k}
    return [without_seconds(each) for each in value] if isinstance(value, list) else value


def read_all(pieces: list[Piece], store: Path) -> list[Any]:
    """All that pieces found, bit for bit: their results, findings and pictures."""
    found: list[Any] = []
    for piece in pieces:
        folder = open_store(store).fetch(piece)
        findings = sorted(folder.glob("findings/*.json"))
        found.append(
            (
                open_store(store).read(piece)["result"],
                [without_seconds(json.loads(each.read_text())) for each in findings],
                [each.read_bytes() for each in sorted(folder.glob("pictures/*"))],
            )
        )
    return found


def test_a_lost_node_and_a_lost_driver_cost_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    pieces = list_pieces()
    assert len({piece.key for piece in pieces}) == 40
    there, here = tmp_path / "on-ray", tmp_path / "here"
    cluster.start_node("head")
    cluster.start_node("second")
    arguments = (str(there), str(Path(__file__).parents[1]))
    driver = cluster.start_driver(DRIVER, *arguments)
    wait_until(there, draw("node", 4, 10), driver, cluster)
    time.sleep(draw("moment", 0, 1500) / 1000)
    assert cluster.processes("second")
    cluster.kill("second")
    wait_until(there, draw("driver", 14, 24), driver, cluster)
    driver.kill()
    driver.wait()
    done = len(list(there.glob("*/result.json")))
    assert done < 40
    again = cluster.start_driver(DRIVER, *arguments)
    assert again.wait(timeout=400) == 0, cluster.read_log()
    run_pieces(pieces, open_store(here))
    assert read_all(pieces, there) == read_all(pieces, here)
    begun = [(open_store(there).fetch(p) / "begun").read_text().split() for p in pieces[:COUNTERS]]
    lost = [starts for starts in begun if len(starts) > 1]
    assert lost
    assert any(int(start) > 0 for starts in lost for start in starts[1:]), (
        "continued, not restarted"
    )
    cluster.end()
    assert cluster.processes() == []


def test_bad_input_stops_no_other_piece_and_gpus_are_asked_for(
    cluster: RayCluster, tmp_path: Path
) -> None:
    cluster.start_node("head", cpus=1)
    code = """
import sys
from keyhole.scale import Machine, PiecesFailed, Ray, open_store, run_pieces
from keyhole.errors import DoesNotFit
from piece_works import squares

store = open_store(sys.argv[2])
try:
    run_pieces([*squares(3), *squares(5, refused=True), *squares(4)], store, on=Ray(sys.argv[1]))
except PiecesFailed as error:
    assert "too odd" in str(error), error
else:
    raise AssertionError("nothing failed")
assert [each.result["square"] for each in run_pieces(squares(3, 4), store)] == [9, 16]
try:
    run_pieces(squares(6), store, on=Ray(sys.argv[1]), machine=Machine(gpus=1))
except DoesNotFit as error:
    assert "--gpus-per-piece" in str(error), error
else:
    raise AssertionError("there is no GPU")
try:
    run_pieces(squares(7, broken=True), store, on=Ray(sys.argv[1]))
except ZeroDivisionError as error:
    pass
"""
    driver = cluster.start_driver(code, str(tmp_path / "store"))
    assert driver.wait(timeout=300) == 0, cluster.read_log()


def test_commands_run_on_a_cluster_that_exists(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And give what they give without one; what they name by a relative path is found."""
    cluster.start_node("head", cpus=1)
    (tmp_path / "fog_parts.py").write_text(FOG)
    code = """
import os, sys
os.chdir(sys.argv[2])
from keyhole.cli import main
sys.argv = ["keyhole", *sys.argv[3].split(), *(["--on", "ray", "--address", sys.argv[1]])]
main()
"""
    audit = "audit --model mlp --data digits --attack linear --victims 1 --out runs/there"
    commands = (
        f"{audit} --defense fog_parts:Fog(share=[0.1,0.9]) --seeds 0,1",
        "train --clients 2 --rounds 1 --images 16 --seeds 0,1 --out runs/t",
        "membership --model mlp --members 20 --epochs 1 --attack loss --out runs/m",
        "frontier --model mlp --data digits --defenses none --attacks linear --clients 2 "
        "--images 8 --rounds 1 --epochs 1 --victims 1 --out runs/f",
        "study tip-theorem printed-far --results runs/r --runs runs/s",
    )
    for command in commands:
        driver = cluster.start_driver(code, str(tmp_path), command)
        assert driver.wait(timeout=300) == 0, cluster.read_log()
    stage = {"model": "mlp", "data": "digits", "attacks": ("linear",), "victims": 1}
    defenses = ("fog_parts:Fog(share=[0.1,0.9])",)
    monkeypatch.chdir(tmp_path)
    sweep = expand_plan({"seed": [0, 1], "stage": [{**stage, "defenses": defenses}]})
    run_sweep(sweep, out=tmp_path / "here" / "run", store=open_store(tmp_path / "here" / "pieces"))
    found = [
        [without_seconds(finding.to_json()) for finding in AuditResult.load(run).findings]
        for run in (tmp_path / "runs" / "there", tmp_path / "here" / "run")
    ]
    assert found[0] == found[1]
    assert len(list((tmp_path / "runs" / "pieces").glob("*/result.json"))) == 9
    for left in ("m/result.json", "f/frontier.json", "r/printed-far.json"):
        assert (tmp_path / "runs" / left).is_file(), left
