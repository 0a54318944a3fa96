"""On a CPU: one thread a core, each with victims of its own.

Threads that share one victim's small operations spend more time on waking each other than they
save. Each worker steps some of the victims on a single thread; their states are views of the whole
state, so that nothing needs to be put together again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from keyhole.attacks.matching.engine import Engine, Stepper, stepper
from keyhole.attacks.matching.execution import Matcher
from keyhole.attacks.matching.optimisers import State


def side_by_side(engine: Engine, state: State, matcher: Matcher) -> Stepper:
    """A stepper that shares the victims out among torch's threads, where the matcher allows."""
    threads = torch.get_num_threads()
    shares = torch.arange(len(state["victim"])).chunk(threads)
    forks = [matcher.fork(rows) for rows in shares] if len(shares) > 1 else []
    matchers = [fork for fork in forks if fork is not None]
    if len(matchers) < 2:
        return stepper(engine, state, matcher)
    parts = [share_of(state, slice(int(rows[0]), int(rows[-1]) + 1)) for rows in shares]
    steppers = [stepper(engine, *each) for each in zip(parts, matchers, strict=True)]

    def advance(count: int) -> None:
        workers = ThreadPoolExecutor(
            len(steppers), initializer=torch.set_num_threads, initargs=(1,)
        )
        try:
            with workers:
                for done in [workers.submit(step, count) for step in steppers]:
                    done.result()
        finally:
            torch.set_num_threads(threads)

    return advance


def share_of(state: State, rows: slice) -> State:
    """Some victims' state: the same memory, but (by ``.data``) a version counter of its own.

    autograd would otherwise take another worker's writing for a change of this worker's tensors.
    """
    return {name: tensor.data[rows] for name, tensor in state.items()}
