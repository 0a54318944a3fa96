"""Makes the map of regimes that ships with Keyhole from the repository's results.

    python tools/regimes_table.py src/keyhole/auditing/regimes.json

Run it again whenever ``results/regimes`` gains a result of ``keyhole study regimes``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keyhole.atomic import write_text
from keyhole.auditing import MappedRegime
from keyhole_studies import load_study
from keyhole_studies.base import Study
from keyhole_studies.regimes.points import Point, collect_points
from keyhole_studies.result_files import Results, read_results

ROOT = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the shipped map of regimes.")
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="the results")
    given = parser.parse_args(argv)
    rows = list(map_regimes(given.results))
    write_text(given.out, format_map(rows))
    print(f"{len(rows)} regimes")
    return 0


def map_regimes(results: Path) -> Iterator[MappedRegime]:
    """What the results say, in the study's order; what does not fit is left out."""
    study = load_study("regimes")
    found: Results = read_results(results / "regimes", [e.name for e in study.experiments])
    by_key = {key_of(result): result for result in found.values() if "network" in result}
    for key, point in collect_points(study, found).items():
        if not point.unfit:
            yield map_one(study, point, by_key[key])


def key_of(result: Mapping[str, Any]) -> tuple[Any, ...]:
    """The regime of a result, as points name it."""
    return tuple(result[name] for name in ("network", "weights", "batch", "local", "server"))


def map_one(study: Study, point: Point, result: Mapping[str, Any]) -> MappedRegime:
    """One line of the map."""
    network, weights, batch, local, server = point.key
    return MappedRegime(
        model=result["model"],
        network=study.labels["network"][network],
        norm=result["norm"],
        weights=study.labels["weights"][weights],
        batch=batch,
        local=local,
        server=server,
        data=result["data"],
        read=point.read,
        images=point.images,
        by=point.attack,
        auc=point.auc,
    )


def format_map(rows: Sequence[MappedRegime]) -> str:
    """The map as JSON, one line for each regime."""
    return "[\n" + ",\n".join(json.dumps(row.to_json()) for row in rows) + "\n]\n"


if __name__ == "__main__":
    sys.exit(main())
