"""Optimisers and schedules with a victim axis: no victim depends on another.

Their state is a flat dictionary of tensors ``[N, ...]`` that are changed in place, so that it can
be saved, split, and replayed by a CUDA graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.matching.state import State, align_axes, assign_where

Values = Mapping[str, Tensor]


class Optimiser(ABC):
    """Changes the values of the unknowns according to their gradients."""

    @abstractmethod
    def start(self, values: Values) -> State:
        """The optimiser's state for these first guesses."""

    @abstractmethod
    def step(self, values: Values, gradients: Values, state: State, lr: Tensor) -> None:
        """Takes one step in place; ``lr [N]`` is the schedule's factor."""


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam (Kingma and Ba 2015).

    Args:
        lr: Learning rate, times the schedule's factor.
        beta1: Decay of the gradients' mean.
        beta2: Decay of their squares' mean.
        eps: Added to the root of that mean.
        signed: Names of the unknowns of whose gradient only the sign is used.
        noise: The standard deviation of what is added at random to each step, in units of the
            learning rate. It is a function of victim and step, so that a search can be resumed.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    signed: tuple[str, ...] = ()
    noise: float = 0.0

    def start(self, values: Values) -> State:
        first = next(iter(values.values()))
        state = {"adam.steps": torch.zeros(len(first), device=first.device)}
        for name, value in values.items():
            state[f"adam.mean.{name}"] = torch.zeros_like(value)
            state[f"adam.square.{name}"] = torch.zeros_like(value)
        return state

    def step(self, values: Values, gradients: Values, state: State, lr: Tensor) -> None:
        steps = state["adam.steps"].add_(1).double()
        size = self.lr * lr / (1 - self.beta1**steps)
        correction = (1 - self.beta2**steps).sqrt()
        for name, value in values.items():
            gradient = gradients[name].sign() if name in self.signed else gradients[name]
            mean = state[f"adam.mean.{name}"].lerp_(gradient, 1 - self.beta1)
            square = state[f"adam.square.{name}"].mul_(self.beta2)
            square.addcmul_(gradient, gradient, value=1 - self.beta2)
            scale = square.sqrt().div_(align_axes(correction, value).to(value)).add_(self.eps)
            value.sub_(align_axes(size, value).to(value) * (mean / scale))
            if self.noise:
                drawn = draw_noise(value, state["victim"].double(), state["adam.steps"].double())
                value.add_(align_axes(self.noise * self.lr * lr, value).to(value) * drawn)


def draw_noise(like: Tensor, victims: Tensor, steps: Tensor) -> Tensor:
    """Numbers that look like N(0, 1), one per element, fixed by victim ``[N]`` and step ``[N]``.

    They are computed and not drawn: a CUDA graph repeats what a generator drew, and a search that
    is resumed would draw others.

    Args:
        like: The tensor whose shape they have, ``[N, ...]``.
        victims: The number of each victim.
        steps: The steps that each victim has taken.
    """
    places = torch.arange(like[0].numel(), device=like.device, dtype=torch.double)
    phase = places * 12.9898 + (victims * 37.719 + steps * 78.233)[:, None]
    uniform = [((phase + shift).sin() * 43758.5453).frac().abs() for shift in (0.0, 0.5)]
    radius = (-2 * uniform[0].clamp(min=1e-12).log()).sqrt()
    return (radius * (2 * torch.pi * uniform[1]).cos()).to(like).view_as(like)


@dataclass(frozen=True)
class LBFGS(Optimiser):
    """Limited-memory BFGS without line search, as DLG uses it; all unknowns form one vector.

    Args:
        lr: Length of a step, times the schedule's factor.
        history: The number of steps that are remembered.
    """

    lr: float = 1.0
    history: int = 20

    def start(self, values: Values) -> State:
        first = next(iter(values.values()))
        victims, size = len(first), sum(v[0].numel() for v in values.values())
        flat, past = first.new_zeros(victims, size), first.new_zeros(victims, self.history, size)
        return {
            "lbfgs.steps": torch.zeros(victims, device=first.device),
            "lbfgs.gradient": flat.clone(),
            "lbfgs.move": flat.clone(),
            "lbfgs.moves": past.clone(),
            "lbfgs.turns": past.clone(),
            "lbfgs.curvature": first.new_zeros(victims, self.history),
            "lbfgs.scale": first.new_ones(victims),
        }

    def step(self, values: Values, gradients: Values, state: State, lr: Tensor) -> None:
        gradient = torch.cat([gradients[n].flatten(1) for n in values], 1)
        self._remember(gradient, state)
        direction = self._direction(gradient, state)
        first = state["lbfgs.steps"] == 0
        cautious = (1 / gradient.abs().sum(1).clamp(min=1e-30)).clamp(max=1.0)
        size = lr * self.lr * torch.where(first, cautious, torch.ones_like(cautious))
        move = -size[:, None] * direction
        state["lbfgs.gradient"].copy_(gradient)
        state["lbfgs.move"].copy_(move)
        state["lbfgs.steps"].add_(1)
        splits = torch.split(move, [v[0].numel() for v in values.values()], 1)
        for value, change in zip(values.values(), splits, strict=True):
            value.add_(change.view_as(value))

    def _remember(self, gradient: Tensor, state: State) -> None:
        """Adds the last move and the gradient's change to the history if their product is positive.

        The state calls changes of the gradient ``turns``.
        """
        move, change = state["lbfgs.move"], gradient - state["lbfgs.gradient"]
        curvature = (move * change).sum(1)
        useful = (state["lbfgs.steps"] > 0) & (curvature > 1e-10)
        for name, new in (("moves", move), ("turns", change), ("curvature", curvature)):
            past = state[f"lbfgs.{name}"]
            shifted = torch.cat([past[:, 1:], new[:, None]], 1)
            assign_where(useful, shifted, past)
        scale = curvature / change.square().sum(1).clamp(min=1e-30)
        assign_where(useful, scale, state["lbfgs.scale"])

    def _direction(self, gradient: Tensor, state: State) -> Tensor:
        """The two-loop recursion; empty entries of the history have curvature 0 and do nothing."""
        moves, changes = state["lbfgs.moves"], state["lbfgs.turns"]
        curvature = state["lbfgs.curvature"]
        inverse = torch.where(curvature > 0, 1 / curvature.clamp(min=1e-30), curvature)
        alphas = torch.zeros_like(curvature)
        direction = gradient.clone()
        for i in reversed(range(self.history)):
            alphas[:, i] = inverse[:, i] * (moves[:, i] * direction).sum(1)
            direction.sub_(alphas[:, i, None] * changes[:, i])
        direction.mul_(state["lbfgs.scale"][:, None])
        for i in range(self.history):
            beta = inverse[:, i] * (changes[:, i] * direction).sum(1)
            direction.add_((alphas[:, i] - beta)[:, None] * moves[:, i])
        return direction


