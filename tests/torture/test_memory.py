"""In too little memory, an audit ends well or by a word to the user: no traceback, no crash."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from torture.jobs import command
from torture.kills import run_command

MEGABYTE = 1 << 20
RUNS = 20
AUDIT = (
    *("audit", "--model", "mlp", "--data", "faces", "--attack", "ig", "--iterations", "20"),
    *("--victims", "24", "--batch-size", "2", "--out", "run"),
)


def within(room: int, work: Callable[[], object]) -> Callable[[], object]:
    """The same in an address space that may grow by ``room`` bytes only."""

    def limited() -> object:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + room
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return work()

    return limited


@pytest.mark.torture
def test_audits_in_too_little_memory(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for number in range(RUNS):
        room = int(0.6 * (0.5 + 1.6 * number) ** 2 + 4) * MEGABYTE  # 4 to 580
        ended = run_command(tmp_path / str(number), within(room, command(*AUDIT)))
        assert ended.clean, f"{room // MEGABYTE} MB: exit code {ended.code}: {ended.text[-500:]}"
        counts["ended well" if ended.code == 0 else "ended by a word"] += 1
    print(f"\naudits in too little memory: {dict(counts)}")
    assert counts["ended by a word"]
