"""Privacy against accuracy: what each setting of a defense hides, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from keyhole.device import find_device
from keyhole_studies.audits import attack_of_row
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import count_gap, settings_gap
from keyhole_studies.drawing import COLOURS, GREY, MARKS, name_marks, save_png
from keyhole_studies.result_files import read_result
from keyhole_studies.tip.averaging import FedAvgSettings, run_rounds
from keyhole_studies.tip.inversion import InversionExperiment


@dataclass(frozen=True)
class UtilityExperiment(Experiment):
    """The accuracy that is left under one setting, calibrated to how these clients train.

    The budget is the one of the attacked clients, who train on one image: as in the paper.

    Args:
        defense: The clients' defense.
        settings: How they train.
        data: The data set.
    """

    defense: str
    settings: FedAvgSettings
    data: str

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device = find_device(context.device)
        rounds = self.count_rounds(context)
        settings = replace(self.settings, rounds=rounds)
        context.progress.show(f"{self.name}: {rounds} rounds under {self.defense}")
        *_, last = run_rounds(
            self.defense,
            settings,
            data=self.data,
            seed=study.seed,
            device=device,
            data_dir=context.data_dir,
        )
        return {
            "piece": self.name,
            "defense": self.defense,
            "data": self.data,
            "recipe": asdict(settings),
            "seed": study.seed,
            "device": name_device(device),
            "accuracy": last["accuracy"],
        }

    def count_rounds(self, context: StudyContext) -> int:
        """Rounds of training: those of the settings, or fewer where the context says so."""
        most = context.changes.get("iterations")
        return min(self.settings.rounds, int(most)) if most else self.settings.rounds

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another training or defense, or fewer rounds."""
        had = known["recipe"].get("rounds", self.settings.rounds)
        now = {**asdict(self.settings), "rounds": had}
        gap = settings_gap(known["recipe"], now, "training")
        gap = gap or settings_gap(known, {"defense": self.defense})
        return gap or count_gap(had, self.count_rounds(context), "rounds")

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """Accuracy, where the paper has one."""
        if "accuracy" in self.paper:
            accuracy = 100 * known["accuracy"]
            yield Comparison("accuracy", "points", accuracy, self.paper["accuracy"])

    def count_measured(self, known: dict[str, Any]) -> str:
        return f"{self.settings.tested:,} test images"

    def tell(self, known: dict[str, Any]) -> str:
        return f"accuracy {100 * known['accuracy']:.1f} %"

    def describe(self) -> dict[str, Any]:
        return {"does": f"trains {self.settings.rounds} rounds on {self.data} under {self.defense}"}


@dataclass(frozen=True)
class Point:
    """One setting: what the better of IG's attackers read, and how well the network trains."""

    experiment: InversionExperiment
    psnr: float
    accuracy: float


def read_points(study: Study, results: Path) -> dict[str, list[Point]]:
    """The settings of which both are known, by network.

    Of the attackers who use IG the one counts whose images were best: not all settings were
    attacked by GIFD.
    """
    points: dict[str, list[Point]] = {}
    for experiment in study.experiments:
        if not isinstance(experiment, InversionExperiment) or not experiment.utility:
            continue
        inverted = read_result(results, experiment.name)
        trained = read_result(results, experiment.utility)
        if inverted is None or trained is None:
            continue
        by_ig = [row for name, row in inverted["rows"].items() if attack_of_row(name) == "ig"]
        psnr = max(row["metrics"]["psnr"]["mean"] for row in by_ig)
        found = points.setdefault(experiment.stage.model, [])
        found.append(Point(experiment, psnr, trained["accuracy"]))
    return points


def draw_front(study: Study, results: Path, folder: Path) -> list[Path]:
    """Draws accuracy against what IG reads: one panel per network, one mark per setting."""
    points = read_points(study, results)
    networks, families = study.labels["network"], study.labels["defense"]
    panels = {words: points[model] for model, words in networks.items() if model in points}
    if not panels:
        return []

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (network, found) in zip(grid, panels.items(), strict=True):
            draw_marks(axes, found, families)
            axes.set_title(network)
        grid[0].set_ylabel("accuracy")
        for axes, found in zip(grid, panels.values(), strict=True):
            names = [
                (p.experiment.label, (p.psnr, p.accuracy), COLOURS[find_place(p, families)])
                for p in found
            ]
            name_marks(axes, names)

    path = folder / "privacy-utility.png"
    return [save_png(draw, path, size=(5.6 * len(panels), 4.2))]


def draw_marks(axes: Any, found: Sequence[Point], families: Mapping[str, str]) -> None:
    """Draws the marks of one network, one colour and shape per family of defenses."""
    for family in dict.fromkeys(point.experiment.family for point in found):
        own = [point for point in found if point.experiment.family == family]
        axes.plot(
            [p.psnr for p in own],
            [p.accuracy for p in own],
            MARKS[find_place(own[0], families)],
            color=COLOURS[find_place(own[0], families)],
            label=families[family],
        )
    axes.margins(0.12)
    axes.set_xlabel("PSNR by IG, naive or adaptive: whichever reads more (dB)")
    axes.get_yaxis().set_major_formatter(lambda share, at: f"{share:.0%}")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, loc="lower right")


def find_place(point: Point, families: Mapping[str, str]) -> int:
    """The place of a setting's family, which decides its colour and shape."""
    return list(families).index(point.experiment.family)
