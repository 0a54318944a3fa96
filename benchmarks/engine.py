"""How fast the gradient-matching engine is, beside a plain PyTorch loop and breaching 0.1.2.

    python benchmarks/engine.py                    # a table
    python benchmarks/engine.py --json             # one JSON object
    python benchmarks/engine.py --models mlp --attack dia --no-breaching

A victim-iteration is one iteration of the attack for one client. The rivals attack one client; the
engine attacks as many at once as it chooses to on the device. ``ratio_to_...`` is a rival's time
for a victim-iteration over the engine's: above 1 the engine is faster.

How it is measured, so that nobody need call it unfair:

- Every contender has a process of its own, and only one of them works at a time. Short runs take
  turns, so that whatever else the machine does hits all alike. A ratio is the median over all
  rounds; ``range_to_...`` gives the least and the greatest. On a busy machine they lie far apart.
- Each rival is timed under several settings, and in every round its FASTEST counts: PyTorch as it
  comes (``default``); with the allocator that keeps memory, which Keyhole sets up for itself, and
  cuDNN's search for its fastest algorithm (``tuned``); and, on a CPU, the same on a single thread
  (``one thread``), which suits small models and busy machines best.
- The engine runs as Keyhole runs it: tuned, on all threads, which wait the way Keyhole has them
  wait. The rivals' threads spin for a while, as PyTorch's do: faster on a quiet machine, but a
  hundred times slower where another process needs the core. OMP_WAIT_POLICY is ignored.
- Setting up is not timed, for nobody: neither the engine's (``engine_setup_seconds``) nor
  breaching's copying and scoring. Warm-up runs are thrown away.
- Everyone computes in the same precision.

breaching is no dependency of Keyhole: without it its ratio is null, and the reason is given.
All four models take about four minutes on two quiet cores, and two or three times that on busy
ones.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

MODELS = ("mlp", "lenet", "vit-small", "resnet18")
LOOKS = 10
"""How often a short run looks at the clock, if one iteration does not take longer."""
WARM_UPS = 3


def run_contender(connection: Connection, name: str, case: dict[str, Any], tuned: bool) -> None:
    """The life of a contender, in its own process."""
    os.environ.pop("OMP_WAIT_POLICY", None)
    if name == "engine":
        import keyhole  # noqa: F401  before torch, as anyone does: it settles how threads wait
    from contenders import serve

    serve(connection, name, case, tuned)


class Rival:
    """A contender in its own process; ``why_not`` says why it does not take part."""

    def __init__(self, name: str, case: dict[str, Any], *, tuned: bool) -> None:
        spawn = get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        arguments = (theirs, name, case, tuned)
        self.process = spawn.Process(target=run_contender, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.name = name
        self.facts: dict[str, Any] = {}
        self.why_not: str | None = None

    def wait_until_ready(self) -> bool:
        """Waits until it is set up; whether it takes part."""
        answer = self._answer()
        if isinstance(answer, str):
            self.why_not = answer
        else:
            self.facts = answer
        return self.why_not is None

    def seconds(self, piece: int, limit: float, threads: int) -> float:
        """How long an iteration takes it; after each ``piece`` of them it looks at the clock."""
        self.connection.send((piece, limit, threads))
        spent, count = self._answer()
        return float(spent / count)

    def stop(self) -> None:
        if self.process.is_alive() and self.why_not is None:
            self.connection.send(None)
        self.process.join()

    def _answer(self) -> Any:
        try:
            return self.connection.recv()
        except EOFError:
            sys.exit(f"{self.name} died; what it said stands above")


@dataclass
class Track:
    """One contender under one setting: how long a victim-iteration took it, each time."""

    rival: Rival
    setting: str
    threads: int
    limit: float
    """Seconds after which a short run ends, at the next look at the clock."""
    piece: int = 1
    milliseconds: list[float] = field(default_factory=list)

    def warm_up(self) -> None:
        """Also finds out how many iterations fill the time between two looks at the clock."""
        once = min(self.rival.seconds(1, 0, self.threads) for _ in range(WARM_UPS))
        self.piece = max(1, round(self.limit / LOOKS / once))

    def run(self) -> None:
        spent = self.rival.seconds(self.piece, self.limit, self.threads)
        self.milliseconds.append(1000 * spent / self.rival.facts.get("victims", 1))

    @property
    def median(self) -> float:
        return median(self.milliseconds)


@dataclass(frozen=True)
class Timing:
    """What was measured on one model."""

    engine: Track
    plain: list[Track]
    breaching: list[Track]
    why_no_breaching: str | None

    def ratios(self, tracks: Sequence[Track]) -> list[float]:
        """Of each round, how many times faster than the fastest of ``tracks`` the engine was."""
        all_tracks = (self.engine, *tracks)
        rounds = zip(*(track.milliseconds for track in all_tracks), strict=True)
        return [min(theirs) / ours for ours, *theirs in rounds if theirs]


def measure(case: dict[str, Any], *, repeats: int, seconds: float, with_breaching: bool) -> Timing:
    """All contenders on one model, in turns of so many ``seconds``."""
    ours = Rival("engine", case, tuned=True)
    if not ours.wait_until_ready():
        sys.exit(ours.why_not)
    others = ["plain", *(["breaching"] if with_breaching else [])]
    rivals = [(Rival(name, case, tuned=tuned), tuned) for name in others for tuned in (False, True)]
    tracks = [Track(ours, "tuned", ours.facts["threads"], seconds)]
    why = None if with_breaching else "left out by --no-breaching"
    for rival, tuned in rivals:
        if rival.wait_until_ready():
            tracks += make_tracks(rival, seconds, tuned=tuned)
        why = rival.why_not or why
    for track in tracks:
        track.warm_up()
    for _ in range(repeats):
        for track in tracks:
            track.run()
    for rival in (ours, *(rival for rival, _ in rivals)):
        rival.stop()
    plain = [track for track in tracks if track.rival.name == "plain"]
    breaching = [track for track in tracks if track.rival.name == "breaching"]
    return Timing(tracks[0], plain, breaching, why)


def make_tracks(rival: Rival, seconds: float, *, tuned: bool) -> list[Track]:
    """The settings under which a rival is timed."""
    threads = rival.facts["threads"]
    found = [Track(rival, "tuned" if tuned else "default", threads, seconds)]
    if tuned and rival.facts["device"] == "cpu" and threads > 1:
        found.append(Track(rival, "one thread", 1, seconds))
    return found


def collect_results(
    arguments: argparse.Namespace, load: float, timings: dict[str, Timing]
) -> dict[str, Any]:
    """Everything that was measured, in plain values."""
    each = timings.items()
    facts = {m: t.engine.rival.facts for m, t in each}
    some = next(iter(facts.values()))
    versions = [t.breaching[0].rival.facts["version"] for t in timings.values() if t.breaching]
    return {
        "device": some["device"],
        "device_name": some["device_name"],
        "attack": arguments.attack,
        "precision": arguments.precision,
        "compiled": arguments.compiled,
        "victims": {m: f["victims"] for m, f in facts.items()},
        "ratio_to_plain_loop": {m: round_median(t.ratios(t.plain)) for m, t in each},
        "ratio_to_breaching": {m: round_median(t.ratios(t.breaching)) for m, t in each},
        "why_no_breaching": {m: t.why_no_breaching for m, t in each if t.why_no_breaching},
        "range_to_plain_loop": {m: round_range(t.ratios(t.plain)) for m, t in each},
        "range_to_breaching": {m: round_range(t.ratios(t.breaching)) for m, t in each},
        "victim_iterations_per_second": {m: round_figure(1000 / t.engine.median) for m, t in each},
        "milliseconds_per_victim_iteration": {m: round_figure(t.engine.median) for m, t in each},
        "plain_loop_ms": {m: median_by_setting(t.plain) for m, t in each},
        "breaching_ms": {m: median_by_setting(t.breaching) for m, t in each},
        "engine_setup_seconds": {
            m: round_figure(t.engine.rival.facts["setup_seconds"]) for m, t in each
        },
        "megabytes_per_victim": {m: f["megabytes_per_victim"] for m, f in facts.items()},
        "backend": {m: f["backend"] for m, f in facts.items()},
        "notes": {m: f["notes"] for m, f in facts.items()},
        "repeats": arguments.repeats,
        "load_before": load,
        "threads": some["threads"],
        "torch": some["torch"],
        "keyhole": find_version("keyhole"),
        "breaching": versions[0] if versions else None,
    }


def find_version(package: str) -> str:
    """A package's version; one that runs from its source tree has none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "from source"


