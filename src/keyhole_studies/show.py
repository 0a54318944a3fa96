"""A study's results beside the paper's figures, and the list of its experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keyhole.errors import BadValue
from keyhole_studies.audits import AuditExperiment, name_row
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.result_files import read_result
from keyhole_studies.summary import format_summary
from keyhole_studies.tables import format_table

METRICS = {"ssim": "SSIM", "psnr": "PSNR", "lpips": "LPIPS", "mmd": "MMD", "mask": "mask"}
DIGITS = {"ssim": 3, "psnr": 1, "lpips": 3, "mmd": 1, "mask": 3}
HEAD = ("piece", "attack", "images", "paper", *METRICS.values(), "steps")
WIDTHS = (22, 12, *(7 for _ in HEAD[2:]))


def make_result_rows(study: Study, results: Path) -> list[dict[str, Any]]:
    """One row per attack, whether its experiment was run or not."""
    rows = []
    for experiment in study.experiments:
        result = read_result(results, experiment.name)
        if result is None:
            rows += [make_waiting_row(experiment, attack) for attack in list_paper(experiment)]
            continue
        if not isinstance(experiment, AuditExperiment):
            rows.append(make_experiment_row(experiment, result))
            continue
        for attack in dict.fromkeys([*result["rows"], *experiment.paper]):
            rows.append(make_attack_row(experiment, attack, result))
    return rows


def list_paper(experiment: Experiment) -> list[str]:
    """The attacks of an audit of which the paper has figures, else those that it would run."""
    if not isinstance(experiment, AuditExperiment):
        return [""]
    return list(experiment.paper) or [name_row(text) for text in experiment.stage.attacks]


def make_waiting_row(experiment: Experiment, attack: str) -> dict[str, Any]:
    """The row of an experiment that was not run."""
    paper = experiment.paper.get(attack, {}) if attack else dict(experiment.paper)
    row = {"piece": experiment.name, "figure": experiment.figure, "ours": None, "paper": paper}
    return {**row, "attack": attack, "images": None, "iterations": None} if attack else row


def make_experiment_row(experiment: Experiment, result: dict[str, Any]) -> dict[str, Any]:
    """The row of an experiment that is no audit."""
    return {
        "piece": experiment.name,
        "figure": experiment.figure,
        "ours": result,
        "paper": dict(experiment.paper),
    }


def make_attack_row(experiment: Experiment, attack: str, result: dict[str, Any]) -> dict[str, Any]:
    """The row of one attack of an audit, which may not have been run."""
    row = result["rows"].get(attack)
    metrics = {} if row is None else {n: m["mean"] for n, m in row["metrics"].items()}
    return {
        "piece": experiment.name,
        "figure": experiment.figure,
        "attack": attack,
        "ours": {name: metrics[name] for name in METRICS if name in metrics},
        "paper": dict(experiment.paper.get(attack, {})),
        "images": result["images"],
        "iterations": None if row is None else row["iterations"],
        "seconds": None if row is None else row["seconds"],
        "device": result["device"],
    }


def format_study(study: Study, results: Path) -> Iterator[str]:
    """A study's results as lines of text: its own tables, or one line per attack."""
    if study.format_tables is not None:
        yield from study.format_tables(study, results)
    else:
        yield from format_all_attacks(study, results)
    yield from format_summary(study, results)


def format_all_attacks(study: Study, results: Path) -> Iterator[str]:
    """One line per attack that was run or that the paper reports."""
    yield f"{study.paper}: mean over images, ours beside the paper's"
    made = make_result_rows(study, results)
    rows = list(format_attacks([row for row in made if "attack" in row]))
    yield from format_table("", HEAD, rows, left=2, widths=WIDTHS, indent="", gap=" ")
    accuracies = [format_accuracy(row) for row in made if "accuracy" in row["paper"]]
    head = ("trained network", "rounds", "images", "accuracy % (the paper's)")
    yield from format_table("Accuracy", head, accuracies)


def format_attacks(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Rows as cells; an experiment is named in its first row only."""
    before = ""
    for row in rows:
        first, before = row["piece"] != before, row["piece"]
        paper = row["paper"].get("ssim")
        yield [
            row["piece"] if first else "",
            row["attack"],
            ("-" if row["ours"] is None else str(row["images"])) if first else "",
            "" if paper is None else f"{paper:.2f}",
            *(format_metric(name, row["ours"] or {}) for name in METRICS),
            "" if not row["iterations"] else f"{row['iterations']:.0f}",
        ]


def format_accuracy(row: Mapping[str, Any]) -> list[str]:
    """An accuracy with the rounds and test images that it rests on, beside the paper's."""
    ours, paper = row["ours"], row["paper"]["accuracy"]
    if ours is None:
        return [row["piece"], "-", "-", f"- ({paper:g})"]
    recipe = ours["recipe"]
    accuracy = f"{100 * ours['accuracy']:.1f} ({paper:g})"
    return [row["piece"], str(recipe["rounds"]), f"{recipe['tested']:,}", accuracy]


def format_metric(name: str, values: Mapping[str, float]) -> str:
    return f"{values[name]:.{DIGITS[name]}f}" if name in values else ""


def list_experiments(
    experiments: Sequence[Experiment], results: Path, context: StudyContext
) -> list[dict[str, Any]]:
    """Experiments, which of them have a result, and which results are as large as asked for."""
    listed = []
    for experiment in experiments:
        known = read_result(results, experiment.name)
        listed.append(
            {
                "piece": experiment.name,
                "figure": experiment.figure,
                "begun": known is not None,
                "done": known is not None and experiment.covers(known, context),
                "state": describe_state(experiment, known, context),
                **experiment.describe(),
            }
        )
    return listed


def describe_state(
    experiment: Experiment, known: dict[str, Any] | None, context: StudyContext
) -> str:
    """``done``, ``part (250 of 2,000 images)``, ``stale (...)``, or nothing without a result."""
    if known is None:
        return ""
    return "done" if experiment.covers(known, context) else experiment.find_gap(known, context)


def format_list(study: Study, listed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The list as lines of text."""
    yield f"{study.title}: {study.paper}"
    widest = max(len(entry["piece"]) for entry in listed)
    for entry in listed:
        mark, _, lacks = entry["state"].partition(" ")
        words = f"{format_description(entry)}  {lacks}".rstrip()
        yield f"  {mark:<5}  {entry['piece']:<{widest}}  {words}"


def format_description(entry: Mapping[str, Any]) -> str:
    """What an experiment does: the clients and attacks of an audit, or its own words."""
    if "attacks" not in entry:
        return str(entry["does"])
    clients = f"{entry['clients']} clients of {entry['batch_size']}"
    return f"{clients:<20} {', '.join(entry['attacks'])}"


def require_results(study: Study, results: Path) -> None:
    """Raises :class:`BadValue` where a folder holds nothing to show."""
    if not any(read_result(results, experiment.name) for experiment in study.experiments):
        raise BadValue(
            f"{results} holds no results of study {study.name!r}: run `keyhole study {study.name}` "
            "or name their folder with --results"
        )
