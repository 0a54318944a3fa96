"""Findings as plain rows, for data frames and CSV files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.atomic import write_text
from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.sections import metrics_of
from keyhole.auditing.verdict import Verdict, setting_key
from keyhole.errors import DoesNotFit

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Text that starts so is computed by spreadsheets."""


def finding_rows(findings: Sequence[Finding], verdicts: Sequence[Verdict]) -> list[Row]:
    """One row for each finding; every row has the same columns.

    A metric has four columns: ``psnr_mean``, the ends ``psnr_low`` and ``psnr_high`` of the mean's
    95% interval, and ``psnr_worst``, the image that leaks most. They are None if a finding does not
    have the metric.
    """
    names = [metric.name for metric in metrics_of(findings)]
    by_setting = {setting_key(v.model, v.data, v.defense): v for v in verdicts}
    return [
        {
            **identify(finding),
            **describe_verdict(by_setting, finding),
            **{
                f"{name}_{part}": getattr(finding.metrics.get(name), part, None)
                for name in names
                for part in ("mean", "low", "high", "worst")
            },
            **describe_setting(finding),
        }
        for finding in findings
    ]


def image_rows(findings: Sequence[Finding]) -> list[Row]:
    """One row for each image of each finding, with one column per metric.

    ``client`` counts the attacked clients, ``place`` the images in a client's batch; ``image`` is
    the image's index in the data set. A metric with one value per client, such as ``labels``, has
    that value in the rows of all its images.
    """
    metrics = metrics_of(findings)
    return [
        {
            **identify(finding),
            "client": client,
            "place": place,
            "image": index,
            **{metric.name: read_value(finding, metric.name, number, client) for metric in metrics},
            "seed": finding.recipe["seed"],
            "key": finding.key,
        }
        for finding in findings
        for number, (client, place, index) in enumerate(list_images(finding))
    ]


def identify(finding: Finding) -> Row:
    """The columns that tell a finding from others."""
    return {
        "model": finding.model,
        "data": finding.data,
        "defense": label_defense(finding.defense),
        "attack": finding.attack,
        "attacker": finding.attacker,
        "server": "honest" if finding.honest else "altered",
        "victims": finding.victims,
        "images": count_images(finding),
    }


def describe_verdict(verdicts: Mapping[str, Verdict], finding: Finding) -> Row:
    """The verdict on the finding's setting, and that on a malicious server alone."""
    verdict = verdicts.get(setting_key(finding.model, finding.data, finding.defense))
    malicious = verdict and verdict.malicious
    return {
        "verdict": verdict and verdict.status,
        "malicious_verdict": malicious and malicious.status,
    }


def describe_setting(finding: Finding) -> Row:
    """The columns on how a finding was computed and what the attacker knew."""
    recipe, knowledge = finding.recipe, finding.knowledge
    return {
        "seconds": finding.seconds,
        "seconds_per_client": finding.seconds / finding.victims,
        "seed": recipe["seed"],
        "batch_size": recipe["batch_size"],
        "image_size": "x".join(str(side) for side in recipe["image_size"]),
        "steps": recipe["steps"],
        "lr": recipe["lr"],
        "weights": recipe["weights"],
        "captured": recipe.get("captured"),
        "scored": recipe.get("scored", True),
        "device": recipe.get("device", ""),
        "knows_defense": knowledge["defense"] is not None,
        "given_labels": knowledge["labels"],
        "given_masks": knowledge.get("masks", False),
        "intercepted": knowledge.get("intercepted", False),
        "altered_model": knowledge.get("altered_model"),
        "defense_parameters": json.dumps(finding.defense["parameters"]),
        "attack_parameters": json.dumps(finding.attack_parameters),
        "keyhole": finding.versions.get("keyhole"),
        "key": finding.key,
    }


def list_images(finding: Finding) -> Iterator[tuple[int, int, int | None]]:
    """Client, place in its batch, and index in the data set of each image, in the metrics' order.

    The index is None if nobody knows the images, and in run folders that do not say it.
    """
    batches = batches_of(finding)
    for client in range(finding.victims):
        batch = batches[client] if batches else [None] * int(finding.recipe["batch_size"])
        for place, index in enumerate(batch):
            yield client, place, index


def batches_of(finding: Finding) -> list[list[int]] | None:
    """The indices of each client's images; None if they are not known, or cannot be right."""
    found = finding.recipe.get("indices")
    if not isinstance(found, list) or len(found) != finding.victims:
        return None
    if not all(isinstance(batch, list) and batch for batch in found):
        return None
    if not all(isinstance(index, int) for batch in found for index in batch):
        return None
    measured = count_scored(finding)
    return found if measured in (0, sum(len(batch) for batch in found)) else None


def count_images(finding: Finding) -> int:
    """How many images the attacked clients had."""
    return count_scored(finding) or sum(1 for _ in list_images(finding))


def count_scored(finding: Finding) -> int:
    """How many images have scores; 0 if the attack seeks labels alone, or without the truth."""
    summary = next((s for name, s in finding.metrics.items() if name != "labels"), None)
    return 0 if summary is None else len(summary.per_image)


def read_value(finding: Finding, metric: str, number: int, client: int) -> float | None:
    """A metric's value of one image."""
    if metric not in finding.metrics:
        return None
    values = finding.metrics[metric].per_image
    place = client if metric == "labels" else number
    return values[place] if place < len(values) else None


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header; empty cells are values that do not exist.

    A text that a spreadsheet would compute gets an apostrophe before it.
    """
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: protect_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def protect_cell(value: Any) -> Any:
    """Text that no spreadsheet computes; other values as they are.

    >>> protect_cell("=1+1"), protect_cell(-1.5), protect_cell("mlp")
    ("'=1+1", -1.5, 'mlp')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def to_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows as a pandas data frame; raises :class:`DoesNotFit` if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise DoesNotFit(
            "a data frame needs pandas: pip install 'keyhole[frame]', or write a CSV file"
        ) from None
    return pandas.DataFrame(list(rows))


def write_if_asked(path: str | Path | None, text: str) -> str:
    """Returns ``text``, and writes it if there is a path for it."""
    if path is not None:
        write_text(Path(path), text)
    return text
