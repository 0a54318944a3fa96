"""Runs the engine on every victim: in chunks, through failures, and resumed after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from keyhole.attacks.checkpointer import Checkpointer, Saved
from keyhole.attacks.matching.allocator import keep_memory
from keyhole.attacks.matching.chunk_size import (
    MEASURED_FROM,
    cpu_chunk_size,
    describe_chunk,
    gpu_chunk_size,
    halve,
)
from keyhole.attacks.matching.compiled_step import (
    Compilation,
    compiling_pays,
    make_compiled_step,
)
from keyhole.attacks.matching.cuda_graph import make_graph_stepper
from keyhole.attacks.matching.engine import BEST, Engine, Stepper, repeat_step
from keyhole.attacks.matching.gradients.matchers import Matcher
from keyhole.attacks.matching.live_memory import measure_peak
from keyhole.attacks.matching.progress import Progress, tensors_under
from keyhole.attacks.matching.state import (
    KNOWN,
    History,
    Outcome,
    State,
    overwrite_rows,
    select_rows,
)
from keyhole.attacks.matching.threads import make_threaded_stepper
from keyhole.interrupts import INTERRUPTS
from keyhole.memory import ran_out_of_memory

CHECK_INTERVAL = 50
"""Iterations between two reports on the victims' progress."""
SHRINK_BELOW = 0.75
"""The batch shrinks when no more than this share of it is still alive."""
SHRINK_GRAPH_BELOW = 0.5
"""The same on a GPU, where a smaller batch means capturing a new CUDA graph."""