def median_by_setting(tracks: Sequence[Track]) -> dict[str, float] | None:
    """Milliseconds for a victim-iteration under each setting."""
    return {track.setting: round_figure(track.median) for track in tracks} or None


def round_median(values: Sequence[float]) -> float | None:
    return round_figure(median(values)) if values else None


def round_range(values: Sequence[float]) -> list[float] | None:
    return [round_figure(min(values)), round_figure(max(values))] if values else None


def round_figure(value: float) -> float:
    """Four digits say more than enough."""
    return float(f"{value:.4g}")


def format_results(found: dict[str, Any]) -> str:
    """The ratios, and the absolute times behind them."""
    place = f"{found['device']} ({found['device_name']}), {found['threads']} threads"
    head = f"{found['attack']} in {found['precision']} on {place}, torch {found['torch']}, "
    head += f"medians of {found['repeats']} runs"
    names = ("model", "victims", "x plain loop", "x breaching", "victim-it/s", "ms", "plain ms")
    lines = [head, "", "".join(f"{name:>18}" for name in names)]
    for model, victims in found["victims"].items():
        plain = min(found["plain_loop_ms"][model].values())
        cells = (
            model,
            str(victims),
            format_ratio(found["ratio_to_plain_loop"][model], found["range_to_plain_loop"][model]),
            format_ratio(found["ratio_to_breaching"][model], found["range_to_breaching"][model]),
            f"{found['victim_iterations_per_second'][model]:.5g}",
            f"{found['milliseconds_per_victim_iteration'][model]:.4g}",
            f"{plain:.4g}",
        )
        lines.append("".join(f"{cell:>18}" for cell in cells))
    reasons = sorted(set(found["why_no_breaching"].values()))
    return "\n".join([*lines, *(f"no ratio to breaching: {reason}" for reason in reasons)])


