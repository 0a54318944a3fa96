"""Flower's own processes for tests: started by themselves, and all of them ended."""

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

PROCESSES = Path("/proc")
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",  # never a cluster that somebody left in /tmp/ray
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Until somebody listens there."""
    give_up = time.monotonic() + 300
    while time.monotonic() < give_up:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"nobody listens on port {port}")


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

    def deploy(self, clients: int) -> None:
        """Starts a SuperLink called ``here`` on loopback, and so many SuperNodes."""
        address = f"127.0.0.1:{self.port}"
        link = f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{link}')
        self.start("flower-superlink", "--insecure", "--port", str(self.port))
        wait_for(self.port)
        for partition in range(clients):
            self.start(
                "flower-supernode",
                *("--insecure", "--superlink", address, "--port", str(free_port())),
                *("--node-config", f"partition-id={partition} num-partitions={clients}"),
            )

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

    def run(self, app: Path, where: str, *options: str) -> str:
        """Runs an app and waits; the command itself succeeds even where the app crashes."""
        told = self.call("flwr", "run", str(app), where, "--stream", *options, timeout=400)
        for _ in range(60):
            (run,) = json.loads(self.call("flwr", "list", where, "--format", "json"))["runs"]
            if run["status"].startswith("finished"):
                break
            time.sleep(1)
        assert run["status"] == "finished:completed", told
        return told

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
