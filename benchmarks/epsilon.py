"""Lower bounds on epsilon beside the claims of private defenses, over many seeds.

    python benchmarks/epsilon.py                                 # all settings of docs/epsilon.md
    python benchmarks/epsilon.py --json > results/epsilon/digits.json
    python benchmarks/epsilon.py --seeds 1 --canaries 100        # as a trial

Two of the defenses are broken on purpose: they account for their noise and draw a thousandth of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from typing import Any, ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from pydantic.dataclasses import dataclass

from keyhole.auditing import EpsilonPlan, audit_epsilon
from keyhole.defenses import DEFENSES, ClientSide, Defense, Dp, DpSgd
from keyhole.update import Update

MODEL = "keyhole.models.shallow_convnet:shallow_convnet"
FRACTION = 1 / 1000
"""Of their noise, what the broken defenses draw."""


@dataclass(frozen=True, kw_only=True)
class WeakDp(Dp):
    """Draws a thousandth of the noise that its budget asks for."""

    name: ClassVar[str] = "weak-dp"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        assert side is not None
        sigma = self.strength(update, self.require_model(side)) * FRACTION
        return Dp(clip=self.clip, sigma=sigma).on_update(update, side)


@dataclass(frozen=True, kw_only=True)
class WeakDpSgd(DpSgd):
    """Accounts for ``noise`` and draws a thousandth of it."""

    name: ClassVar[str] = "weak-dpsgd"

    def _privatise(self, samples: Any, side: ClientSide) -> Any:
        return DpSgd(noise=self.noise * FRACTION, clip=self.clip)._privatise(samples, side)


SETTINGS: tuple[tuple[str | Defense, dict[str, Any], int], ...] = (
    ("dpsgd(noise=0.6)", {}, 20),
    ("dpsgd(noise=1.0)", {}, 20),
    ("dpsgd(noise=1.0)", {"canaries": 10_000}, 5),
    ("dpsgd(noise=2.0)", {}, 20),
    ("dpsgd(noise=2.0)", {"steps": 4, "lr": 0.1}, 20),
    ("dp(epsilon=5)", {}, 3),
    ("flower-local-dp(epsilon=5)", {}, 3),
    ("flower-local-dp(epsilon=5, sensitivity=0.001)", {}, 3),
    (WeakDpSgd(noise=1.0), {}, 20),
    (WeakDp(epsilon=5.0), {}, 3),
)
"""Defenses, what their plans change, and seeds from 0 on."""


def measure(defense: str | Defense, changes: dict[str, Any], seeds: int) -> dict[str, Any]:
    """One row: what every seed's run proves of one defense.

    Args:
        defense: The defense.
        changes: Fields of the plan that differ from those of the other rows.
        seeds: How many seeds, from 0 on.
    """
    own = DEFENSES.parse(defense) if isinstance(defense, str) else defense
    base: dict[str, Any] = {"defense": str(own), "model": MODEL, "data": "digits"}
    plans = [EpsilonPlan(**{**base, **changes, "seed": seed}) for seed in range(seeds)]
    found = [audit_epsilon(plan, defense=own) for plan in plans]
    return {
        "defense": defense if isinstance(defense, str) else own.name,
        "canaries": plans[0].canaries,
        "steps": plans[0].steps,
        "lr": plans[0].lr,
        "delta": found[0].delta,
        "claimed": found[0].claimed,
        "lower_bounds": [round(each.bound.epsilon, 4) for each in found],
        "status": [each.status for each in found],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, help="seeds of each setting, at most")
    parser.add_argument("--canaries", type=int, help="canaries of each run, at most")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for defense, changes, seeds in SETTINGS:
        asked = int(changes.get("canaries", 1000))
        canaries = min(asked, given.canaries or asked)
        rows.append(measure(defense, {**changes, "canaries": canaries}, given.seeds or seeds))
        if not given.json:
            bounds = ", ".join(f"{bound:.2f}" for bound in rows[-1]["lower_bounds"])
            print(f"{rows[-1]['defense']}: claims {rows[-1]['claimed']:.2f}, at least {bounds}")
    if given.json:
        machine = f"{platform.machine()}, one thread, torch {torch.__version__}"
        print(json.dumps({"machine": machine, "confidence": 0.95, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
