"""The whole step as one CUDA graph: launching thousands of small kernels is what GPUs wait for."""

from __future__ import annotations

import torch

from keyhole.attacks.matching.engine import Engine, Stepper, stepper
from keyhole.attacks.matching.execution import Matcher
from keyhole.attacks.matching.optimisers import State
from keyhole.attacks.matching.state import GIVEN
from keyhole.errors import one_line

WARM_UP = 2
"""Steps taken before capture, so that libraries have made their choices; they are undone."""


def graphed(engine: Engine, state: State, matcher: Matcher) -> tuple[Stepper, str | None]:
    """A stepper that replays one captured step, or a plain one and why it could not be captured."""
    before = {n: t.clone() for n, t in state.items() if not n.startswith(GIVEN)}
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    try:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                engine.step(state, matcher)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            engine.step(state, matcher)
        why = None
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize()
        why = f"stepped without a CUDA graph: capture failed ({one_line(error)})"
    finally:
        for name, tensor in before.items():
            state[name].copy_(tensor)
    if why is not None:
        return stepper(engine, state, matcher), why

    def replay(count: int) -> None:
        for _ in range(count):
            graph.replay()

    return replay, None
