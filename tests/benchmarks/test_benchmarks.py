"""Every benchmark runs at its smallest, and reports the figures that the docs take from it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import ROOT, load_script, run_json

MODULES = {"contenders.py", "flower_rounds.py"}
"""What other benchmarks import; no script of its own."""
SMALLEST = {
    "all.py": "--only tip",
    "engine.py": "--models mlp --repeats 1 --no-breaching --victims 2 --seconds 0.02",
    "federation.py": "--clients 2 --repeats 1 --no-flower",
    "csvar.py": "--images 1 --turns 1",
    "csvar_unshuffle.py": "--sets faces --images 2 --gallery 8",
    "defense_cost.py": "--steps 1 --rounds 1 --only pruning,mjp",
    "epsilon.py": "--seeds 1 --canaries 100",
    "growth.py": "--model mlp --victims 1,2 --sides 8,16 --batches 1,2 --clients 1,2 --turns 1",
    "incoming.py": "--fresh 1 --trained 1 --held-out 0 --architectures lenet",
    "ray_pieces.py": "--pieces 10 --busy 2 --seconds 0.05 --turns 1",
    "mjp.py": "--networks deit --batch 2 --turns 1 --steps 1",
    "roofline.py": "--models lenet --victims 2 --steps 1",
    "spear.py": "--batches 2 --victims 1 --data digits",
    "tip.py": "--model lenet --images 2 --turns 1",
    "training.py": "--cases lenet:2x4 --images 10 --turns 1 --ways graph,loop,vmap --augment",
    "unshuffle.py": "--sets photos --images 1 --gammas 0.1 --noises none",
}

Capture = pytest.CaptureFixture[str]


def test_no_benchmark_is_forgotten_here() -> None:
    assert {file.name for file in (ROOT / "benchmarks").glob("*.py")} == MODULES | set(SMALLEST)


def run_alone(script: str, arguments: str) -> dict[str, Any]:
    """What a script prints with ``--json``, run in a process of its own."""
    command = [sys.executable, f"benchmarks/{script}", *arguments.split(), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_here(script: str, capsys: Capture) -> dict[str, Any]:
    return run_json(f"benchmarks/{script}", SMALLEST[script], capsys)


def test_engine() -> None:
    found = run_alone("engine.py", SMALLEST["engine.py"])
    assert found["victims"] == {"mlp": 2}
    assert found["backend"] == {"mlp": "factored"}
    assert found["ratio_to_plain_loop"]["mlp"] > 0
    assert found["ratio_to_breaching"] == {"mlp": None}
    assert {"default", "tuned"} <= set(found["plain_loop_ms"]["mlp"])


def test_defense_cost(capsys: Capture) -> None:
    found = run_here("defense_cost.py", capsys)
    assert [row["defense"] for row in found["rows"]] == ["none", "pruning"]
    assert found["rows"][0]["ratio"] == 1
    assert all(row["milliseconds"] > 0 for row in found["rows"])
    assert found["refused"][0].startswith("mjp: ")


def test_epsilon(capsys: Capture) -> None:
    pytest.importorskip("opacus")
    pytest.importorskip("flwr")
    rows = run_here("epsilon.py", capsys)["rows"]
    whole = json.loads((ROOT / "results" / "epsilon" / "digits.json").read_text())["rows"]
    settings = ("defense", "steps", "lr", "delta", "claimed")
    assert [[row[k] for k in settings] for row in rows] == [[r[k] for k in settings] for r in whole]
    proven = {row["defense"]: max(row["lower_bounds"]) for row in rows if row["steps"] == 1}
    assert proven["weak-dp"] > 2 * proven["dp(epsilon=5)"]
    assert proven["weak-dpsgd"] > 2 * proven["dpsgd(noise=1.0)"]


@pytest.mark.parametrize("attack", ["ig", "dia"])
def test_contenders_step_on_the_same_clients(attack: str) -> None:
    contenders = load_script("benchmarks/contenders.py")
    case = contenders.Case("vit-small", attack, "cpu", "float32", 2)
    for make in (contenders.KeyholeEngine, contenders.PlainLoop):
        contender = make(case)
        seconds, count = contenders.time_iterations(contender, 1, 0.0, "cpu")
        assert (seconds > 0, count) == (True, 1)


def test_federation_without_flower(capsys: Capture) -> None:
    found = run_here("federation.py", capsys)
    facts = found["clients"]["2"]
    assert facts["greatest_difference"] < 1e-4
    assert facts["together_seconds"] > 0
    assert "flower_seconds" not in facts


@pytest.mark.flower
def test_federation_beside_flower() -> None:
    facts = run_alone("federation.py", "--clients 2 --repeats 1")["clients"]["2"]
    assert facts["greatest_difference"] < 1e-4
    assert facts["flower_over_one_by_one"] > 0


def test_flowers_side_of_the_federation() -> None:
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    rounds = load_script("benchmarks/flower_rounds.py")
    federation = load_script("benchmarks/federation.py")
    plan = federation.TrainingPlan(model="mlp", clients=2, images=2, batch_size=1)
    assert rounds.make_client_app(plan) is not None
    assert set(rounds.FlowerRounds(plan, grid=None).weights()) == set(
        rounds.load_federation(plan).model.state_dict()
    )


def test_csvar(capsys: Capture) -> None:
    found = run_here("csvar.py", capsys)
    contenders = {"images a second", "copy and write", "by a secret key", "plain loop"}
    assert set(found["224 px"]) == set(found["32 px"]) == contenders
    assert all(value > 0 for value in found["32 px"].values())


def test_csvar_unshuffle(capsys: Capture) -> None:
    rows = run_here("csvar_unshuffle.py", capsys)["faces"]
    assert rows["shuffled"]["SSIM"] < rows["solved"]["SSIM"]
    assert rows["thumbnail"]["SSIM"] < rows["expected"]["SSIM"]
    assert rows["1 at 20 dB"]["SSIM"] < rows["16 at 30 dB"]["SSIM"]


def test_growth(tmp_path: Path) -> None:
    drawn = tmp_path / "growth.png"
    found = run_alone("growth.py", f"{SMALLEST['growth.py']} --draw {drawn}")
    assert drawn.read_bytes().startswith(b"\x89PNG")
    for name in ("victims", "side", "batch", "clients"):
        (small, large), (fast, slow) = found[name]["sizes"], found[name]["seconds"]
        slope = math.log(slow / fast) / math.log(large / small)
        assert found[name]["exponent"] == pytest.approx(slope, abs=0.01)
        assert found[name]["last"] == pytest.approx(slope, abs=0.01)


def test_roofline() -> None:
    found = run_alone("roofline.py", SMALLEST["roofline.py"])["models"]["lenet"]
    rows = {row["kind"]: row for row in found["rows"]}
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1, abs=0.01)
    assert rows["elementwise"]["megaflops"] == 0
    # Three convolutions of 12 channels, a derivative by each later input, and both once more.
    forward = 2 * 12 * 25 * (3 * 256 + 12 * 64 + 12 * 64) / 1e6
    assert forward < rows["convolutions"]["megaflops"] < 5 * forward
    assert rows["elementwise"]["megabytes"] > rows["folding"]["megabytes"] > 0


def test_incoming(capsys: Capture) -> None:
    found = run_here("incoming.py", capsys)
    honest = found["honest"]
    assert (honest["networks"], honest["networks with an alarm"]) == (2, 0)
    altered = found["altered"]
    assert altered["fishing"]["lenet"]["model"] == ["muted classes", "fixed output"]
    assert all(view["model"] for rows in altered.values() for view in rows.values())


def test_mjp(capsys: Capture) -> None:
    ratios = run_here("mjp.py", capsys)["DeiT/4 at 32 px, batch 2"]
    assert set(ratios) == set(load_script("benchmarks/mjp.py").VARIANTS)
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values())


@pytest.mark.ray
def test_ray_pieces() -> None:
    found = run_alone("ray_pieces.py", SMALLEST["ray_pieces.py"])
    assert found["overhead_ms"] > 0
    assert set(found["driver_mb"]) == {"a_tenth", "all"}
    assert found["two_over_one"] > 0


def test_tip(capsys: Capture) -> None:
    found = run_here("tip.py", capsys)
    assert (found["model"], found["images"], found["steps"]) == ("lenet", 2, 2)
    assert found["tip over training"] > 0
    assert found["slice by slice over tip"] > 0


def test_all(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    everything = load_script("benchmarks/all.py")
    for runs in everything.RUNS.values():
        assert {line.split()[0] for line in runs.values()} <= set(SMALLEST)
    monkeypatch.setitem(everything.RUNS["cpu"], "tip", f"tip.py {SMALLEST['tip.py']}")
    everything.main(["--only", "tip"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows} == {"tip"}
    assert all(float(row[-1]) > 0 for row in rows)


def test_training(capsys: Capture) -> None:
    (case,) = run_here("training.py", capsys)["cases"].values()
    assert set(case["ways"]) == {"plain", "graph", "loop", "vmap"}
    moved = [row["moved"] for row in case["ways"].values()]
    assert max(moved) < 1.5 * min(moved)
    assert all(row["ratio"] > 0 for row in case["ways"].values())


def test_unshuffle(capsys: Capture) -> None:
    row = run_here("unshuffle.py", capsys)["photos"]["none, 0.1"]
    assert row["shuffled"] < row["unshuffled"] <= row["in order"]
    assert row["right"] > 0.9


def test_spear(capsys: Capture) -> None:
    found = run_here("spear.py", capsys)
    (row,) = found["rows"]
    assert (row["batch"], row["images"], row["exact"]) == (2, 2, 2)
    assert row["least_psnr"] > 60


def test_what_the_docs_say_of_spear_is_what_was_measured() -> None:
    rows = json.loads((ROOT / "results" / "spear" / "cifar10.json").read_text())["rows"]
    page = (ROOT / "docs" / "closed_forms.md").read_text()
    for row in rows:
        figures = f"| {row['batch']} | {row['images']} | {row['exact']} | {row['least_psnr']} dB |"
        assert figures in page
        assert row["exact"] == row["images"]
