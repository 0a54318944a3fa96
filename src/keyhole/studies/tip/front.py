"""Privacy against accuracy: what each setting of a defense hides, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from keyhole.audit import find_device
from keyhole.report.drawing import COLOURS, GREY, MARKS, as_png, name_marks
from keyhole.studies.base import Piece, Setting, Study
from keyhole.studies.tip.averaging import PRACTICAL, Recipe
from keyhole.studies.tip.averaging import points as trained_points
from keyhole.studies.tip.inversion import FRONT, OTHERS, PRIVATE, SMALL, SPELLED

SHORT = replace(PRACTICAL, name="front", rounds=30, lr=0.01, epochs=1, every=30)
"""Each setting's training: a level field, not a long one.

At this rate no budget asks TIP for more than the beta of 1 at which it is capped.
"""
SMALLER = replace(SHORT, name="front-small", model=SMALL, tested=2000)
LABELS = {
    "none": "",
    "dp": "ε 5",
    "agp": "ε 5",
    "tip": "r .1",
    "tip-divided": "r .1, divided",
    "dp-as-tip": "ε 1",
    "tip-r30": "r .3",
    "tip-r60": "r .6",
    "tip-r100": "r 1",
    "tip-r100-printed": "r 1, printed",
    "tip-r100-divided": "r 1, divided",
    "dp-e50": "ε 50",
    "dp-e500": "ε 500",
    "dp-e5000": "ε 5,000",
    "agp-e500": "ε 500",
    "dpsgd": "noise 1",
    "dpsgd-n01": "noise .1",
}
"""Beside the mark of each setting; its family is told by colour and shape."""
FAMILIES = {"none": "no defense", "dp": "DP", "agp": "AGP", "tip": "TIP", "dpsgd": "DP-SGD"}
KINDS = {"ResNet-18": ("invert", "utility"), "two convolutions": ("small", "utility-small")}
"""By network, how the pieces are named that say what is hidden and what is learnt."""


@dataclass(frozen=True)
class UtilityPiece(Piece):
    """The accuracy that is left under one setting, calibrated to how these clients train.

    The budget is the one of the attacked clients, who train on one image: as in the paper.
    """

    defense: str
    recipe: Recipe = SHORT
    data: str = "cifar10"

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        device = find_device(setting.device)
        setting.progress.show(f"{self.name}: {self.recipe.rounds} rounds under {self.defense}")
        *_, last = trained_points(
            self.defense,
            self.recipe,
            data=self.data,
            seed=study.seed,
            device=device,
            data_dir=setting.data_dir,
        )
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        return {
            "piece": self.name,
            "defense": self.defense,
            "data": self.data,
            "recipe": asdict(self.recipe),
            "seed": study.seed,
            "device": name,
            "accuracy": last["accuracy"],
        }

    def covers(self, known: dict[str, Any], setting: Setting) -> bool:
        return bool(known["recipe"] == asdict(self.recipe))

    def about(self) -> dict[str, Any]:
        return {"does": f"trains {self.recipe.rounds} rounds on {self.data} under {self.defense}"}


def all_utilities() -> Iterator[UtilityPiece]:
    for short, defense in (SPELLED | OTHERS | FRONT | PRIVATE).items():
        if short not in PRIVATE:
            yield UtilityPiece(f"utility-cifar10-{short}", defense, figure="front")
        yield UtilityPiece(f"utility-small-cifar10-{short}", defense, SMALLER, figure="front")


@dataclass(frozen=True)
class Point:
    """One setting of a defense: what the better of IG's attackers read, and how well it trains."""

    short: str
    psnr: float
    accuracy: float

    @property
    def family(self) -> str:
        return self.short.partition("-")[0]


def points(results: Path, network: str = "ResNet-18") -> list[Point]:
    """The settings of which both are known; of those who use IG the one whose images were best.

    Not all settings were attacked by GIFD.
    """
    found = []
    for short in SPELLED | OTHERS | FRONT | PRIVATE:
        inverted, trained = (results / f"{kind}-cifar10-{short}.json" for kind in KINDS[network])
        if not (inverted.is_file() and trained.is_file()):
            continue
        every = json.loads(inverted.read_text(encoding="utf-8"))["rows"]
        rows = {name: row for name, row in every.items() if name.partition(" ")[0] == "ig"}
        psnr = max(row["metrics"]["psnr"]["mean"] for row in rows.values())
        accuracy = json.loads(trained.read_text(encoding="utf-8"))["accuracy"]
        found.append(Point(short, psnr, accuracy))
    return found


def draw(results: Path, out: Path) -> list[Path]:
    """Accuracy against what IG reads, a panel a network, a mark a setting."""
    panels = {network: found for network in KINDS if (found := points(results, network))}
    if not panels:
        return []

    def on(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (network, found) in zip(grid, panels.items(), strict=True):
            marks(axes, found)
            axes.set_title(network)
        grid[0].set_ylabel("accuracy")
        for axes, found in zip(grid, panels.values(), strict=True):
            own = [(LABELS[p.short], (p.psnr, p.accuracy), colour_of(p.family)) for p in found]
            name_marks(axes, own)

    return [as_png(on, out / "privacy-utility.png", size=(5.6 * len(panels), 4.2))]


def marks(axes: Any, found: Sequence[Point]) -> None:
    for family in dict.fromkeys(point.family for point in found):
        own = [point for point in found if point.family == family]
        axes.plot(
            [p.psnr for p in own],
            [p.accuracy for p in own],
            MARKS[place_of(family)],
            color=colour_of(family),
            label=FAMILIES[family],
        )
    axes.margins(0.12)
    axes.set_xlabel("PSNR by IG, naive or adaptive: whichever reads more (dB)")
    axes.get_yaxis().set_major_formatter(lambda share, at: f"{share:.0%}")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, loc="lower right")


def colour_of(family: str) -> str:
    return COLOURS[place_of(family)]


def place_of(family: str) -> int:
    return [*FAMILIES].index(family)
