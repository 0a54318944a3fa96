"""The fuzzers: a fixed sample with every suite, as many cases as wished with ``make torture``.

``FUZZ=10000 SEED=3 make torture`` spreads so many cases over all kinds of input.
"""

from __future__ import annotations

import importlib
import os
import random
import time
from pathlib import Path
from typing import ClassVar

import pytest

from keyhole.errors import BadValue
from torture.fuzzing import BrokenPromise, Fuzzer, Outcome, Tally, fuzz, run_case

KINDS = {
    "expressions.Expressions": (40, 28),
    "plans.Plans": (12, 14),
    "image_folders.ImageFolders": (30, 18),
    "weights.Weights": (20, 12),
    "records.Records": (12, 10),
    "run_folders.RunFolders": (12, 7),
    "captured_folders.CapturedFolders": (3, 3),
    "flower_messages.ClientMods": (20, 10),
    "flower_messages.CuriousServers": (3, 3),
}
"""For each kind the cases of the fixed sample, and its share of the others by percent or so."""
SEED = int(os.environ.get("SEED") or 0)
COUNT = int(os.environ.get("FUZZ") or 10_000)


def fuzzer(kind: str, root: Path) -> Fuzzer:
    module, name = kind.split(".")
    if module == "flower_messages":
        pytest.importorskip("flwr")
    made: Fuzzer = getattr(importlib.import_module(f"torture.{module}"), name)(root)
    return made


def check(tally: Tally) -> None:
    print(f"\n{tally}")
    assert tally.clean, "\n\n".join([str(tally), *tally.failures[:10]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_spoilt_inputs_ends_in_words(kind: str, tmp_path: Path) -> None:
    check(fuzz(fuzzer(kind, tmp_path), seed=0, numbers=range(KINDS[kind][0])))


@pytest.mark.torture
@pytest.mark.parametrize("kind", KINDS)
def test_spoilt_inputs_end_in_words(kind: str, tmp_path: Path) -> None:
    share = KINDS[kind][1] / sum(many for _, many in KINDS.values())
    first = 1000  # those before are the sample's
    check(fuzz(fuzzer(kind, tmp_path), SEED, range(first, first + round(COUNT * share))))


class Ends(Fuzzer):
    """Ends in every way there is, one after the other."""

    name: ClassVar[str] = "ends"
    seconds: ClassVar[float] = 0.2

    def run(self, draw: random.Random, folder: Path) -> None:
        match draw.randrange(6):
            case 0:
                raise BadValue("no")
            case 1:
                raise BadValue("no" * 2000)
            case 2:
                raise KeyError("a defect")
            case 3:
                time.sleep(60)
            case 4:
                raise BrokenPromise("an image was seen")


def test_every_end_is_told_apart_and_repeated_by_its_number(tmp_path: Path) -> None:
    tally = fuzz(Ends(tmp_path), seed=0, numbers=range(24))
    assert set(tally.ends) == set(Outcome)
    assert not tally.clean
    assert len(tally.failures) == 24 - tally.ends[Outcome.DONE] - tally.ends[Outcome.REFUSED]
    ends = [run_case(Ends(tmp_path), 0, number)[0] for number in range(6)]
    assert ends == [run_case(Ends(tmp_path), 0, number)[0] for number in range(6)]
    assert not list(tmp_path.iterdir())
