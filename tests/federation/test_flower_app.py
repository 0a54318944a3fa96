"""The example app in Flower's own processes: a simulation, and a deployment on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from keyhole.federation import Capture, TrainingPlan, assemble, averaged

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

PROCESSES = Path("/proc")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flower"
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(**values: Any) -> str:
    """Run settings as the command line takes them."""
    return " ".join(f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in values.items())


class Flower:
    """Flower with a home of its own, by which all of its processes can be told from others'."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if name != "COVERAGE_PROCESS_START"
            },
            **OFFLINE,
            "FLWR_HOME": str(home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, *command: str) -> None:
        """Leaves a process running that :meth:`end` will end."""
        with (self.home / "processes.log").open("a") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)

    def call(self, *command: str, timeout: float = 60) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=True,
        )
        return done.stdout

    def run(self, where: str, *options: str) -> None:
        """Runs the example and waits; the command itself succeeds even where the app crashes."""
        told = self.call("flwr", "run", str(EXAMPLE), where, "--stream", *options, timeout=400)
        for _ in range(60):
            (run,) = json.loads(self.call("flwr", "list", where, "--format", "json"))["runs"]
            if run["status"].startswith("finished"):
                break
            time.sleep(1)
        assert run["status"] == "finished:completed", told

    def processes(self) -> list[int]:
        """All that were started, whoever their parents are; the dead do not count."""
        mark = f"FLWR_HOME={self.home}".encode()
        found = []
        for folder in PROCESSES.glob("[0-9]*"):
            try:
                inherited = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in inherited:
                found.append(int(folder.name))
        return found

    def end(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for number in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(number, sign)
            give_up = time.monotonic() + 20
            while self.processes() and time.monotonic() < give_up:
                time.sleep(0.2)
        for process in self.started:
            process.wait()
        assert not self.processes()


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    if not PROCESSES.is_dir():
        pytest.skip("needs /proc to find the processes that Flower leaves behind")
    home = tmp_path / "home"
    home.mkdir()
    made = Flower(home)
    yield made
    made.end()


def check_capture(folder: Path, plan: TrainingPlan) -> None:
    """Whole rounds, and in the first one what Keyhole's own clients would have sent."""
    capture = Capture.open(folder)
    federation = assemble(plan, data_dir=None)
    assert not capture.problems
    assert capture.about.items() >= {"model": plan.model, "data": plan.data}.items()
    assert capture.truth is not None
    assert capture.truth["clients"] == {str(i): s for i, s in enumerate(federation.shares)}
    assert [seen.number for seen in capture.rounds] == list(range(1, plan.rounds + 1))
    for seen in capture.rounds:
        assert not seen.lost
        assert sorted(c["metrics"]["partition-id"] for c in seen.clients) == [*range(plan.clients)]
        assert {c["examples"] for c in seen.clients} == {plan.images}
        assert seen.config["defense"] == plan.defense
        assert seen.config["lr"] == plan.lr
    first = capture.rounds[0]
    expected = federation.updates(1, range(plan.clients))
    for client in first.clients:
        change, share = first.change(client), expected[client["metrics"]["partition-id"]]
        for name, tensor in share.update.change.items():
            assert torch.allclose(change[name], tensor, rtol=0, atol=2e-6), name


def plan_of(clients: int, rounds: int = 1, defense: str = "none") -> TrainingPlan:
    """The example's own settings beside these."""
    own: dict[str, Any] = {"images": 1, "steps": 1, "lr": 0.01, "momentum": 0.0}
    return TrainingPlan(
        model="vit-small", clients=clients, rounds=rounds, defense=defense, together="no", **own
    )


def test_a_simulation_is_captured(flower: Flower, tmp_path: Path) -> None:
    plan = plan_of(3, rounds=2, defense="gaussian(sigma=0.001)")
    captured = tmp_path / "captured"
    chosen = settings(clients=3, num_server_rounds=2, defense=plan.defense, capture=str(captured))
    crowd = "num-supernodes=3 client-resources-num-cpus=1"
    flower.run("local", "--run-config", chosen, "--federation-config", crowd)
    check_capture(captured, plan)


def test_a_deployment_is_captured(flower: Flower, tmp_path: Path) -> None:
    plan = plan_of(2)
    address = f"127.0.0.1:{flower.port}"
    link = f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (flower.home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{link}')
    flower.start("flower-superlink", "--insecure", "--port", str(flower.port))
    wait_for(flower.port)
    for partition in range(plan.clients):
        flower.start(
            "flower-supernode",
            *("--insecure", "--superlink", address, "--port", str(free_port())),
            *("--node-config", f"partition-id={partition} num-partitions={plan.clients}"),
        )
    captured = tmp_path / "captured"
    flower.run("here", "--run-config", settings(num_server_rounds=1, capture=str(captured)))
    check_capture(captured, plan)


def test_under_secure_aggregation_only_the_mean_is_seen(flower: Flower, tmp_path: Path) -> None:
    captured = tmp_path / "captured"
    script = str(EXAMPLE / "secagg.py")
    flower.call(sys.executable, script, "--capture", str(captured), timeout=400)
    (seen,) = Capture.open(captured).rounds
    (client,) = seen.clients
    assert (client["node"], client["examples"]) == ("aggregate", 4)
    assert client["metrics"]["distinct-updates"] == 1
    federation = assemble(plan_of(4), data_dir=None)
    updates = [share.update for share in federation.updates(1, range(4))]
    start, change = seen.weights(), seen.change(client)
    mean = averaged(start, updates)
    assert all(torch.allclose(start[n] + change[n], mean[n], rtol=0, atol=1e-4) for n in mean)
    for update in updates:
        apart = (change["head.weight"] - update.change["head.weight"]).norm()
        assert apart > 0.5 * update.change["head.weight"].norm()


def wait_for(port: int) -> None:
    """Until somebody listens there."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nobody listens on port {port}")
