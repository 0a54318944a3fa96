"""Captures a whole step in one CUDA graph, so that the GPU does not wait for kernel launches."""

from __future__ import annotations

import torch

from keyhole.attacks.matching.engine import Step, Stepper, repeat_step
from keyhole.attacks.matching.state import KNOWN, State
from keyhole.errors import one_line

WARM_UP = 2
"""Steps taken before capture, so that libraries choose their kernels; they are undone."""


def make_graph_stepper(step: Step, state: State) -> tuple[Stepper, str | None]:
    """A stepper that replays one captured step, or a plain one and why the capture failed.

    ``step`` changes ``state`` in place.
    """
    before = {n: t.clone() for n, t in state.items() if not n.startswith(KNOWN)}
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    try:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            step()
        note = None
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize()
        note = f"stepped without a CUDA graph: capture failed ({one_line(error)})"
    finally:
        for name, tensor in before.items():
            state[name].copy_(tensor)
    if note is not None:
        return repeat_step(step), note

    def replay(count: int) -> None:
        for _ in range(count):
            graph.replay()

    return replay, None
