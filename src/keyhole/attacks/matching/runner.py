"""Takes every victim to its end: in chunks, through failures, and on from where it was stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from keyhole.attacks.matching.engine import BEST, Engine, Stepper
from keyhole.attacks.matching.execution import Matcher
from keyhole.attacks.matching.graphs import graphed
from keyhole.attacks.matching.optimisers import State
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.state import GIVEN, History, Outcome, put, select
from keyhole.attacks.matching.tape import Tape
from keyhole.attacks.matching.threads import side_by_side
from keyhole.attacks.workbench import Saved, Workbench
from keyhole.errors import DoesNotFit
from keyhole.interrupts import INTERRUPTS
from keyhole.memory import ran_out_of_memory

LOOK = 50
"""Iterations between two looks at how the victims do."""
LEAVE = 0.75
"""The batch shrinks when no more than this share of it is still alive."""
LEAVE_GRAPH = 0.5
"""The same where a smaller batch means capturing a new CUDA graph."""
SHARE = 0.8
"""The share of free memory that the victims may fill."""
LEAST_ON_CPU, MOST_ON_CPU = 32, 128
"""Victims at once on the CPU, where memory allows."""
CACHED = 1 << 20
"""Activations, over all victims, up to which more victims make the CPU faster."""
COPIES = 24
"""How often a step holds each activation, roughly: twice differentiated, unfolded."""


@dataclass
class Runner:
    """One attack on a list of victims."""

    engine: Engine
    matcher_of: Callable[[Sequence[int]], Matcher]
    """Makes the matcher of some victims."""
    given_of: Callable[[Sequence[int]], State]
    """What is given of some victims, ``[N, ...]``."""
    draw_of: Callable[[int, int], torch.Generator]
    """What a victim's first guess is drawn with, at its first or second attempt."""
    victims: int
    bench: Workbench
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    history: dict[int, History] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    begun: list[State] = field(default_factory=list)
    """Chunks that were begun and are not done; more than one only after memory ran out."""

    def run(self) -> None:
        """Fills ``outcomes`` and ``history`` for every victim; Ctrl-C waits for a state to save."""
        with INTERRUPTS.deferred():
            self._run()
        INTERRUPTS.check()

    def _run(self) -> None:
        waiting = self._take_up(self.bench.load())
        size = self.bench.victims_at_once
        while self.begun or waiting:
            try:
                if not self.begun:
                    size = size or self._how_many(waiting)
                    self.begun.append(self._start(waiting[:size], attempt=0))
                    waiting = waiting[size:]
                self._to_the_end()
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                size = self._split() if self.begun else half_of(size or len(waiting))
        self._save()

    def _start(self, victims: Sequence[int], attempt: int) -> State:
        draws = [self.draw_of(victim, attempt) for victim in victims]
        for victim in victims:
            self.history.setdefault(victim, History(restarts=attempt))
        return self.engine.start(victims, draws, self.given_of(victims))

    def _to_the_end(self) -> None:
        """Runs the first chunk that was begun until every victim of it is done."""
        state = self.begun[0]
        matcher = self.matcher_of(state["victim"].tolist())
        advance = self._stepper(state, matcher)
        self._look(state)
        while bool((state["alive"] | state["broken"]).any()):
            self._advance(advance, min(LOOK, self._left(state)))
            self._restart(state)
            self._look(state)
            if self._out_of_time():
                self._stop(state)
            alive = state["alive"]
            share = LEAVE_GRAPH if alive.is_cuda else LEAVE
            if 0 < int(alive.sum()) <= share * len(alive):
                self._finish(state, ~alive)
                rows = alive.nonzero().flatten()
                state, matcher = select(state, rows), matcher.select(rows)
                self.begun[0] = state
                advance = self._stepper(state, matcher)
            if self.bench.due() or INTERRUPTS.asked:
                self._save()
                INTERRUPTS.check()
        self._finish(state, ~state["alive"])
        del self.begun[0]

    def _advance(self, advance: Stepper, steps: int) -> None:
        """Takes the steps to the next look: one by one where time may run out in between."""
        if self.bench.deadline is None:
            advance(steps)
            return
        for _ in range(steps):
            advance(1)
            if self._out_of_time():
                return

    def _out_of_time(self) -> bool:
        return self.bench.deadline is not None and time.monotonic() >= self.bench.deadline

    def _stop(self, state: State) -> None:
        """Ends every victim with the best it has; one that never had a finite loss has failed."""
        for row in (~state["least"].isfinite()).nonzero().flatten().tolist():
            self.history[int(state["victim"][row])].failed = True
        state["alive"].fill_(False)
        state["broken"].fill_(False)

    def _left(self, state: State) -> int:
        """Iterations until the last victim has had its fill."""
        going = state["iterations"][state["alive"] | state["broken"]]
        return max(1, self.engine.iterations - int(going.min()))

    def _stepper(self, state: State, matcher: Matcher) -> Stepper:
        if not state["alive"].is_cuda:
            return side_by_side(self.engine, state, matcher)
        advance, why = graphed(self.engine, state, matcher)
        if why is not None and why not in self.notes:
            self.notes.append(why)
        return advance

    def _look(self, state: State) -> None:
        """Notes losses and, ever more rarely, the images as they are."""
        iterations = state["iterations"].int().tolist()
        losses, alive = state["loss"].tolist(), state["alive"].tolist()
        picture = self.engine.recipe.picture
        for row, victim in enumerate(state["victim"].tolist()):
            history, done = self.history[victim], iterations[row]
            if done > history.noted:
                history.losses.append((done, losses[row]))
            if is_frame(done) and all(done != when for when, _ in history.frames):
                best = state[BEST + picture.name][row : row + 1]
                image = picture.render(best, self.engine.problem)[0]
                history.frames.append((done, image.to("cpu", torch.float16)))
        going = [loss for loss, lives in zip(losses, alive, strict=True) if lives] or losses
        finished = len(self.outcomes) + alive.count(False)
        text = f"loss {fmean(going):.4f}, {finished} of {self.victims} victims done"
        self.bench.watch(max(iterations), self.engine.iterations, text)

    def _restart(self, state: State) -> None:
        """Gives victims whose loss was not finite one more try from another first guess."""
        for row in state["broken"].nonzero().flatten().tolist():
            victim = int(state["victim"][row])
            history = self.history[victim]
            if history.restarts:
                history.failed = True
                state["broken"][row] = False
                continue
            self.history[victim] = History(restarts=1)
            put(state, torch.tensor([row], device=state["alive"].device), self._start([victim], 1))

    def _finish(self, state: State, rows: Tensor) -> None:
        """Takes the outcome of victims that are done."""
        for row in rows.nonzero().flatten().tolist():
            victim = int(state["victim"][row])
            if victim in self.outcomes:
                continue
            best = {n: t[row].clone().cpu() for n, t in under(BEST, state).items()}
            loss, done = float(state["least"][row]), int(state["iterations"][row])
            self.outcomes[victim] = Outcome(loss, done, best)

    def _how_many(self, waiting: Sequence[int]) -> int:
        """As many victims as fit: on a GPU, by what a few of them take."""
        if self.engine.problem.like.device.type != "cuda":
            return on_cpu(self.engine.problem)
        few = list(waiting[:2])
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        state = self.engine.start(few, [self.draw_of(v, 0) for v in few], self.given_of(few))
        self.engine.step(state, self.matcher_of(few))
        torch.cuda.synchronize()
        each = (torch.cuda.max_memory_allocated() - before) / len(few)
        del state
        torch.cuda.empty_cache()
        return max(1, min(len(waiting), int(SHARE * free / each)))

    def _split(self) -> int:
        """Cuts the chunk that memory did not suffice for in two; how many are tried from now on."""
        state = self.begun.pop(0)
        victims = len(state["victim"])
        half = half_of(victims)
        rows = torch.arange(victims, device=state["victim"].device)
        self.begun[:0] = [select(state, rows[:half]), select(state, rows[half:])]
        del state
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.notes.append(f"memory ran out with {victims} victims at once: went on with {half}")
        return half

    def _save(self) -> None:
        """Writes down everything that is needed to go on from here, bit for bit."""
        tensors: dict[str, Tensor] = {}
        for number, state in enumerate(self.begun):
            for name, tensor in state.items():
                if not name.startswith(GIVEN):
                    tensors[f"begun/{number}/{name}"] = tensor
        for victim, outcome in self.outcomes.items():
            for name, tensor in outcome.best.items():
                tensors[f"done/{victim}/{name}"] = tensor
        for victim, history in self.history.items():
            for when, image in history.frames:
                tensors[f"frame/{victim}/{when}"] = image
        facts = {
            "begun": len(self.begun),
            "outcomes": {v: [o.loss, o.iterations] for v, o in self.outcomes.items()},
            "history": {
                v: [h.losses, h.restarts, h.failed, [when for when, _ in h.frames]]
                for v, h in self.history.items()
            },
            "notes": self.notes,
        }
        self.bench.save(tensors, facts)

    def _take_up(self, saved: Saved | None) -> list[int]:
        """Goes back to where an earlier run was saved; the victims that had not begun.

        What was saved is copied into memory that lies as torch's own does: kernels round otherwise
        where it does not.
        """
        everyone = list(range(self.victims))
        if saved is None:
            return everyone
        tensors, facts = saved
        self.notes[:] = facts["notes"]
        for key, (losses, restarts, failed, when) in facts["history"].items():
            frames = [(i, tensors[f"frame/{key}/{i}"]) for i in when]
            curve = [(int(i), float(loss)) for i, loss in losses]
            self.history[int(key)] = History(curve, frames, restarts, failed)
        for key, (loss, iterations) in facts["outcomes"].items():
            best = {n: t.clone() for n, t in under(f"done/{key}/", tensors).items()}
            self.outcomes[int(key)] = Outcome(loss, iterations, best)
        device = self.engine.problem.like.device
        for number in range(facts["begun"]):
            begun = under(f"begun/{number}/", tensors).items()
            state = {n: t.to(device, copy=True) for n, t in begun}
            given = self.given_of(state["victim"].tolist())
            self.begun.append(state | {GIVEN + n: t for n, t in given.items()})
        return [victim for victim in everyone if victim not in self.history]


def half_of(victims: int) -> int:
    """How many to try when memory did not suffice for so many."""
    if victims == 1:
        raise DoesNotFit(
            "memory runs out with a single victim: use a smaller model or smaller images"
        ) from None
    return (victims + 1) // 2


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def on_cpu(problem: Problem) -> int:
    """How many victims fill the processor's vectors but neither its caches nor the memory."""
    tape = Tape(1, names={id(p): name for name, p in problem.model.named_parameters()})
    problem.probed(tape)
    made = sum(call.output[0].numel() for call in tape.calls) * problem.knowledge.batch_size
    weights = sum(p.numel() for p in problem.model.parameters())
    room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    fit = room / (4 * (COPIES * made + 3 * weights))
    return max(1, int(min(fit, MOST_ON_CPU, max(LEAST_ON_CPU, CACHED / max(made, 1)))))


def is_frame(iteration: int) -> bool:
    """Whether an image is kept: at the start, then after 1, 2, 4, 8, ... looks.

    >>> [i for i in range(0, 1001) if is_frame(i)]
    [0, 50, 100, 200, 400, 800]
    """
    looks, rest = divmod(iteration, LOOK)
    return rest == 0 and looks & (looks - 1) == 0
