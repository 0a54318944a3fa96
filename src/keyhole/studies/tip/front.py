"""Privacy against accuracy: what each setting of a defense hides, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from keyhole.audit import find_device
from keyhole.report.drawing import COLOURS, GREY, as_png
from keyhole.studies.base import Piece, Setting, Study
from keyhole.studies.tip.averaging import PRACTICAL, Recipe
from keyhole.studies.tip.averaging import points as trained_points
from keyhole.studies.tip.inversion import FRONT, OTHERS, PRIVATE, SMALL, SPELLED

SHORT = replace(PRACTICAL, name="front", rounds=20, clients=20, every=20)
"""Each setting's training: a level field, not a long one."""
SMALLER = replace(
    SHORT, name="front-small", rounds=10, every=10, epochs=1, model=SMALL, tested=2000
)
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

    def about(self) -> dict[str, Any]:
        return {"does": f"trains {self.recipe.rounds} rounds on {self.data} under {self.defense}"}


def all_utilities() -> Iterator[UtilityPiece]:
    for short, defense in (SPELLED | OTHERS | FRONT | PRIVATE).items():
        if short not in PRIVATE:
            yield UtilityPiece(f"utility-cifar10-{short}", defense, figure="front")
        yield UtilityPiece(f"utility-small-cifar10-{short}", defense, SMALLER, figure="front")


@dataclass(frozen=True)
class Point:
    """One setting of a defense: what the worst attacker read, and how well the model learned."""

    short: str
    psnr: float
    attacker: str
    accuracy: float

    @property
    def family(self) -> str:
        return self.short.partition("-")[0]


def points(results: Path, network: str = "ResNet-18") -> list[Point]:
    """The settings of which both are known; of attackers the one whose images were best."""
    found = []
    for short in SPELLED | OTHERS | FRONT | PRIVATE:
        inverted, trained = (results / f"{kind}-cifar10-{short}.json" for kind in KINDS[network])
        if not (inverted.is_file() and trained.is_file()):
            continue
        rows = json.loads(inverted.read_text(encoding="utf-8"))["rows"]
        worst = max(rows, key=lambda name: rows[name]["metrics"]["psnr"]["mean"])
        accuracy = json.loads(trained.read_text(encoding="utf-8"))["accuracy"]
        psnr = rows[worst]["metrics"]["psnr"]["mean"]
        found.append(Point(short, psnr, f"{worst}, {rows[worst]['attacker']}", accuracy))
    return found


def draw(results: Path, out: Path) -> list[Path]:
    """Accuracy against what the worst attacker reads, a panel a network, a mark a setting."""
    panels = {network: found for network in KINDS if (found := points(results, network))}
    if not panels:
        return []

    def on(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (network, found) in zip(grid, panels.items(), strict=True):
            marks(axes, found)
            axes.set_title(network)
        grid[0].set_ylabel("accuracy")

    return [as_png(on, out / "privacy-utility.png", size=(5.6 * len(panels), 4.2))]


def marks(axes: Any, found: Sequence[Point]) -> None:
    for place, family in enumerate(dict.fromkeys(point.family for point in found)):
        own = [point for point in found if point.family == family]
        colour = COLOURS[place % len(COLOURS)]
        axes.plot([p.psnr for p in own], [p.accuracy for p in own], "o", color=colour, label=family)
        for names, (across, up) in said(own):
            axes.annotate(
                names,
                (across, up),
                xytext=(-5, -11 if place % 2 else 5),
                textcoords="offset points",
                ha="right",
                fontsize=7,
            )
    axes.margins(x=0.14)
    axes.set_xlabel("PSNR of the worst attacker, dB (left: more is hidden)")
    axes.get_yaxis().set_major_formatter(lambda share, at: f"{share:.0%}")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)


def said(points: Sequence[Point]) -> list[tuple[str, tuple[float, float]]]:
    """Names and places of marks; those that lie upon each other are named together."""
    found: list[tuple[str, tuple[float, float]]] = []
    for point in points:
        here = (point.psnr, point.accuracy)
        same = [
            number
            for number, (_, there) in enumerate(found)
            if abs(there[0] - here[0]) < 0.5 and abs(there[1] - here[1]) < 0.01
        ]
        if same:
            names, there = found[same[0]]
            found[same[0]] = (f"{names}, {point.short}", there)
        else:
            found.append((point.short, here))
    return found
