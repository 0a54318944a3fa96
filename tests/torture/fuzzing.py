"""Runs many spoilt inputs, one by one, and counts what became of each.

A case ends well if it succeeds or raises a :class:`KeyholeError`. It ends badly with any other
exception (a traceback in a user's terminal), if it takes too long, or if it breaks a promise, such
as that nothing leaves a client undefended. A case is repeated by its seed and its number.
"""

from __future__ import annotations

import faulthandler
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from keyhole.errors import KeyholeError

LONGEST = 1500
"""Letters of an error that fit on a screen."""


class Outcome(Enum):
    """What became of a case."""

    DONE = "done"
    REFUSED = "refused"
    TRACEBACK = "tracebacks"
    HANG = "hangs"
    BROKEN = "promises broken"


class Hang(BaseException):
    """A case took too long; no ``except Exception`` catches it."""


class BrokenPromise(Exception):
    """Something happened that Keyhole says never happens."""


class Fuzzer:
    """One kind of input. ``root`` is a folder in which it may keep what all cases share."""

    name: ClassVar[str]
    seconds: ClassVar[float] = 20.0
    """After which a case counts as a hang: far longer than any takes, on a busy machine too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prepare()

    def prepare(self) -> None:
        """Makes what all cases start from."""

    def run(self, draw: random.Random, folder: Path) -> None:
        """One case, in an empty folder; raises what Keyhole raises, or :class:`BrokenPromise`."""
        raise NotImplementedError


@dataclass
class Tally:
    """How the cases of one kind ended."""

    kind: str
    ends: Counter[Outcome] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.ends.total()

    @property
    def clean(self) -> bool:
        return self.cases == self.ends[Outcome.DONE] + self.ends[Outcome.REFUSED]

    def __str__(self) -> str:
        told = ", ".join(f"{self.ends[end]} {end.value}" for end in Outcome)
        return f"{self.kind}: {self.cases} cases, {told}"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises :class:`Hang` inside the block after so many seconds.

    Where even that does not end it, because C code waits, the whole process is ended, with words.
    """

    def stop(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(3 * seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_case(fuzzer: Fuzzer, seed: int, number: int) -> tuple[Outcome, str]:
    """How one case ends, and what it raised if badly."""
    folder = Path(tempfile.mkdtemp(dir=fuzzer.root, prefix="case-"))
    draw = random.Random(f"{seed}/{fuzzer.name}/{number}")
    try:
        with warnings.catch_warnings(action="ignore"), time_limit(fuzzer.seconds):
            fuzzer.run(draw, folder)
        return Outcome.DONE, ""
    except KeyholeError as error:
        if len(str(error)) > LONGEST:
            return Outcome.TRACEBACK, f"an error of many letters: {str(error)[:500]!r}"
        return Outcome.REFUSED, ""
    except Hang:
        return Outcome.HANG, traceback.format_exc()
    except BrokenPromise as error:
        return Outcome.BROKEN, str(error)
    except Exception:  # noqa: BLE001  what it counts are exceptions of any kind
        return Outcome.TRACEBACK, traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fuzz(fuzzer: Fuzzer, seed: int, numbers: range) -> Tally:
    """Runs the cases of these numbers."""
    tally = Tally(fuzzer.name)
    for number in numbers:
        end, said = run_case(fuzzer, seed, number)
        tally.ends[end] += 1
        if said:
            tally.failures.append(f"{fuzzer.name}, seed {seed}, case {number}: {end.value}\n{said}")
    return tally