def format_ratio(ratio: float | None, span: list[float] | None) -> str:
    """A ratio with its range, or a dash."""
    if ratio is None or span is None:
        return "-"
    return f"{ratio:.3g} ({span[0]:.2g}-{span[1]:.2g})"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--models", default=",".join(MODELS), help="names, joined by commas")
    parser.add_argument("--victims", type=int, help="at once (default: what the engine chooses)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--repeats", type=int, default=7, help="short runs of each contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="that a short run lasts")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument(
        "--attack", choices=("ig", "dia"), default="ig", help="dia: under dropout of 0.25"
    )
    parser.add_argument(
        "--compiled",
        choices=("always", "never"),
        default="never",
        help="whether the engine compiles its step; compiling takes a minute or two, not timed",
    )
    parser.add_argument("--no-breaching", action="store_true", help="leave breaching out")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    load = round_figure(os.getloadavg()[0])
    timings = {}
    for model in arguments.models.split(","):
        print(f"timing {model} ...", file=sys.stderr, flush=True)
        case = {
            "model": model,
            "attack": arguments.attack,
            "device": arguments.device,
            "precision": arguments.precision,
            "victims": arguments.victims,
            "compiled": arguments.compiled,
        }
        timings[model] = measure(
            case,
            repeats=arguments.repeats,
            seconds=arguments.seconds,
            with_breaching=not arguments.no_breaching,
        )
    found = collect_results(arguments, load, timings)
    print(json.dumps(found, indent=2) if arguments.json else format_results(found))


if __name__ == "__main__":
    main()
