"""What is known of each regime: the best attack of one server, and the best guess who was in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole_studies.base import Study
from keyhole_studies.regimes.experiments import UNFIT, RegimeExperiment
from keyhole_studies.result_files import Results, read_results

Key = tuple[str, str, int, str, str]
"""Network, weights, batch, local training and server, by their names in ``cells.toml``."""


@dataclass(frozen=True)
class Point:
    """One regime that was measured.

    Args:
        key: The regime.
        read: How many images the best attack read.
        images: How many it attacked.
        psnr: Its mean PSNR in dB.
        attack: The attack; of several that read alike, the one with the best PSNR.
        iterations: Those of the iterative attack that was allowed the fewest; 0: none iterates.
        auc: The best membership attack's area under the ROC curve; None: not asked.
        members: How many members it was asked about.
        member_attack: That attack.
        unfit: Why the regime cannot be measured; empty: it can.
    """

    key: Key
    read: int = 0
    images: int = 0
    psnr: float = 0.0
    attack: str = ""
    iterations: int = 0
    auc: float | None = None
    members: int = 0
    member_attack: str = ""
    unfit: str = ""

    @property
    def share(self) -> float | None:
        """The share of images read; None: it cannot be measured."""
        return self.read / self.images if self.images else None


def collect_points(study: Study, results: Results) -> dict[Key, Point]:
    """What was measured of each regime, in the study's order."""
    found: dict[Key, Point] = {}
    for each in study.experiments:
        if isinstance(each, RegimeExperiment) and each.name in results:
            found[each.key] = make_point(each.key, results[each.name])
    return found


def read_points(study: Study, folder: Path) -> dict[Key, Point]:
    """What a folder of results holds."""
    return collect_points(study, read_results(folder, [each.name for each in study.experiments]))


def make_point(key: Key, result: Mapping[str, Any]) -> Point:
    """The point of one experiment."""
    if UNFIT in result:
        return Point(key, unfit=result[UNFIT])
    rows = {n: row for n, row in result["rows"].items() if "read" in row["metrics"]}
    name, best = max(rows.items(), key=lambda item: rank_row(item[1]))
    guesses = result["membership"].get("attacks", {})
    guess = max(guesses, key=lambda attack: float(guesses[attack]["auc"]), default="")
    return Point(
        key,
        read=round(sum(best["metrics"]["read"]["per_image"])),
        images=result["images"],
        psnr=best["metrics"]["psnr"]["mean"],
        attack=name.partition(" (")[0],
        iterations=min(list_iterations(result), default=0),
        auc=guesses[guess]["auc"] if guess else None,
        members=result["membership"].get("members", 0),
        member_attack=guess,
    )


def list_iterations(result: Mapping[str, Any]) -> list[int]:
    """The iterations that each iterative attack of a result was allowed."""
    allowed = (row["parameters"].get("iterations") for row in result["rows"].values())
    return [int(each) for each in allowed if each]


def rank_row(row: Mapping[str, Any]) -> tuple[float, float]:
    """The more images were read the better, then the clearer."""
    return sum(row["metrics"]["read"]["per_image"]), row["metrics"]["psnr"]["mean"]
