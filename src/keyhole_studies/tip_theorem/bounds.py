"""Theorem 1 of the TIP paper as numbers, and the bound that its proof would need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Reading = Literal["printed", "corrected", "doubled"]
"""``printed``: theta = mu / L, as the paper has it; ``corrected``: kappa = L / mu, as in the
theorem that it builds on; ``doubled``: the same, nu and sigma^2 twice, which Eq. 22 forgets."""
READINGS: tuple[Reading, ...] = ("printed", "corrected", "doubled")


@dataclass(frozen=True)
class Constants:
    """What the bounds are made of.

    Args:
        L: Every loss is smooth by it.
        mu: Every loss is strongly convex by it.
        J: Clients.
        N: Clients whose weights are averaged in a round.
        E: Steps of a client in a round.
        gamma: Gamma = F* - mean_j F_j*.
        sigma2: The variance of a batch's gradient, client by client.
        G2: The expected squared norm of a batch's gradient, at most.
        distance2: |w_0 - w*|^2.
        energy: ``sum over layers N_r C_in n_high``: the squared norm of an upload's noise at
            beta = 1.
    """

    L: float
    mu: float
    J: int
    N: int
    E: int
    gamma: float
    sigma2: tuple[float, ...]
    G2: float
    distance2: float
    energy: float

    def phi(self, reading: Reading = "corrected") -> float:
        """``max(8 kappa, E)``; with the paper's theta it is E, and steps are far too long."""
        return max(8 * self.ratio(reading), float(self.E))

    def ratio(self, reading: Reading) -> float:
        return self.mu / self.L if reading == "printed" else self.L / self.mu

    def rate(self, step: int, reading: Reading = "corrected") -> float:
        """``eta_t = 2 / (mu (phi + t))``."""
        return 2 / (self.mu * (self.phi(reading) + step))

    def drift(self, nu: float, twice: float = 1.0) -> float:
        """``B = sum p_j^2 (nu + sigma_j^2) + 6 L Gamma + 8 (E - 1)^2 (nu + G^2)``."""
        nu = twice * nu
        noise = sum(nu + twice * s for s in self.sigma2) / self.J**2
        return noise + 6 * self.L * self.gamma + 8 * (self.E - 1) ** 2 * (nu + self.G2)

    def sampling(self, nu: float, twice: float = 1.0) -> float:
        """``C = (J - N) / (J - 1) * 4 / N * E^2 (nu + G^2)``."""
        left_out = (self.J - self.N) / (self.J - 1) if self.J > 1 else 0.0
        return left_out * 4 / self.N * self.E**2 * (twice * nu + self.G2)


def theorem_bound(known: Constants, beta: float, steps: Tensor, reading: Reading) -> Tensor:
    """Theorem 1's bound on ``E F(w_T) - F*`` after ``steps`` T ``[R]``:

        kappa / (phi + T) * [2 (B + C) / mu + mu phi / 2 * |w_0 - w*|^2],  nu = beta^2 energy L^2.

    T counts local steps; it is a bound where clients have just been averaged.

    Args:
        known: The constants.
        beta: The noise's strength.
        steps: Numbers of steps, ``[R]``.
        reading: As printed, corrected, or doubled.
    """
    nu, twice = beta**2 * known.energy * known.L**2, 2.0 if reading == "doubled" else 1.0
    constant = known.drift(nu, twice) + known.sampling(nu, twice)
    phi = known.phi(reading)
    far = known.mu * phi / 2 * known.distance2
    return known.ratio(reading) / (phi + steps.double()) * (2 * constant / known.mu + far)


def unrolled_bound(
    known: Constants, betas: Sequence[float], reading: Reading = "corrected"
) -> list[float]:
    """A bound on ``E F - F*`` after every round, from 0, that counts the noise where it falls.

    Noise on an upload moves the weights themselves, whatever the rate: it has mean zero and is
    independent of all else, so averaging N clients adds ``beta_r^2 energy / N`` to the expected
    squared distance ``D`` of round r, and nothing to the gradients' variance:

        D_{t+1} = (1 - mu eta_t) D_t + eta_t^2 (B + C) + [t + 1 ends round r] beta_r^2 energy / N,

    with B and C at ``nu = 0`` (Li et al. 2020, Lemmas 1 to 5), and F - F* is at most L / 2 * D. It
    holds for rates up to 1 / (4 L). With a fixed beta, D grows in the end by a third of
    ``beta^2 energy / N`` a round, as rates fall and noise does not; with one that falls as the
    rates do, all is O(1 / T).

    Args:
        known: The constants.
        betas: The noise's strength, round by round.
        reading: Whose phi the rates follow.
    """
    drift, sampling = known.drift(0.0), known.sampling(0.0)
    distance, found = known.distance2, [known.L / 2 * known.distance2]
    for number, beta in enumerate(betas):
        for step in range(number * known.E, (number + 1) * known.E):
            rate = known.rate(step, reading)
            distance = (1 - known.mu * rate) * distance + rate**2 * (drift + sampling)
        distance += beta**2 * known.energy / known.N
        found.append(known.L / 2 * distance)
    return found


def first_violation(gaps: Sequence[float], bound: Sequence[float], after: int = 1) -> int | None:
    """The first round, from ``after`` on, whose gap is over its bound; None: there is none.

    >>> first_violation([3.0, 2.0, 1.0], [4.0, 1.5, 2.0])
    1
    """
    over = torch.tensor(gaps)[after:] > torch.tensor(bound)[after:]
    places = over.nonzero().flatten().tolist()
    return after + int(places[0]) if places else None
