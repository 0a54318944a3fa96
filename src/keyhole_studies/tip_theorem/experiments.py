"""The experiments: one per strength of TIP, several seeds each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from dataclasses import dataclass as plain_dataclass
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from keyhole.defenses import DEFENSES, Tip
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.coverage import settings_gap
from keyhole_studies.tip_theorem.bounds import (
    READINGS,
    Constants,
    Reading,
    first_violation,
    theorem_bound,
    unrolled_bound,
)
from keyhole_studies.tip_theorem.descent import Track, descend
from keyhole_studies.tip_theorem.problem import Problem, load_problem

POINTS = 60
"""Rounds that a result keeps, evenly spread on a logarithmic axis."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class DescentSettings:
    """How clients descend.

    Args:
        J: Clients.
        N: Clients whose weights are averaged in a round.
        E: Steps of a client in a round.
        mu: The weight of the regulariser, which is the problem's convexity.
        batch: Images in a step.
        rounds: Rounds of a run.
        seeds: Runs.
        start: The norm of the first weights.
        reading: Whose phi the rates follow.
    """

    J: int = 10
    N: int = 5
    E: int = 1
    mu: float = 0.05
    batch: int = 16
    rounds: int = 1000
    seeds: int = 3
    start: float = 0.0
    reading: Reading = "corrected"


@plain_dataclass(frozen=True)
class TheoremExperiment(Experiment):
    """F(w_T) - F* beside the bounds, under one defense.

    Args:
        defense: ``none``, or TIP.
        settings: How clients descend.
        panel: What the figure calls it; empty: the figure does not show it.
    """

    defense: str
    settings: DescentSettings
    panel: str = ""

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        settings, defense = self.settings, DEFENSES.parse(self.defense)
        began = time.perf_counter()
        problem = load_problem(settings.J, settings.mu, study.seed)
        known, least = find_constants(
            problem, settings, defense if isinstance(defense, Tip) else None
        )
        tracks = []
        for seed in range(study.seed, study.seed + settings.seeds):
            context.progress.show(f"{self.name}: {settings.rounds} rounds, seed {seed}")
            track = descend(
                problem,
                known,
                defense,
                least=least,
                rounds=settings.rounds,
                batch=settings.batch,
                seed=seed,
                start=settings.start,
                reading=settings.reading,
            )
            tracks.append(track)
        known = add_moments(known, tracks)
        about = {"piece": self.name, "defense": self.defense, "recipe": asdict(settings)}
        found = summarise(known, tracks, settings)
        seconds = round(time.perf_counter() - began, 1)
        return {**about, "constants": asdict(known), **found, "seconds": seconds}

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another descent or defense."""
        gap = settings_gap(known["recipe"], asdict(self.settings), "descent")
        return gap or settings_gap(known, {"defense": self.defense})

    def describe(self) -> dict[str, Any]:
        s = self.settings
        what = f"{s.seeds} x {s.rounds} rounds of {s.N} of {s.J} clients, {s.E} steps each"
        return {"does": f"{what}, under {self.defense}"}


def find_constants(
    problem: Problem, settings: DescentSettings, tip: Tip | None
) -> tuple[Constants, float]:
    """The constants that are known before anything runs (sigma and G are zeros), and F*.

    Args:
        problem: What is minimised.
        settings: How clients descend.
        tip: The defense; None: there is none.
    """
    best, least, own = problem.find_optima()
    first = problem.first_weights(settings.start)
    known = Constants(
        L=problem.smoothness,
        mu=problem.mu,
        J=settings.J,
        N=settings.N,
        E=settings.E,
        gamma=least - sum(own) / len(own),
        sigma2=(0.0,) * settings.J,
        G2=0.0,
        distance2=float((first - best).square().sum()),
        energy=0.0 if tip is None else tip.energy(problem.make_model()),
    )
    return known, least


def add_moments(known: Constants, tracks: Sequence[Track]) -> Constants:
    """The constants with the greatest variance and second moment of a gradient in any run."""
    variances = torch.stack([track.variances for track in tracks]).amax(0)
    second = max(track.second_moment for track in tracks)
    return replace(known, sigma2=tuple(variances.tolist()), G2=second)


def summarise(
    known: Constants, tracks: Sequence[Track], settings: DescentSettings
) -> dict[str, Any]:
    """Gaps and bounds at some rounds, and where a bound is broken by the mean over seeds."""
    gaps = torch.tensor([track.gaps for track in tracks], dtype=torch.double)
    mean = gaps.mean(0).tolist()
    betas = [max(values) for values in zip(*(t.betas for t in tracks), strict=True)]
    steps = known.E * torch.arange(settings.rounds + 1)
    bounds: dict[str, list[float]] = {
        name: theorem_bound(known, max(betas), steps, name).tolist() for name in READINGS
    }
    if settings.reading != "printed":  # rates over 1 / (4 L) are outside of its proof
        bounds["unrolled"] = unrolled_bound(known, betas)
    kept = spread_rounds(settings.rounds, POINTS)
    noise = [energy for t in tracks for energy in t.noise_energies]
    expected = [b**2 * known.energy for t in tracks for b in t.betas]
    return {
        "beta": {"first": betas[0], "last": betas[-1]},
        "noise_energy": {"measured": average(noise), "expected": average(expected)},
        "steps": [known.E * number for number in kept],
        "gap": {
            "mean": [mean[number] for number in kept],
            "low": [float(gaps[:, number].min()) for number in kept],
            "high": [float(gaps[:, number].max()) for number in kept],
        },
        "bounds": {name: [values[n] for n in kept] for name, values in bounds.items()},
        "broken_after_rounds": {name: first_violation(mean, v) for name, v in bounds.items()},
        "least_looseness": {
            name: min(b / g for b, g in zip(v[1:], mean[1:], strict=True))
            for name, v in bounds.items()
        },
    }


def average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def spread_rounds(last: int, points: int) -> list[int]:
    """Whole numbers from 1 to ``last``, evenly spread on a logarithmic axis, and 0.

    >>> spread_rounds(100, 5)
    [0, 1, 3, 10, 32, 100]
    """
    found = [round(last ** (i / (points - 1))) for i in range(points)]
    return sorted({0, *found})
