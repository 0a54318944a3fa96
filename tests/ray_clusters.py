"""A Ray cluster of several nodes on this machine, for tests: started by itself, and all ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from flower_processes import PROCESSES, free_port

MARK = "KEYHOLE_RAY_TEST"
MEGABYTES = 100
"""The object store of a node."""
TESTS = Path(__file__).resolve().parent


class Process(NamedTuple):
    """A number may be given out again, but not with the same start."""

    number: int
    start: int


class Facts(NamedTuple):
    parent: int
    environment: bytes


def list_processes() -> dict[Process, Facts]:
    """The parent and the environment of each process of this machine that has not ended."""
    found = {}
    for folder in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            state, parent, *others = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                process = Process(int(folder.name), int(others[17]))
                found[process] = Facts(int(parent), (folder / "environ").read_bytes())
    return found


class RayCluster:
    """Nodes whose processes are told from all others by a variable in their environment."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.seen: dict[Process, str] = {}

    def environment(self, who: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k != "COVERAGE_PROCESS_START"}
        search = [str(TESTS.parent / "src"), str(TESTS)]
        return kept | {
            MARK: f"{self.home}/{who}",
            "PYTHONPATH": os.pathsep.join(search),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray's own choice starves workers on a busy machine
            "RAY_health_check_failure_threshold": "3",
            "RAY_health_check_period_ms": "1000",
        }

    def start_node(self, who: str, *, cpus: int = 2) -> None:
        """Starts a node; the first one is the head."""
        first = not list(self.home.glob("node-*"))
        (self.home / f"node-{who}").touch()
        place = (
            ["--head", f"--port={self.port}", "--include-dashboard=false"]
            if first
            else [f"--address={self.address}"]
        )
        with (self.home / "processes.log").open("a") as log:
            subprocess.run(
                [
                    *(str(Path(sys.executable).parent / "ray"), "start", *place),
                    *("--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", "--num-gpus=0"),
                    *(f"--object-store-memory={MEGABYTES << 20}", "--disable-usage-stats"),
                    *((f"--temp-dir={self.home / 'ray'}",) if first else ()),
                ],
                env=self.environment(who),
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=180,
            )

    def start_driver(self, code: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a Python program that uses the cluster."""
        log = (self.home / "driver.log").open("a")
        driver = subprocess.Popen(
            [sys.executable, "-c", code, self.address, *arguments],
            env=self.environment("driver"),
            cwd=self.home,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        self.drivers.append(driver)
        return driver

    def read_log(self) -> str:
        return "".join(
            file.read_text()[-4000:] for file in self.home.glob("*.log") if file.is_file()
        )

    def processes(self, who: str = "") -> list[int]:
        """All that were started for a node, whoever their parents are now; the dead do not count.

        Ray's agents and workers write their title over their environment, so they are told by
        their parent, and remembered for the time when that has ended.
        """
        living = list_processes()
        mark = f"{MARK}={self.home}/".encode()
        for process, (_, environment) in living.items():
            for word in environment.split(b"\0"):
                if word.startswith(mark):
                    self.seen[process] = word.removeprefix(mark).decode()
        numbers = {process.number: process for process in living}
        for process in living:
            line = [process]  # itself, its parent and so on, up to one that is known
            while line[-1] not in self.seen and (above := numbers.get(living[line[-1]].parent)):
                line.append(above)
            if line[-1] in self.seen:
                self.seen |= dict.fromkeys(line, self.seen[line[-1]])
        return [p.number for p, node in self.seen.items() if p in living and who in ("", node)]

    def kill(self, who: str) -> None:
        """Ends a node at once, as if its machine had lost its power."""
        for number in self.processes(who):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def end(self) -> None:
        for driver in self.drivers:
            driver.kill()
            driver.wait()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for number in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(number, sign)
            give_up = time.monotonic() + 10
            while self.processes() and time.monotonic() < give_up:
                time.sleep(0.2)
        assert not self.processes()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """An empty cluster; its folder has a short name, because Ray's sockets lie in it."""
    if not PROCESSES.is_dir():
        pytest.skip("needs /proc to find the processes that Ray leaves behind")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kr", ignore_cleanup_errors=True) as home:
        made = RayCluster(Path(home))
        try:
            yield made
        finally:
            made.end()
