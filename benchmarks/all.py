"""All benchmarks that compare Keyhole with others, one after another, in one table of ratios.

    python benchmarks/all.py                     # short, on a CPU: a few minutes (make bench)
    python benchmarks/all.py --device cuda       # on a GPU (make bench-gpu)
    python benchmarks/all.py --out results/bench # also every benchmark's JSON, whole

A ratio is a rival's time over ours, measured in one run: above 1 ours is faster. What each
benchmark compares, and how, stands in its own file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RATIOS = ("ratio", "_over_", " over ")
"""What the name of a ratio contains; ranges of ratios are left out."""

RUNS: dict[str, dict[str, str]] = {
    "cpu": {
        "engine": "engine.py --models lenet,vit-small --repeats 3 --no-breaching --device cpu",
        "federation": "federation.py --clients 10 --repeats 3 --no-flower",
        "training": "training.py --cases lenet:4x16,resnet18:2x16 --images 32 --device cpu",
        "csvar": "csvar.py --images 4 --turns 3",
        "tip": "tip.py --model lenet --images 2 --turns 3",
    },
    "cuda": {
        "engine ig": "engine.py --models resnet18,vit-small --victims 128 --device cuda",
        "engine ig bf16": "engine.py --models resnet18 --victims 128 --device cuda "
        "--precision bf16",
        "engine dia": "engine.py --models vit-small --victims 128 --device cuda --attack dia",
        "engine dia tf32": "engine.py --models vit-small --victims 128 --device cuda --attack dia "
        "--precision tf32",
        "training": "training.py --device cuda --ways graph,graph:2,graph:4,vmap,loop",
    },
}


def run_benchmark(line: str) -> dict[str, Any]:
    """Runs one benchmark in a process of its own and returns its JSON."""
    script, *arguments = line.split()
    command = [sys.executable, str(HERE / script), *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return {"failed": done.returncode}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def find_ratios(
    found: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, float]]:
    """Yields every ratio in a benchmark's JSON, with where it stands.

    >>> list(find_ratios({"cases": {"mlp": {"ratio": 2.0, "range": [1.0, 3.0]}}}))
    [('cases, mlp, ratio', 2.0)]
    """
    for name, value in found.items():
        own = (*path, str(name))
        if isinstance(value, Mapping):
            yield from find_ratios(value, own)
        elif isinstance(value, int | float) and any(part in " ".join(own) for part in RATIOS):
            yield ", ".join(own), float(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--device", choices=tuple(RUNS), default="cpu")
    parser.add_argument("--only", help="benchmarks, joined by commas")
    parser.add_argument("--out", type=Path, help="folder for every benchmark's JSON")
    arguments = parser.parse_args(argv)
    runs = RUNS[arguments.device]
    chosen = arguments.only.split(",") if arguments.only else list(runs)
    found: dict[str, Any] = {}
    for name in chosen:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        found[name] = run_benchmark(runs[name])
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            path = arguments.out / f"{arguments.device}-{name.replace(' ', '-')}.json"
            path.write_text(json.dumps(found[name], indent=2) + "\n", encoding="utf-8")
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, result in found.items():
        rows = list(find_ratios(result)) if "failed" not in result else [("failed", float("nan"))]
        for what, ratio in rows:
            print(f"{name:<18}{what:<60}{ratio:>10.3g}")


if __name__ == "__main__":
    main()
