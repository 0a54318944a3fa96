"""Threads on a CPU: one per core, each with its own victims.

Threads that share one victim's small operations spend more time on waking each other than they
save. Each worker steps some of the victims on a single thread. Its state is a view of the whole
state, so that nothing needs to be merged afterwards.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from keyhole.attacks.matching.cpu_products import multiply_fast
from keyhole.attacks.matching.engine import Engine, Stepper, make_stepper
from keyhole.attacks.matching.gradients.matchers import Matcher
from keyhole.attacks.matching.state import State


def make_threaded_stepper(engine: Engine, state: State, matcher: Matcher) -> Stepper:
    """A stepper that distributes the victims over torch's threads if the matcher can be forked."""
    threads = torch.get_num_threads()
    shares = torch.arange(len(state["victim"])).chunk(threads)
    forks = [matcher.fork(rows) for rows in shares] if len(shares) > 1 else []
    matchers = [fork for fork in forks if fork is not None]
    if len(matchers) < 2:
        return multiplying_fast(make_stepper(engine, state, matcher))
    views = [slice_state(state, slice(int(rows[0]), int(rows[-1]) + 1)) for rows in shares]
    steppers = [make_stepper(engine, *pair) for pair in zip(views, matchers, strict=True)]

    def advance(count: int) -> None:
        workers = ThreadPoolExecutor(
            len(steppers), initializer=torch.set_num_threads, initargs=(1,)
        )
        try:
            with workers:
                for future in [workers.submit(step, count) for step in steppers]:
                    future.result()
        finally:
            torch.set_num_threads(threads)

    return multiplying_fast(advance)


def multiplying_fast(advance: Stepper) -> Stepper:
    """The same stepper, while a CPU multiplies by the faster library."""

    def advance_fast(count: int) -> None:
        with multiply_fast():
            advance(count)

    return advance_fast


def slice_state(state: State, rows: slice) -> State:
    """The state of some victims: the same memory, but (by ``.data``) its own version counter.

    Otherwise autograd would take another worker's writes for a change of this worker's tensors.
    """
    return {name: tensor.data[rows] for name, tensor in state.items()}
