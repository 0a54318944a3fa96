"""The engine: takes N victims through one recipe, as a tensor axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from keyhole.attacks.matching.execution import Matcher
from keyhole.attacks.matching.optimisers import State
from keyhole.attacks.matching.priors import Guess
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.recipe import Recipe
from keyhole.attacks.matching.state import GIVEN, keep
from keyhole.attacks.matching.unknowns import split_sites

VALUE, BEST = "value.", "best."
START = "start."
"""Prefix of what is given as an unknown's first guess."""


class Engine:
    """One recipe on one problem. :meth:`step` is a whole iteration, in place, without a look back.

    Nothing in a step waits for the device or depends on another victim.
    """

    def __init__(self, recipe: Recipe, problem: Problem, iterations: int) -> None:
        self.recipe = recipe
        self.problem = problem
        self.iterations = iterations

    def start(
        self, victims: Sequence[int], draws: Sequence[torch.Generator], given: State
    ) -> State:
        """First guesses, drawn for each victim by its own generator; ``given`` is ``[N, ...]``."""
        like = self.problem.like
        values = {}
        for unknown in self.recipe.unknowns:
            first = given.get(START + unknown.name)
            if first is None:
                first = torch.stack([unknown.start(self.problem, draw) for draw in draws])
            values[unknown.name] = unknown.project(first.to(like), self.problem, given)
        count, device = len(victims), like.device
        return {
            "victim": torch.tensor(victims, device=device),
            "alive": torch.ones(count, dtype=torch.bool, device=device),
            "broken": torch.zeros(count, dtype=torch.bool, device=device),
            "iterations": torch.zeros(count, device=device),
            "loss": torch.full((count,), torch.inf, device=device).to(like.dtype),
            "least": torch.full((count,), torch.inf, device=device).to(like.dtype),
            **{VALUE + name: value for name, value in values.items()},
            **{BEST + name: value.clone() for name, value in values.items()},
            **self.recipe.optimiser.start(values),
            **self.recipe.schedule.start(count, device),
            **{GIVEN + n: tensor for n, tensor in given.items() if not n.startswith(START)},
        }

    def step(self, state: State, matcher: Matcher) -> None:
        """One iteration for every victim: loss, gradient, bookkeeping, move, projection."""
        names = [unknown.name for unknown in self.recipe.unknowns]
        values = {name: state[VALUE + name] for name in names}
        with torch.enable_grad():
            tracked = {name: value.detach().requires_grad_() for name, value in values.items()}
            loss = self.loss(tracked, state, matcher)
            found = torch.autograd.grad(loss.sum(), list(tracked.values()), materialize_grads=True)
        with torch.no_grad():
            self._note(loss.detach(), state, values)
            lr = self._schedule(state)
            gradients = dict(zip(names, found, strict=True))
            self.recipe.optimiser.step(values, gradients, state, lr)
            known = {n.removeprefix(GIVEN): t for n, t in state.items() if n.startswith(GIVEN)}
            for unknown in self.recipe.unknowns:
                value = values[unknown.name]
                value.copy_(unknown.project(value, self.problem, known))

    def loss(self, values: dict[str, Tensor], state: State, matcher: Matcher) -> Tensor:
        """Objective and priors, ``[N]``."""
        recipe = self.recipe
        images = recipe.picture.render(values[recipe.picture.name], self.problem)
        if recipe.labels is None:
            targets = state[GIVEN + "labels"]
        else:
            targets = values[recipe.labels.name].softmax(-1)
        masks = self.masks(values, state)
        match = matcher(images, targets, masks)
        loss = recipe.objective(match)
        if recipe.priors:
            progress = state["iterations"] / self.iterations
            guess = Guess(images, masks, match, progress)
            loss = loss + torch.stack([prior(guess) for prior in recipe.priors]).sum(0)
        return loss

    def masks(self, values: dict[str, Tensor], state: State) -> tuple[Tensor, ...] | None:
        """The dropout masks of every site: sought, given, or sought where not given."""
        known = state.get(GIVEN + "masks")
        if self.recipe.masks is not None:
            sought = values[self.recipe.masks.name]
            joint = sought if known is None else torch.where(known < 0, sought, known)
            return self.recipe.masks.render(joint)
        if known is None:
            return None
        return split_sites(known, self.problem.sites)

    def _note(self, loss: Tensor, state: State, values: dict[str, Tensor]) -> None:
        """Keeps what had the least loss; a victim whose loss is not finite leaves the game."""
        finite = loss.isfinite()
        alive = state["alive"]
        state["broken"].logical_or_(alive & ~finite)
        alive.logical_and_(finite)
        better = alive & (loss < state["least"])
        keep(better, loss, state["least"])
        for name, value in values.items():
            keep(better, value, state[BEST + name])
        keep(alive, loss, state["loss"])

    def _schedule(self, state: State) -> Tensor:
        """The coming step's learning rates; ends victims that are done."""
        alive, loss = state["alive"], state["loss"]
        state["iterations"].add_(alive)
        progress = state["iterations"] / self.iterations
        lr, done = self.recipe.schedule.step(loss, progress, state)
        done = done | (state["iterations"] >= self.iterations)
        if self.recipe.stop_below is not None:
            done = done | (loss < self.recipe.stop_below)
        alive.logical_and_(~done)
        return lr


Stepper = Callable[[int], None]
"""Takes so many steps."""


def stepper(engine: Engine, state: State, matcher: Matcher) -> Stepper:
    """Steps one by one."""

    def advance(count: int) -> None:
        for _ in range(count):
            engine.step(state, matcher)

    return advance
