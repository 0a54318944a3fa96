"""Frontiers that nobody had to measure, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from keyhole.frontier import FrontierPlan, FrontierResult, Reading, SeedOutcome, SettingOutcome
from keyhole.frontier.result import SearchOutcome

IMAGES = 8


def make_outcome(
    name: str,
    accuracies: tuple[float, ...],
    read: int,
    *,
    seconds: float = 2.0,
    attackers: tuple[str, ...] = ("ig (naive)", "ig (adaptive)"),
    searched: str = "",
    **parameters: Any,
) -> SettingOutcome:
    """A setting of which the last attacker read so many images with the first seed."""
    seeds = tuple(
        SeedOutcome(
            defense={"name": name, "parameters": parameters},
            seed=seed,
            accuracy=accuracy,
            seconds=seconds,
            rounds=2,
            readings=tuple(
                Reading(
                    attacker,
                    "last round",
                    read if seed == 0 and attacker == attackers[-1] else 0,
                    IMAGES,
                )
                for attacker in attackers
            ),
            skipped={"april": "it needs a ViT"},
            attack_seconds=1.0,
        )
        for seed, accuracy in enumerate(accuracies)
    )
    return SettingOutcome(seeds, searched)


def make_frontier() -> FrontierResult:
    """No defense, one that holds at three points, one that holds at ten, two that are broken."""
    return FrontierResult(
        plan=FrontierPlan(
            defenses=("dropout", "topk(k=[.1,.01])", "dp"),
            search=("gaussian(sigma=1e-3..1e-1)",),
            seeds=(0, 1, 2),
        ),
        settings=(
            make_outcome("none", (0.96, 0.95, 0.97), 8, attackers=("linear (naive)",)),
            make_outcome("dropout", (0.95, 0.94, 0.96), 8, attackers=("linear (naive)",), p=0.25),
            make_outcome("topk", (0.94, 0.93, 0.95), 2, k=0.1),
            make_outcome("topk", (0.86, 0.85, 0.87), 0, k=0.01, seconds=4.0),
            make_outcome(
                "gaussian",
                (0.93, 0.92, 0.94),
                0,
                sigma=0.1,
                clip=None,
                searched="gaussian(sigma=1e-3..1e-1)",
            ),
        ),
        unfit={"tip": "defense 'tip' does not fit the model: it has no convolution"},
        searches=(
            SearchOutcome(
                "gaussian(sigma=1e-3..1e-1)",
                ("gaussian(sigma=0.1)",),
                "gaussian(sigma=0.1)",
                None,
                "gaussian(sigma=1e-3..1e-1): a sentence <b>about</b> the search.",
            ),
        ),
        date="2026-01-31",
        versions={"keyhole": "0.1.0"},
    )
