"""What bounds an iteration of the engine: time, FLOPs and bytes by kind of operation.

    python benchmarks/roofline.py                                     # small, on a CPU
    python benchmarks/roofline.py --device cuda --models resnet18 --victims 128 --precision bf16
    python benchmarks/roofline.py --device cuda --models vit-small --victims 128 --attack dia \\
        --precision tf32 --trace trace.json

Steps are run operation by operation, neither compiled nor recorded in a graph, so that each
operation's time is its own: on a GPU that of its kernels, without launching, of which the lower
quartile over the steps counts; on a CPU its wall time, of which the least counts, because other
processes only add to it. FLOPs are those of products and convolutions, two per multiplication and
addition; bytes are what an operation reads and writes if no cache helps. The roof of an operation
is the time that its FLOPs or its bytes take at the machine's best, whichever is more: measured
first, by a large product and a large copy.
``--trace`` keeps the profiler's trace of one step, for chrome://tracing or Perfetto.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from contenders import Case, make_runner, observe, use_settings, wait_for
from growth import describe_machine
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from keyhole.attacks import ATTACKS, Matching
from keyhole.attacks.matching.cpu_products import multiply_fast

KINDS = {
    "products": ("mm", "bmm", "addmm", "baddbmm", "dot", "mv"),
    "convolutions": ("convolution", "convolution_backward"),
    "folding": ("col2im", "im2col"),
    "norms and softmax": ("batch_norm", "layer_norm", "softmax"),
    "copies": ("copy_", "_to_copy", "clone", "cat", "stack", "fill_", "zero_", "index"),
    "sums": ("sum", "mean", "norm", "amax", "argmax", "any", "all"),
}
"""Kinds of operations, by parts of their names; all others are counted as elementwise."""
EXACT = ("products", "convolutions")
PEAK_SIDE, PEAK_NUMBERS = 4096, 1 << 26


class WorkCounter(TorchDispatchMode):
    """Counts FLOPs and bytes of every operation that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        packet = func.overloadpacket
        kind = find_kind(packet.__name__)
        if packet in flop_registry:
            self.flops[kind] += flop_registry[packet](*args, **kwargs, out_val=out)
        tensors = flatten([*args, *kwargs.values(), out])
        self.bytes[kind] += sum(t.numel() * t.element_size() for t in tensors)
        return out


def flatten(values: Any) -> list[Tensor]:
    """The tensors among values and in lists of them."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += flatten(value)
    return found


def find_kind(name: str) -> str:
    """The kind of an operation.

    >>> find_kind("aten::bmm"), find_kind("native_batch_norm"), find_kind("mul")
    ('products', 'norms and softmax', 'elementwise')
    """
    plain = name.removeprefix("aten::")
    for kind, parts in KINDS.items():
        if kind == "norms and softmax":
            if any(part in plain for part in parts):
                return kind
        elif plain in parts or (kind == "convolutions" and "conv" in plain):
            return kind
    return "elementwise"


def measure_peaks(device: str, precision: str) -> tuple[float, float]:
    """The most FLOPs and bytes per second that a large product and a large copy reach."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    side = PEAK_SIDE if device == "cuda" else PEAK_SIDE // 4
    count = PEAK_NUMBERS if device == "cuda" else PEAK_NUMBERS // 4
    square = torch.ones(side, side, device=device, dtype=dtype)
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    with multiply_fast():
        product = best_time(lambda: square @ square, device)
    return 2 * side**3 / product, 8 * count / best_time(lambda: target.copy_(source), device)


