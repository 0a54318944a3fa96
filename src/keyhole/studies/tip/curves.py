"""Accuracy against rounds, as in the paper's Figure 3: its pieces, and the picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from keyhole.audit import find_device
from keyhole.report.drawing import COLOURS, DASHES, GREY, as_png
from keyhole.studies.base import Piece, Setting, Study
from keyhole.studies.tip.averaging import (
    PAPER,
    PRACTICAL,
    RECIPES,
    Calibration,
    Recipe,
    points,
)

DATA = {"cifar10": "CIFAR-10"}
SPLITS = {"iid": "iid", "dirichlet": "dirichlet(alpha=0.5)"}
SPLIT_WORDS = {"iid": "IID", "dirichlet(alpha=0.5)": "Dirichlet, alpha .5"}
SPELLED = {
    "none": "none",
    "dp": "dp(epsilon=5.0)",
    "agp": "agp(epsilon=5.0)",
    "tip": "tip(epsilon=1.0)",
    "tip-e5": "tip(epsilon=5.0)",
}
"""Budgets as the authors' code has them, and TIP with that of the others."""
WORDS = {
    "none": "no defense",
    "dp": "DP",
    "agp": "AGP",
    "tip": "TIP, epsilon 1",
    "tip-e5": "TIP, epsilon 5",
}
FIGURE_3: dict[str, dict[int, float]] = {
    "none": {100: 0.52, 500: 0.73, 1000: 0.79},
    "tip": {100: 0.49, 500: 0.665, 1000: 0.73},
    "agp": {100: 0.34, 500: 0.50, 1000: 0.59},
    "dp": {100: 0.33, 500: 0.405, 1000: 0.44},
}
"""The paper's accuracy by rounds, read off its figure: IID."""


@dataclass(frozen=True)
class CurvePiece(Piece):
    """One curve of Figure 3."""

    data: str
    partition: str
    defense: str
    recipe: Recipe = PAPER
    calibration: Calibration = "own"

    def points(self, study: Study, setting: Setting) -> Iterator[dict[str, Any]]:
        """Accuracy and noise, point by point as they come; see :func:`points`."""
        yield from points(
            self.defense,
            self.recipe,
            data=self.data,
            partition=self.partition,
            calibration=self.calibration,
            seed=study.seed,
            device=find_device(setting.device),
            data_dir=setting.data_dir,
        )

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        found = []
        for point in self.points(study, setting):
            found.append(point)
            said = f"round {point['round']} of {self.recipe.rounds}, {point['accuracy']:.1%}"
            setting.progress.show(f"{self.name}: {said}")
        return self.result(found, study.seed, find_device(setting.device))

    def result(
        self, found: Sequence[Mapping[str, Any]], seed: int, device: torch.device
    ) -> dict[str, Any]:
        """What is kept of a curve, or of its beginning."""
        return {
            "piece": self.name,
            "data": self.data,
            "partition": self.partition,
            "defense": self.defense,
            "recipe": asdict(self.recipe),
            "calibration": self.calibration,
            "seed": seed,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "points": list(found),
        }

    def covers(self, known: dict[str, Any], setting: Setting) -> bool:
        last = known["points"][-1]
        return bool(last["round"] >= self.recipe.rounds or last.get("diverged"))

    def about(self) -> dict[str, Any]:
        r = self.recipe
        who = f"{r.sampled} of {r.clients} clients, {r.model}, {self.data}, {self.partition}"
        return {"does": f"{r.rounds} rounds ({r.name}) of {who}, under {self.defense}"}


def all_curves() -> Iterator[CurvePiece]:
    """Figure 3 and its Dirichlet twin, at the paper's rate and at a practical one.

    At the practical rate ResNet-18 has the noise of the paper's, two convolutions their own.
    """
    for recipe in RECIPES.values():
        for data in DATA:
            for split, partition in SPLITS.items():
                for short, defense in SPELLED.items():
                    ending = "" if recipe is PAPER else f"-{recipe.name}"
                    paper = FIGURE_3.get(short, {}) if split == "iid" and not ending else {}
                    yield CurvePiece(
                        f"curve-{data}-{split}-{short}{ending}",
                        data,
                        partition,
                        defense,
                        recipe,
                        "paper" if recipe is PRACTICAL else "own",
                        figure="F3",
                        paper={str(number): value for number, value in paper.items()},
                    )


def draw(results: Path, out: Path) -> list[Path]:
    """Figure 3 of the curves whose results are in a folder, one picture a recipe."""
    found = [
        json.loads(p.read_text(encoding="utf-8")) for p in sorted(results.glob("curve-*.json"))
    ]
    made = []
    for name in RECIPES:
        some = [result for result in found if result["recipe"]["name"] == name]
        if some:
            made.append(curves(some, out / f"figure-3-{name}.png"))
    return made


def curves(results: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Accuracy over rounds: a panel a data set and partition, a line a defense.

    Circles are the paper's, where it trained so and the rounds are as far. Returns ``path``, a PNG.
    """
    panels: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    splits = list(SPLIT_WORDS)
    for result in sorted(results, key=lambda result: place_in(splits, result["partition"])):
        panels.setdefault((result["data"], result["partition"]), []).append(result)
    best = max(point["accuracy"] for result in results for point in result["points"])

    def on(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, ((data, partition), some) in zip(grid, panels.items(), strict=True):
            for result in sorted(some, key=rank):
                line(axes, result)
            axes.set_title(f"{DATA.get(data, data)}, {SPLIT_WORDS.get(partition, partition)}")
            axes.set_xlabel("rounds")
            axes.set_ylim(0, min(1, 1.35 * best))
            axes.get_yaxis().set_major_formatter(lambda share, at: f"{share:.0%}")
            axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=7)
        grid[0].set_ylabel("accuracy")

    return as_png(on, path, size=(3.6 * len(panels) + 0.4, 3.2))


def rank(result: Mapping[str, Any]) -> int:
    """A defense's place among the lines; strangers come last."""
    return place_in(list(SPELLED.values()), result["defense"])


def place_in(known: Sequence[str], name: str) -> int:
    """Where a name stands among those known; strangers come last."""
    return known.index(name) if name in known else len(known)


def line(axes: Any, result: Mapping[str, Any]) -> None:
    """One defense's accuracy, in its own colour and dashes, and the paper's beside it."""
    place = rank(result)
    short = list(SPELLED)[place] if place < len(SPELLED) else ""
    style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
    rounds = [point["round"] for point in result["points"]]
    words = WORDS.get(short, result["defense"])
    axes.plot(rounds, [p["accuracy"] for p in result["points"]], label=words, **style)
    if result["recipe"]["name"] == PAPER.name and result["partition"] == "iid":
        theirs = {n: v for n, v in FIGURE_3.get(short, {}).items() if n <= rounds[-1]}
        axes.plot([*theirs], [*theirs.values()], "o", color=style["color"], fillstyle="none")
