"""How fast a round of Keyhole's own federation is, beside Flower's simulation (Ray).

    python benchmarks/federation.py                    # a table
    python benchmarks/federation.py --json             # one JSON object
    python benchmarks/federation.py --clients 10 --repeats 3
    python benchmarks/federation.py --clients 10 --no-flower   # without the extra `flower`

A round sends the weights to all clients, lets each train, and averages what comes back. Keyhole's
clients train one by one, on all threads or on one, and together, as one more tensor axis.
``flower_over_...`` is Flower's time for a round over ours: above 1 ours is faster.

How it is measured, so that nobody need call it unfair:

- Everyone trains the same model on the same images by the same loop, so what differs is what stands
  around it; ``greatest_difference`` says how far apart the weights are after the last round.
- All are timed in one run and take turns, round by round, so that whatever else the machine does
  hits all alike. A ratio is the median over all turns; ``range_...`` gives least and greatest.
- Flower has an actor for every core, of one thread each, and its clients load their data only once.
  Its first round, in which Ray starts and the actors import torch, does not count
  (``flower_first_round_seconds``); nor does everyone's first.
- Nothing is evaluated and nothing written down. While ours trains, Ray is idle but there.

10 and 100 clients take about two minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as Keyhole sets it, before torch starts
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch

from keyhole.federation import Federation, TrainingPlan, build_federation
from keyhole.federation.backends import Backend, LoopTrainer, VmapTrainer

if TYPE_CHECKING:
    from flwr.serverapp import Grid

OURS = ("one_by_one", "on_one_thread", "together")
WAYS = (*OURS, "flower")


@dataclass
class Race:
    """All ways to train the clients of one plan, and how long each took for a round, each time."""

    plan: TrainingPlan
    with_flower: bool = True
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    flower_first_round: float = 0.0
    difference: float = 0.0

    def run(self, repeats: int) -> None:
        if not self.with_flower:
            self.take_turns(None, repeats)
            return
        from flower_rounds import make_client_app
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        app = ServerApp()
        app.main()(lambda grid, context: self.take_turns(grid, repeats))
        resources = {"num_cpus": 1, "num_gpus": 0.0}
        run_simulation(
            app,
            make_client_app(self.plan),
            self.plan.clients,
            backend_config={"client_resources": resources},
        )

    def take_turns(self, grid: Grid | None, repeats: int) -> None:
        """The server's work: a round each, again and again; the first ones do not count."""
        alone, single, crowd = (
            make_federation(self.plan, backend)
            for backend in (LoopTrainer(), LoopTrainer(), VmapTrainer())
        )
        rounds: dict[str, Callable[[int], object]] = {
            "one_by_one": alone.run_round,
            "on_one_thread": on_one_thread(single.run_round),
            "together": crowd.run_round,
        }
        if grid is not None:
            from flower_rounds import FlowerRounds

            flower = FlowerRounds(self.plan, grid)
            rounds["flower"] = flower.round
        for number in range(1, repeats + 2):
            spent = {way: time_round(work, number) for way, work in rounds.items()}
            if number == 1:
                self.flower_first_round = spent.get("flower", 0.0)
                continue
            for way, seconds in spent.items():
                self.seconds[way].append(seconds)
        trained = [f.model.state_dict() for f in (alone, single, crowd)]
        trained += [flower.weights()] if grid is not None else []
        self.difference = max(
            float((other[name] - tensor).abs().max())
            for other in trained[1:]
            for name, tensor in trained[0].items()
        )

    def facts(self) -> dict[str, Any]:
        """Ratios first, then the seconds behind them."""
        found: dict[str, Any] = {}
        ways = WAYS if self.with_flower else OURS
        for ours in OURS if self.with_flower else ():
            pairs = zip(self.seconds["flower"], self.seconds[ours], strict=True)
            ratios = [flower / our for flower, our in pairs]
            found[f"flower_over_{ours}"] = round_figure(median(ratios))
            found[f"range_flower_over_{ours}"] = [
                round_figure(min(ratios)),
                round_figure(max(ratios)),
            ]
        found |= {f"{way}_seconds": round_figure(median(self.seconds[way])) for way in ways}
        if self.with_flower:
            found["flower_first_round_seconds"] = round_figure(self.flower_first_round)
        found["greatest_difference"] = round_figure(self.difference)
        return found


def make_federation(plan: TrainingPlan, backend: Backend) -> Federation:
    """Keyhole's federation; it evaluates on one image only, as Flower's does not evaluate."""
    federation = build_federation(plan, data_dir=None)
    data, indices = federation.test
    federation.test, federation.backend = (data, indices[:1]), backend
    return federation


def time_round(work: Callable[[int], object], number: int) -> float:
    began = time.perf_counter()
    work(number)
    return time.perf_counter() - began


def on_one_thread(work: Callable[[int], object]) -> Callable[[int], object]:
    """The same work where torch has one thread only."""

    def quietly(number: int) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            work(number)
        finally:
            torch.set_num_threads(threads)

    return quietly


def round_figure(value: float) -> float:
    """Three digits say more than enough."""
    return float(f"{value:.3g}")


def collect_results(
    plans: dict[int, TrainingPlan], races: dict[int, Race], load: float
) -> dict[str, Any]:
    """Everything that was measured, in plain values."""
    some = next(iter(plans.values()))
    race = next(iter(races.values()))
    packages = ("flwr", "ray", "torch") if race.with_flower else ("torch",)
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "clients": {str(count): race.facts() for count, race in races.items()},
        "model": some.model,
        "data": some.data,
        "images_a_client": some.images,
        "local_steps": some.training.count_steps(some.images or 1),
        "batch_size": some.batch_size,
        "repeats": len(race.seconds["one_by_one"]),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_before": round_figure(load),
        **versions,
    }


def format_results(found: dict[str, Any]) -> str:
    """The ratios, and the absolute times behind them."""
    head = f"{found['model']} on {found['data']}, {found['images_a_client']} images a client, "
    head += f"{found['local_steps']} local steps; {found['cores']} cores, torch {found['torch']}, "
    head += f"flwr {found.get('flwr', 'left out')}, medians of {found['repeats']} rounds"
    names = ("clients", *(f"Flower x {way.replace('_', ' ')}" for way in OURS), "seconds")
    lines = [head, "", "".join(f"{name:>24}" for name in names)]
    for clients, facts in found["clients"].items():
        cells = [clients]
        for ours in OURS:
            if f"flower_over_{ours}" not in facts:
                cells.append("-")
                continue
            low, high = facts[f"range_flower_over_{ours}"]
            cells.append(f"{facts[f'flower_over_{ours}']:.3g} ({low:.2g}-{high:.2g})")
        timed_ways = [f"{way}_seconds" for way in WAYS if f"{way}_seconds" in facts]
        cells.append(", ".join(f"{facts[way]:.2g}" for way in timed_ways))
        lines.append("".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--clients", default="10,100", help="how many, joined by commas")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--no-flower", action="store_true", help="leave Flower out")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of each contender")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    load = os.getloadavg()[0]
    plans = {
        count: TrainingPlan(model=arguments.model, clients=count, images=14, batch_size=7)
        for count in map(int, arguments.clients.split(","))
    }
    races = {}
    for count, plan in plans.items():
        print(f"timing {count} clients ...", file=sys.stderr, flush=True)
        races[count] = Race(plan, with_flower=not arguments.no_flower)
        races[count].run(arguments.repeats)
    found = collect_results(plans, races, load)
    print(json.dumps(found, indent=2) if arguments.json else format_results(found))


if __name__ == "__main__":
    main()