def best_time(work: Callable[[], object], device: str, turns: int = 20) -> float:
    """The least time of some work; on a CPU its processor time, which others change least."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    seconds = []
    for _ in range(turns + 1):
        began = clock()
        work()
        wait_for(device)
        seconds.append(clock() - began)
    return min(seconds[1:])


def make_step(case: Case, victims: int) -> Callable[[], None]:
    """One step of the engine, operation by operation."""
    attack = ATTACKS.parse(f"{case.attack}(precision={case.precision!r})")
    assert isinstance(attack, Matching)
    runner = make_runner(attack, observe(case, victims))
    state = runner._start(range(victims), attempt=0)
    matcher = runner.make_matcher(range(victims))

    def step() -> None:
        with multiply_fast():
            runner.engine.step(state, matcher)

    return step


def time_kinds(step: Callable[[], None], device: str, steps: int, trace: Path | None) -> Any:
    """Seconds of each kind of operation in a step."""
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    runs: list[list[tuple[str, float]]] = []
    for _ in range(steps):
        with profile(activities=activities) as profiler:
            step()
            wait_for(device)
        spent = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
        events = [e for e in profiler.events() if e.name.startswith("aten::")]
        runs.append([(e.name, float(getattr(e, spent))) for e in events])
        if trace is not None:
            profiler.export_chrome_trace(str(trace))
            trace = None
    length = Counter(len(run) for run in runs).most_common(1)[0][0]
    same = [run for run in runs if len(run) == length]
    seconds: dict[str, float] = defaultdict(float)
    for calls in zip(*same, strict=True):
        times = sorted(microseconds for _, microseconds in calls)
        seconds[find_kind(calls[0][0])] += (
            times[len(times) // 4] if device == "cuda" else times[0]
        ) * 1e-6
    return seconds


def measure(case: Case, victims: int, steps: int, trace: Path | None) -> dict[str, Any]:
    """Each kind's time, FLOPs, bytes, roof and what bounds it, per victim-iteration."""
    with use_settings(case.precision, tuned=True):
        step = make_step(case, victims)
        step()
        with WorkCounter() as counted:
            step()
        seconds = time_kinds(step, case.device, steps, trace)
        flops_peak, bytes_peak = measure_peaks(case.device, case.precision)
    rows, total = [], sum(seconds.values())
    for kind in sorted(seconds, key=lambda kind: -seconds[kind]):
        by_flops, by_bytes = counted.flops[kind] / flops_peak, counted.bytes[kind] / bytes_peak
        rows.append(
            {
                "kind": kind,
                "share": round(seconds[kind] / total, 3),
                "microseconds": round(seconds[kind] / victims * 1e6, 2),
                "megaflops": round(counted.flops[kind] / victims / 1e6, 2),
                "megabytes": round(counted.bytes[kind] / victims / 1e6, 3),
                "roof_microseconds": round(max(by_flops, by_bytes) / victims * 1e6, 2),
                "bound_by": "arithmetic" if by_flops > by_bytes else "memory",
            }
        )
    return {
        "victims": victims,
        "microseconds": round(total / victims * 1e6, 2),
        "peak_gigaflops": round(flops_peak / 1e9, 1),
        "peak_gigabytes": round(bytes_peak / 1e9, 1),
        "rows": rows,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--models", default="lenet")
    parser.add_argument("--attack", choices=("ig", "dia"), default="ig")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument("--victims", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="threads of a CPU")
    parser.add_argument("--trace", type=Path, help="file for the profiler's trace of one step")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(chosen.threads)
    found: dict[str, Any] = {
        "command": " ".join(["python benchmarks/roofline.py", *(argv or sys.argv[1:])]),
        "machine": describe_machine(chosen.device),
        "torch": torch.__version__,
        "attack": chosen.attack,
        "precision": chosen.precision,
        "threads": chosen.threads,
        "steps": chosen.steps,
        "models": {},
    }
    for model in chosen.models.split(","):
        case = Case(model, chosen.attack, chosen.device, chosen.precision, chosen.victims)
        found["models"][model] = measure(case, chosen.victims, chosen.steps, chosen.trace)
    if chosen.json:
        print(json.dumps(found, indent=2))
        return
    for model, result in found["models"].items():
        print(
            f"{model}: {result['microseconds']:g} us per victim-iteration; the machine does "
            f"{result['peak_gigaflops']:g} GFLOP/s and {result['peak_gigabytes']:g} GB/s"
        )
        for row in result["rows"]:
            print(
                f"  {row['kind']:<20}{row['share']:>6.1%}{row['microseconds']:>10.1f} us"
                f"{row['megaflops']:>10.1f} MFLOP{row['megabytes']:>9.2f} MB"
                f"   roof {row['roof_microseconds']:>8.1f} us, {row['bound_by']}"
            )


if __name__ == "__main__":
    main()