@dataclass
class Runner:
    """Runs one attack on a list of victims."""

    engine: Engine
    make_matcher: Callable[[Sequence[int]], Matcher]
    """Makes the matcher of some victims."""
    known_values: Callable[[Sequence[int]], State]
    """Returns what is known about some victims, ``[N, ...]``."""
    make_generator: Callable[[int, int], torch.Generator]
    """Makes the generator of a victim's first guess, given the victim and the attempt (0 or 1)."""
    victims: int
    checkpointer: Checkpointer
    compilation: Compilation = "auto"
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    history: dict[int, History] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    active: list[State] = field(default_factory=list)
    """Chunks that have started and are not done; more than one only after memory ran out."""

    def run(self) -> None:
        """Fills ``outcomes`` and ``history`` for every victim; Ctrl-C waits for a saved state."""
        keep_memory()
        with INTERRUPTS.deferred():
            self._run_chunks()
        INTERRUPTS.check()

    def _run_chunks(self) -> None:
        waiting = self._resume(self.checkpointer.load())
        size = self.checkpointer.victims_at_once
        while self.active or waiting:
            try:
                if not self.active:
                    size = size or self._choose_chunk_size(waiting)
                    self.active.append(self._start(waiting[:size], attempt=0))
                    waiting = waiting[size:]
                self._finish_first_chunk()
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                size = self._split_chunk() if self.active else halve(size or len(waiting))
        self._save()

    def _start(self, victims: Sequence[int], attempt: int) -> State:
        """The state of some victims at their first guesses; opens their histories."""
        generators = [self.make_generator(victim, attempt) for victim in victims]
        for victim in victims:
            self.history.setdefault(victim, History(restarts=attempt))
        return self.engine.start(victims, generators, self.known_values(victims))

    def _finish_first_chunk(self) -> None:
        """Runs the first active chunk until every victim in it is done."""
        state = self.active[0]
        matcher = self.make_matcher(state["victim"].tolist())
        advance = self._make_stepper(state, matcher, self.engine.iterations)
        self._report_progress(state)
        while bool((state["alive"] | state["broken"]).any()):
            self._advance(advance, min(CHECK_INTERVAL, self._iterations_left(state)))
            self._restart_broken(state)
            self._report_progress(state)
            if self._out_of_time():
                self._stop_all(state)
            alive = state["alive"]
            share = SHRINK_GRAPH_BELOW if alive.is_cuda else SHRINK_BELOW
            if 0 < int(alive.sum()) <= share * len(alive):
                self._collect_outcomes(state, ~alive)
                rows = alive.nonzero().flatten()
                state, matcher = select_rows(state, rows), matcher.select(rows)
                self.active[0] = state
                advance = self._make_stepper(state, matcher, self._iterations_left(state))
            if self.checkpointer.due() or INTERRUPTS.asked:
                self._save()
                INTERRUPTS.check()
        self._collect_outcomes(state, ~state["alive"])
        del self.active[0]

    def _advance(self, advance: Stepper, steps: int) -> None:
        """Takes the steps to the next report; one by one if there is a deadline."""
        if self.checkpointer.deadline is None:
            advance(steps)
            return
        for _ in range(steps):
            advance(1)
            if self._out_of_time():
                return

    def _out_of_time(self) -> bool:
        return (
            self.checkpointer.deadline is not None
            and time.monotonic() >= self.checkpointer.deadline
        )

    def _stop_all(self, state: State) -> None:
        """Ends every victim with its best values; one that never had a finite loss has failed."""
        for row in (~state["least"].isfinite()).nonzero().flatten().tolist():
            self.history[int(state["victim"][row])].failed = True
        state["alive"].fill_(False)
        state["broken"].fill_(False)

    def _iterations_left(self, state: State) -> int:
        """Iterations until the last victim has had all of its own."""
        running = state["iterations"][state["alive"] | state["broken"]]
        return max(1, self.engine.iterations - int(running.min()))

    def _make_stepper(self, state: State, matcher: Matcher, iterations: int) -> Stepper:
        """The fastest stepper for some victims that so many iterations at most await.

        A note says what could not be done.
        """
        is_cuda, step = state["alive"].is_cuda, None
        steps = iterations * self._chunks_to_come(state)
        if compiling_pays(self.compilation, matcher, steps, state):
            step, note = make_compiled_step(self.engine, state, matcher)
            self._add_note(note)
        if not is_cuda:
            if step is not None:
                return repeat_step(step)
            return make_threaded_stepper(self.engine, state, matcher)
        plain = partial(self.engine.step, state, matcher)
        advance, note = make_graph_stepper(step or plain, state)
        self._add_note(note)
        return advance

    def _chunks_to_come(self, state: State) -> int:
        """The number of chunks of this size: this one, and those of victims not yet started."""
        return 1 + (self.victims - len(self.history)) // max(1, len(state["alive"]))

    def _add_note(self, note: str | None) -> None:
        if note is not None and note not in self.notes:
            self.notes.append(note)

    def _report_progress(self, state: State) -> None:
        """Records losses and, ever more rarely, the images, and tells the checkpointer."""
        iterations = state["iterations"].int().tolist()
        losses, alive = state["loss"].tolist(), state["alive"].tolist()
        unknown = self.engine.parts.images
        for row, victim in enumerate(state["victim"].tolist()):
            history, done = self.history[victim], iterations[row]
            if done > history.last_iteration:
                history.losses.append((done, losses[row]))
            if is_frame_iteration(done) and all(done != when for when, _ in history.frames):
                best = state[BEST + unknown.name][row : row + 1]
                image = unknown.render(best, self.engine.problem)[0]
                history.frames.append((done, image.to("cpu", torch.float16)))
        running = [loss for loss, lives in zip(losses, alive, strict=True) if lives] or losses
        finished = len(self.outcomes) + alive.count(False)
        text = f"loss {fmean(running):.4f}, {finished} of {self.victims} victims done"
        self.checkpointer.watch(max(iterations), self.engine.iterations, text)

    def _restart_broken(self, state: State) -> None:
        """Restarts victims whose loss was not finite, once, from another first guess."""
        for row in state["broken"].nonzero().flatten().tolist():
            victim = int(state["victim"][row])
            history = self.history[victim]
            if history.restarts:
                history.failed = True
                state["broken"][row] = False
                continue
            self.history[victim] = History(restarts=1)
            rows = torch.tensor([row], device=state["alive"].device)
            overwrite_rows(state, rows, self._start([victim], 1))

    def _collect_outcomes(self, state: State, rows: Tensor) -> None:
        """Stores the outcomes of victims that are done."""
        for row in rows.nonzero().flatten().tolist():
            victim = int(state["victim"][row])
            if victim in self.outcomes:
                continue
            best = {n: t[row].clone().cpu() for n, t in tensors_under(BEST, state).items()}
            loss, done = float(state["least"][row]), int(state["iterations"][row])
            self.outcomes[victim] = Outcome(loss, done, best)

    def _choose_chunk_size(self, waiting: Sequence[int]) -> int:
        """The number of victims that fit, measured with two of them where a step costs little."""
        on_gpu = self.engine.problem.like.device.type == "cuda"
        if not on_gpu and self.engine.iterations < MEASURED_FROM:
            return cpu_chunk_size(self.engine.problem)
        few = list(waiting[:2])

        def step() -> None:
            generators = [self.make_generator(victim, 0) for victim in few]
            state = self.engine.start(few, generators, self.known_values(few))
            self.engine.step(state, self.make_matcher(few))

        if on_gpu:
            fitting, bytes_each = gpu_chunk_size(step, len(few))
        else:
            bytes_each = measure_peak(step) / len(few)
            fitting = cpu_chunk_size(self.engine.problem, bytes_each)
        chosen = max(1, min(len(waiting), fitting))
        kind = "GPU memory" if on_gpu else "memory"
        self.notes.append(describe_chunk(chosen, bytes_each, kind))
        return chosen

    def _split_chunk(self) -> int:
        """Splits the chunk that did not fit into memory; returns the size of chunks from now on."""
        state = self.active.pop(0)
        victims = len(state["victim"])
        half = halve(victims)
        rows = torch.arange(victims, device=state["victim"].device)
        self.active[:0] = [select_rows(state, rows[:half]), select_rows(state, rows[half:])]
        del state
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.notes.append(f"memory ran out with {victims} victims at once: went on with {half}")
        return half

    def _save(self) -> None:
        """Saves everything that is needed to continue from here, bit for bit."""
        progress = Progress(self.active, self.outcomes, self.history, self.notes)
        self.checkpointer.save(*progress.pack())

    def _resume(self, saved: Saved | None) -> list[int]:
        """Restores the state of an earlier run; returns the victims that had not started."""
        if saved is not None:
            progress = Progress.unpack(saved, self.engine.problem.like.device)
            self.notes[:] = progress.notes
            self.history.update(progress.history)
            self.outcomes.update(progress.outcomes)
            for state in progress.active:
                known = self.known_values(state["victim"].tolist())
                self.active.append(state | {KNOWN + n: t for n, t in known.items()})
        return [victim for victim in range(self.victims) if victim not in self.history]


def is_frame_iteration(iteration: int) -> bool:
    """Whether an image is kept at an iteration: the first, then after 1, 2, 4, 8, ... reports.

    >>> [i for i in range(0, 1001) if is_frame_iteration(i)]
    [0, 50, 100, 200, 400, 800]
    """
    reports, rest = divmod(iteration, CHECK_INTERVAL)
    return rest == 0 and reports & (reports - 1) == 0
