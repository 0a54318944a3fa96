"""The paper's tables with ours beside them, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keyhole_studies.audits import attack_of_row, find_row
from keyhole_studies.base import Study
from keyhole_studies.result_files import Results
from keyhole_studies.tables import Cell, combine_tables, format_table
from keyhole_studies.tip.curves import CurveExperiment
from keyhole_studies.tip.heatmaps import HeatMapExperiment
from keyhole_studies.tip.inversion import InversionExperiment

METRICS = {"psnr": ("PSNR", 1), "ssim": ("SSIM", 3), "lpips": ("LPIPS", 3)}
HEAT_SCORES = ("mse", "psnr", "ssim")
ATTACKERS = {"naive": False, "adaptive": True}
"""Whether each attacker knows the defense."""


def format_inversions(study: Study, found: Results) -> Iterator[str]:
    """Table 1, and beside each attack the same by an attacker who knows the defense."""
    by_data: dict[str, list[InversionExperiment]] = {}
    for experiment in study.experiments:
        if isinstance(experiment, InversionExperiment) and experiment.group == "table-1":
            by_data.setdefault(experiment.data_name, []).append(experiment)
    for data, cells in by_data.items():
        rows: list[list[Cell]] = []
        for attack in dict.fromkeys(attack for cell in cells for attack in cell.paper):
            for key, (metric, _) in METRICS.items():
                for attacker, adaptive in ATTACKERS.items():
                    ours = [read_score(found.get(c.name), attack, key, adaptive) for c in cells]
                    if any(score is not None for score in ours):
                        paper = ["" if adaptive else format_paper(c, attack, key) for c in cells]
                        values = [f"{o or '-'}{p}" for o, p in zip(ours, paper, strict=True)]
                        rows.append([f"{attack} ({attacker}), {metric}", *values])
        counts = {found[cell.name]["images"] for cell in cells if cell.name in found}
        title = f"Table 1, {data}, ResNet-18, {' or '.join(map(str, sorted(counts)))} images"
        yield from format_table(title, ("attack", *(cell.setting for cell in cells)), rows)


def read_score(
    result: Mapping[str, Any] | None, attack: str, key: str, adaptive: bool
) -> str | None:
    """The mean of one metric; None where it was not measured."""
    row = None if result is None else find_row(result, attack, adaptive=adaptive)
    return None if row is None else format_metric(row, key)


def format_metric(row: Mapping[str, Any], key: str) -> str | None:
    metric = row["metrics"].get(key)
    return None if metric is None else f"{metric['mean']:.{METRICS[key][1]}f}"


def format_paper(cell: InversionExperiment, attack: str, key: str) -> str:
    """The paper's figure; its attackers did not know the defense."""
    value = cell.paper.get(attack, {}).get(key)
    return "" if value is None else f" ({value:g})"


def format_settings(study: Study, found: Results) -> Iterator[str]:
    """What else was inverted on CIFAR-10, one line per attacker, and the accuracy that is left."""
    rows: list[list[Cell]] = []
    for cell in study.experiments:
        if not isinstance(cell, InversionExperiment) or cell.group != "settings":
            continue
        trained = found.get(cell.utility)
        accuracy = "" if trained is None else f"{100 * trained['accuracy']:.1f}"
        for name, row in found.get(cell.name, {}).get("rows", {}).items():
            values = [format_metric(row, key) or "-" for key in METRICS]
            who = f"{attack_of_row(name)}, {row['attacker']}"
            rows.append([cell.name, who, str(found[cell.name]["images"]), *values, accuracy])
    head = ("piece", "attack", "images", "PSNR", "SSIM", "LPIPS", "accuracy %")
    yield from format_table("Other settings", head, rows)


def format_explanations(study: Study, found: Results) -> Iterator[str]:
    """Table 2: heat maps laid over images, with and without a defense."""
    rows: list[list[Cell]] = []
    for experiment in study.experiments:
        if not isinstance(experiment, HeatMapExperiment) or experiment.name not in found:
            continue
        for defense, row in found[experiment.name]["rows"].items():
            if defense == "none":
                continue
            paper = experiment.paper.get(defense, {})
            ours = row["uploaded"]["overlay"]
            values = [
                f"{ours[key]:.2f}" + (f" ({paper[key]:g})" if key in paper else "")
                for key in HEAT_SCORES
            ]
            result = found[experiment.name]
            pairs = str(result["clients"] * result["images"])
            who = f"{experiment.data}, {defense}"
            rows.append([who, pairs, f"{row['noise_norm']:.1f}", *values])
    head = ("defense", "overlays", "noise norm", "MSE", "PSNR", "SSIM")
    yield from format_table("Table 2, heat maps", head, rows)


def format_curves(study: Study, found: Results) -> Iterator[str]:
    """Figure 3: each curve at the last round that all curves of its panel have reached."""
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for experiment in study.experiments:
        if isinstance(experiment, CurveExperiment) and experiment.name in found:
            title = f"{experiment.data}, {experiment.partition}, {experiment.settings.name}"
            points = found[experiment.name]["points"]
            line = {point["round"]: point["accuracy"] for point in points}
            panels.setdefault(title, {})[experiment.defense] = line
    rows: list[list[Cell]] = []
    for title, lines in panels.items():
        reached = set.intersection(*(set(line) for line in lines.values()))
        for defense, line in lines.items() if reached else ():
            rows.append([title, defense, str(max(reached)), 100 * line[max(reached)]])
    head = ("data, split, recipe", "defense", "round", "accuracy %")
    yield from format_table("Figure 3", head, rows)


format_tables = combine_tables(
    format_inversions,
    format_settings,
    format_explanations,
    format_curves,
)
