"""What is run: one piece a strength of TIP, several seeds each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from keyhole.defenses import DEFENSES
from keyhole.defenses.tip import Tip
from keyhole.studies.base import Piece, Setting, Study
from keyhole.studies.tip_theorem.bounds import (
    READINGS,
    Constants,
    Reading,
    theorem,
    unrolled,
    violated,
)
from keyhole.studies.tip_theorem.descent import Track, descend
from keyhole.studies.tip_theorem.problem import Problem, digits

POINTS = 60
"""Rounds that a result keeps, evenly spread on a logarithmic axis."""


@dataclass(frozen=True)
class Recipe:
    """J clients, of which N are heard after every E steps on ``batch`` images.

    ``start`` is the norm of the first weights; ``reading`` says whose phi the rates follow.
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


@dataclass(frozen=True)
class TheoremPiece(Piece):
    """F(w_T) - F* beside the bounds, under one defense."""

    defense: str
    recipe: Recipe = field(default_factory=Recipe)

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        recipe, defense = self.recipe, DEFENSES.parse(self.defense)
        began = time.perf_counter()
        problem = digits(recipe.J, recipe.mu, study.seed)
        known, least = at_rest(problem, recipe, defense if isinstance(defense, Tip) else None)
        tracks = []
        for seed in range(study.seed, study.seed + recipe.seeds):
            setting.progress.show(f"{self.name}: {recipe.rounds} rounds, seed {seed}")
            track = descend(
                problem,
                known,
                defense,
                least=least,
                rounds=recipe.rounds,
                batch=recipe.batch,
                seed=seed,
                start=recipe.start,
                reading=recipe.reading,
            )
            tracks.append(track)
        known = met(known, tracks)
        about = {"piece": self.name, "defense": self.defense, "recipe": asdict(recipe)}
        found = summary(known, tracks, recipe)
        seconds = round(time.perf_counter() - began, 1)
        return {**about, "constants": asdict(known), **found, "seconds": seconds}

    def about(self) -> dict[str, Any]:
        r = self.recipe
        what = f"{r.seeds} x {r.rounds} rounds of {r.N} of {r.J} clients, {r.E} steps each"
        return {"does": f"{what}, under {self.defense}"}


def at_rest(problem: Problem, recipe: Recipe, tip: Tip | None) -> tuple[Constants, float]:
    """All constants that are known before anything runs (sigma and G are zeros), and F*."""
    best, least, own = problem.optima()
    first = problem.start(recipe.start)
    known = Constants(
        L=problem.smoothness,
        mu=problem.mu,
        J=recipe.J,
        N=recipe.N,
        E=recipe.E,
        gamma=least - sum(own) / len(own),
        sigma2=(0.0,) * recipe.J,
        G2=0.0,
        distance2=float((first - best).square().sum()),
        energy=0.0 if tip is None else tip.energy(problem.model()),
    )
    return known, least


def met(known: Constants, tracks: Sequence[Track]) -> Constants:
    """With the greatest variance and second moment of a gradient that any run came upon."""
    variances = torch.stack([track.variances for track in tracks]).amax(0)
    second = max(track.second_moment for track in tracks)
    return replace(known, sigma2=tuple(variances.tolist()), G2=second)


def summary(known: Constants, tracks: Sequence[Track], recipe: Recipe) -> dict[str, Any]:
    """Gaps and bounds at some rounds, and where a bound is broken by the mean over seeds."""
    gaps = torch.tensor([track.gaps for track in tracks], dtype=torch.double)
    mean = gaps.mean(0).tolist()
    betas = [max(values) for values in zip(*(t.betas for t in tracks), strict=True)]
    steps = known.E * torch.arange(recipe.rounds + 1)
    bounds: dict[str, list[float]] = {
        name: theorem(known, max(betas), steps, name).tolist() for name in READINGS
    }
    if recipe.reading != "printed":  # rates over 1 / (4 L) are outside of its proof
        bounds["unrolled"] = unrolled(known, betas)
    kept = spread(recipe.rounds, POINTS)
    noise = [energy for t in tracks for energy in t.noise_energies]
    expected = [b**2 * known.energy for t in tracks for b in t.betas]
    return {
        "beta": {"first": betas[0], "last": betas[-1]},
        "noise_energy": {"measured": mean_of(noise), "expected": mean_of(expected)},
        "steps": [known.E * number for number in kept],
        "gap": {
            "mean": [mean[number] for number in kept],
            "low": [float(gaps[:, number].min()) for number in kept],
            "high": [float(gaps[:, number].max()) for number in kept],
        },
        "bounds": {name: [values[n] for n in kept] for name, values in bounds.items()},
        "broken_after_rounds": {name: violated(mean, v) for name, v in bounds.items()},
        "least_looseness": {
            name: min(b / g for b, g in zip(v[1:], mean[1:], strict=True))
            for name, v in bounds.items()
        },
    }


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def spread(last: int, points: int) -> list[int]:
    """Whole numbers from 1 to ``last``, evenly spread on a logarithmic axis, and 0.

    >>> spread(100, 5)
    [0, 1, 3, 10, 32, 100]
    """
    found = [round(last ** (i / (points - 1))) for i in range(points)]
    return sorted({0, *found})


STRENGTHS = {
    "none": "none",
    "beta-005": "tip(beta=0.05)",
    "beta-03": "tip(beta=0.3)",
    "calibrated": "tip(epsilon=5.0)",
}
"""A fixed beta, and the calibrated one, which falls as the rates do."""


def all_pieces() -> tuple[Piece, ...]:
    return (*fixed(), *printed())


def fixed() -> Iterator[TheoremPiece]:
    """One step a round, where the bound is tightest, and five."""
    for recipe in (Recipe(E=1), Recipe(E=5, rounds=400)):
        for name, defense in STRENGTHS.items():
            yield TheoremPiece(f"e{recipe.E}-{name}", defense, recipe, figure="Theorem 1")


def printed() -> Iterator[TheoremPiece]:
    """The paper's own phi and rates: from weights far away without any noise, and with it."""
    own = Recipe(reading="printed")
    far = replace(own, rounds=100, start=50.0)
    yield TheoremPiece("printed-far", "none", far, figure="Theorem 1")
    yield TheoremPiece("printed-beta-03", STRENGTHS["beta-03"], own, figure="Theorem 1")
