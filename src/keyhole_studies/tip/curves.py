"""Accuracy against rounds, as in the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from keyhole.device import find_device
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import count_gap, settings_gap
from keyhole_studies.tip.averaging import Calibration, FedAvgSettings, run_rounds


@dataclass(frozen=True)
class CurveExperiment(Experiment):
    """One curve of Figure 3.

    Args:
        data: The data set.
        data_name: What the figure calls it.
        partition: How its images are shared out among clients.
        partition_name: What the figure calls it.
        defense: The clients' defense.
        label: What the figure calls it.
        settings: How clients train.
        calibration: What the noise is calibrated to.
        paper: The paper's accuracy by the number of rounds, read off its figure.
    """

    data: str
    partition: str
    defense: str
    settings: FedAvgSettings
    calibration: Calibration = "own"
    data_name: str = ""
    partition_name: str = ""
    label: str = ""

    def points(self, study: Study, context: StudyContext) -> Iterator[dict[str, Any]]:
        """Accuracy and noise, point by point as they come; see :func:`run_rounds`."""
        yield from run_rounds(
            self.defense,
            self.settings,
            data=self.data,
            partition=self.partition,
            calibration=self.calibration,
            seed=study.seed,
            device=find_device(context.device),
            data_dir=context.data_dir,
        )

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        points = []
        for point in self.points(study, context):
            points.append(point)
            words = f"round {point['round']} of {self.settings.rounds}, {point['accuracy']:.1%}"
            context.progress.show(f"{self.name}: {words}")
        return self.make_result(points, study.seed, find_device(context.device))

    def make_result(
        self, points: Sequence[Mapping[str, Any]], seed: int, device: torch.device
    ) -> dict[str, Any]:
        """The result of a curve, or of its beginning."""
        return {
            "piece": self.name,
            "data": self.data,
            "partition": self.partition,
            "defense": self.defense,
            "recipe": asdict(self.settings),
            "calibration": self.calibration,
            "seed": seed,
            "device": name_device(device),
            "points": list(points),
        }

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another training or defense, or fewer rounds; one that diverged ends where it did."""
        now = {**asdict(self.settings), "rounds": known["recipe"].get("rounds")}
        gap = settings_gap(known["recipe"], now, "training")
        gap = gap or settings_gap(known, {"defense": self.defense})
        last = known["points"][-1]
        if gap or last.get("diverged"):
            return gap
        return count_gap(last["round"], self.settings.rounds, "rounds")

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """Accuracy at the rounds that could be read off the paper's figure."""
        reached = {point["round"]: point["accuracy"] for point in known["points"]}
        for number, paper in self.paper.items():
            if int(number) in reached:
                accuracy = 100 * reached[int(number)]
                yield Comparison(f"round {number}", "points", accuracy, 100 * paper)

    def count_measured(self, known: dict[str, Any]) -> str:
        return f"{self.settings.tested:,} test images"

    def tell(self, known: dict[str, Any]) -> str:
        last = known["points"][-1]
        return f"round {last['round']}: accuracy {100 * last['accuracy']:.1f} %"

    def describe(self) -> dict[str, Any]:
        s = self.settings
        who = f"{s.sampled} of {s.clients} clients, {s.model}, {self.data}, {self.partition}"
        return {"does": f"{s.rounds} rounds ({s.name}) of {who}, under {self.defense}"}