class Schedule(ABC):
    """The factor of the learning rate over a victim's iterations, and when to stop early."""

    @abstractmethod
    def start(self, victims: int, device: torch.device) -> State:
        """The schedule's state for so many victims."""

    @abstractmethod
    def step(self, loss: Tensor, progress: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The factor ``[N]`` of the coming step, and which victims are done, bool ``[N]``."""


@dataclass(frozen=True)
class Plateau(Schedule):
    """Lowers the rate of a victim whose loss makes no progress.

    Args:
        patience: Iterations without progress after which the rate falls.
        factor: What the rate is multiplied by then.
        threshold: The relative change of the loss that counts as progress.
        drops: The number of falls after which a victim is done; None: no limit.
        give_up: Iterations without a new least loss after which a victim is done; None: no limit.
    """

    patience: int = 100
    factor: float = 0.1
    threshold: float = 1e-4
    drops: int | None = 4
    give_up: int | None = None

    def start(self, victims: int, device: torch.device) -> State:
        return {
            "plateau.lr": torch.ones(victims, device=device),
            "plateau.best": torch.full((victims,), torch.inf, device=device),
            "plateau.bad": torch.zeros(victims, device=device),
            "plateau.drops": torch.zeros(victims, device=device),
            "plateau.least": torch.full((victims,), torch.inf, device=device),
            "plateau.stale": torch.zeros(victims, device=device),
        }

    def step(self, loss: Tensor, progress: Tensor, state: State) -> tuple[Tensor, Tensor]:
        lr, best, least = (state[f"plateau.{name}"] for name in ("lr", "best", "least"))
        better = (loss < best - self.threshold * best.abs()) | best.isinf()
        assign_where(better, loss, best)
        bad = torch.where(better, 0.0, state["plateau.bad"] + 1)
        drop = bad > self.patience
        state["plateau.bad"].copy_(torch.where(drop, 0.0, bad))
        assign_where(drop, lr * self.factor, lr)
        state["plateau.drops"].add_(drop)
        improved = loss < least
        assign_where(improved, loss, least)
        state["plateau.stale"].copy_(torch.where(improved, 0.0, state["plateau.stale"] + 1))
        done = torch.zeros_like(improved)
        if self.drops is not None:
            done = done | (state["plateau.drops"] >= self.drops)
        if self.give_up is not None:
            done = done | (state["plateau.stale"] > self.give_up)
        return lr, done


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiplies the rate by a constant at given moments.

    Args:
        at: The moments, as shares of all iterations.
        factor: What the rate is multiplied by at each.
    """

    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1

    def start(self, victims: int, device: torch.device) -> State:
        return {}

    def step(self, loss: Tensor, progress: Tensor, state: State) -> tuple[Tensor, Tensor]:
        passed = torch.stack([progress >= at for at in self.at]).sum(0) if self.at else progress * 0
        return self.factor**passed, torch.zeros_like(loss, dtype=torch.bool)


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Lowers the rate from 1 to 0 along half a cosine, after a linear warm-up.

    Args:
        warm_up: The share of all iterations in which the rate rises.
    """

    warm_up: float = 0.0

    def start(self, victims: int, device: torch.device) -> State:
        return {}

    def step(self, loss: Tensor, progress: Tensor, state: State) -> tuple[Tensor, Tensor]:
        falling = 0.5 * (1 + torch.cos(torch.pi * progress))
        rising = (progress / self.warm_up).clamp(max=1.0) if self.warm_up else 1.0
        return falling * rising, torch.zeros_like(loss, dtype=torch.bool)
