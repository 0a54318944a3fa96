"""The engine: attacks N victims with one set of parts, along a tensor axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.matchers import Matcher, MovableMatcher
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.priors import Guess
from keyhole.attacks.matching.parts.unknowns import split_sites
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.state import KNOWN, State, assign_where

VALUE, BEST = "value.", "best."
"""Prefixes of an unknown's current value and of its value at the least loss."""
START = "start."
"""Prefix of an unknown's first guess, if it is given."""


class Engine:
    """Runs one set of parts on one problem.

    :meth:`step` is a whole iteration in place. Nothing in it waits for the device or depends on
    another victim.
    """

    def __init__(self, parts: MatchingParts, problem: MatchingProblem, iterations: int) -> None:
        self.parts = parts
        self.problem = problem
        self.iterations = iterations

    def start(
        self, victims: Sequence[int], generators: Sequence[torch.Generator], known: State
    ) -> State:
        """The state at the first guesses, which each victim's own generator draws.

        ``known`` holds what is known about the victims, ``[N, ...]``.
        """
        like = self.problem.like
        values = {}
        for unknown in self.parts.unknowns:
            first = known.get(START + unknown.name)
            if first is None:
                first = torch.stack([unknown.start(self.problem, g) for g in generators])
            values[unknown.name] = unknown.project(first.to(like), self.problem, known)
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
            **self.parts.optimiser.start(values),
            **self.parts.schedule.start(count, device),
            **{KNOWN + n: tensor for n, tensor in known.items() if not n.startswith(START)},
        }

    def step(self, state: State, matcher: Matcher) -> None:
        """One iteration for every victim: loss, gradient, record, update, projection."""
        names = [unknown.name for unknown in self.parts.unknowns]
        values = {name: state[VALUE + name] for name in names}
        with torch.enable_grad():
            tracked = {name: value.detach().requires_grad_() for name, value in values.items()}
            loss = self.loss(tracked, state, matcher)
            derivatives = torch.autograd.grad(
                loss.sum(), list(tracked.values()), materialize_grads=True
            )
        with torch.no_grad():
            self._record_best(loss.detach(), state, values)
            lr = self._step_schedule(state)
            gradients = dict(zip(names, derivatives, strict=True))
            self.parts.optimiser.step(values, gradients, state, lr)
            known = {n.removeprefix(KNOWN): t for n, t in state.items() if n.startswith(KNOWN)}
            for unknown in self.parts.unknowns:
                value = values[unknown.name]
                value.copy_(unknown.project(value, self.problem, known))

    def loss(self, values: dict[str, Tensor], state: State, matcher: Matcher) -> Tensor:
        """Objective plus priors, ``[N]``."""
        parts = self.parts
        images = parts.images.render(values[parts.images.name], self.problem)
        if parts.labels is None:
            targets = state[KNOWN + "labels"]
        else:
            targets = values[parts.labels.name].softmax(-1)
        masks = self.masks(values, state)
        if parts.surrogate is not None:
            assert isinstance(matcher, MovableMatcher)
            matcher = matcher.at(values[parts.surrogate.name])
        samples = images
        if parts.batch is not None:
            samples, targets = parts.batch.form(images, targets, values, self.problem)
        match = matcher(samples, targets, masks)
        loss = parts.objective(match)
        if match.others:
            rounds = [loss, *(parts.objective(other) for other in match.others)]
            loss = torch.stack(rounds).mean(0)
        if parts.priors:
            progress = state["iterations"] / self.iterations
            known = {n.removeprefix(KNOWN): t for n, t in state.items() if n.startswith(KNOWN)}
            guess = Guess(images, masks, match, progress, known)
            loss = loss + torch.stack([prior(guess) for prior in parts.priors]).sum(0)
        return loss

    def masks(self, values: dict[str, Tensor], state: State) -> tuple[Tensor, ...] | None:
        """One dropout mask per site: known where it is known, searched for elsewhere."""
        known = state.get(KNOWN + "masks")
        if self.parts.masks is not None:
            value = values[self.parts.masks.name]
            masks = value if known is None else torch.where(known < 0, value, known)
            return self.parts.masks.render(masks)
        if known is None:
            return None
        return split_sites(known, self.problem.sites)

    def _record_best(self, loss: Tensor, state: State, values: dict[str, Tensor]) -> None:
        """Keeps the values of least loss; a victim whose loss is not finite is marked broken."""
        finite = loss.isfinite()
        alive = state["alive"]
        state["broken"].logical_or_(alive & ~finite)
        alive.logical_and_(finite)
        better = alive & (loss < state["least"])
        assign_where(better, loss, state["least"])
        for name, value in values.items():
            assign_where(better, value, state[BEST + name])
        assign_where(alive, loss, state["loss"])

    def _step_schedule(self, state: State) -> Tensor:
        """The learning-rate factors of the coming step; marks victims that are done."""
        alive, loss = state["alive"], state["loss"]
        state["iterations"].add_(alive)
        progress = state["iterations"] / self.iterations
        lr, done = self.parts.schedule.step(loss, progress, state)
        done = done | (state["iterations"] >= self.iterations)
        if self.parts.stop_below is not None:
            done = done | (loss < self.parts.stop_below)
        alive.logical_and_(~done)
        return lr


Step = Callable[[], None]
"""Takes one step."""
Stepper = Callable[[int], None]
"""Called with a number of steps, takes that many."""


def repeat_step(step: Step) -> Stepper:
    """A stepper that takes one step after another."""

    def advance(count: int) -> None:
        for _ in range(count):
            step()

    return advance


def make_stepper(engine: Engine, state: State, matcher: Matcher) -> Stepper:
    """A stepper of some victims that takes the engine's own steps."""
    return repeat_step(lambda: engine.step(state, matcher))
