"""How many victims are attacked at once."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.errors import DoesNotFit

GPU_MEMORY_SHARE = 0.8
"""The share of free memory that the victims may fill."""
MIN_ON_CPU, MAX_ON_CPU = 32, 128
"""Victims at once on the CPU, if memory allows."""
CACHED_ACTIVATIONS = 1 << 20
"""Activations, over all victims, up to which more victims make the CPU faster."""
ACTIVATION_COPIES = 24
"""How often a step holds each activation, roughly: twice differentiated, unfolded."""
MEASURED_FROM = 100
"""Iterations from which the memory of a step is measured on a CPU, where that costs a step."""


def cpu_chunk_size(problem: MatchingProblem, bytes_each: float | None = None) -> int:
    """The number of victims that fills the processor's vectors but not its caches or memory.

    Args:
        problem: The attack's problem.
        bytes_each: What a victim takes, if it was measured; None: it is reckoned.
    """
    names = {id(p): name for name, p in problem.model.named_parameters()}
    recorder = LayerRecorder(1, names=names)
    problem.probe(recorder)
    outputs = sum(call.output[0].numel() for call in recorder.calls)
    activations = outputs * problem.knowledge.batch_size
    weights = sum(p.numel() for p in problem.model.parameters())
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    fitting = free / (bytes_each or 4 * (ACTIVATION_COPIES * activations + 3 * weights))
    useful = max(MIN_ON_CPU, CACHED_ACTIVATIONS / max(activations, 1))
    return max(1, int(min(fitting, MAX_ON_CPU, useful)))


def gpu_chunk_size(step: Callable[[], None], victims: int) -> tuple[int, float]:
    """The number of victims that fits the GPU, and the bytes that each takes.

    Measured by a ``step`` of so many ``victims``.
    """
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    per_victim = (torch.cuda.max_memory_allocated() - before) / victims
    torch.cuda.empty_cache()
    return int(GPU_MEMORY_SHARE * free / per_victim), per_victim


def describe_chunk(victims: int, bytes_each: float, memory: str = "GPU memory") -> str:
    """Says in a finding how many victims were attacked at once, and the memory they took.

    >>> describe_chunk(128, 31.4e6)
    '128 victims at once, about 31 MB of GPU memory each (measured)'
    >>> describe_chunk(1, 0.41e6, "memory")
    '1 victim at once, about 0.4 MB of memory each (measured)'
    """
    megabytes = bytes_each / 1e6
    size = f"{megabytes:.0f}" if megabytes >= 10 else f"{megabytes:.1g}"
    plural = "" if victims == 1 else "s"
    return f"{victims} victim{plural} at once, about {size} MB of {memory} each (measured)"


def halve(victims: int) -> int:
    """How many victims to try when memory ran out with so many."""
    if victims == 1:
        raise DoesNotFit(
            "memory runs out with a single victim: use a smaller model or smaller images"
        ) from None
    return (victims + 1) // 2
