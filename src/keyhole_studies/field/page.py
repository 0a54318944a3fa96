"""Writes the study's page: ``python -m keyhole_studies.field.page docs/field.md``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keyhole.terminal import say
from keyhole_studies import load_study
from keyhole_studies.base import Study
from keyhole_studies.field.experiments import UNFIT, FieldAccuracy, FieldAudit
from keyhole_studies.field.figure import FILE
from keyhole_studies.field.points import SERVERS, Point, collect_points
from keyhole_studies.field.tables import LEGEND, format_markdown
from keyhole_studies.result_files import Results, read_results

HEAD = """\
# The field: defenses at three strengths

*This page is written from `results/field/*.json` by `python -m keyhole_studies.field.page
docs/field.md`.*

Every defense meets an honest server and one that changes the model, each with attackers who do
not know the defense (naive), who attack as it was published (paper), and who know it (adaptive);
and a network is trained under it. A cell holds the PSNR in dB and the share of images read by the
best attack of that kind. The page [adaptive.md](adaptive.md) says what an attacker may know,
[acted.md](acted.md) how the audit checks that a defense acted.

```
keyhole study field --list                                  # the cells, and which are done
keyhole study field '*-quickstart-honest' --victims 4 --iterations 400   # some of them
keyhole study field --show --figures docs/img               # the table and the figure
sh tools/field_gpu.sh 1 OUT                                 # the rest on a GPU, piece by piece
```
"""

LIMITS = """\
## How to read it

Clients share their weights after one step of SGD at the rate that the training uses, because
noise and clipping have the units of the update. An audited client has one image (honest server)
or eight (malicious server) and random weights, which is where most can be read; a training has 32
images in a batch, momentum and many steps. The strengths of two defenses are not matched: compare
points of the figure, not rows of the table. Thirty rounds are the beginning of a training: they
show which noise prevents learning, not what is reached at its end.
"""


PARTS = {"accuracy": "training"} | {server: f"{server} server" for server in SERVERS}
"""The parts of a point in words."""


def write_page(study: Study, results: Results) -> Iterator[str]:
    """The page's lines.

    Args:
        study: The field.
        results: What was measured, by the names of experiments.
    """
    yield from HEAD.splitlines()
    yield ""
    yield "## The table"
    yield ""
    yield from describe_runs(study, results)
    yield ""
    yield "Cells without figures say why:"
    yield ""
    for gap, words in LEGEND.items():
        yield f"- *{gap}*: {words}."
    yield ""
    points = collect_points(study, results)
    yield from format_markdown(study, points)
    yield ""
    yield from describe_unfit(points)
    yield from describe_skipped(points)
    yield from describe_idle(points)
    if any(point.accuracy is not None for point in points):
        yield f"![privacy against accuracy](img/{FILE})"
        yield ""
    yield from LIMITS.splitlines()


def describe_runs(study: Study, results: Results) -> Iterator[str]:
    """Clients, iterations, machine and versions of what was run, each kind of run once."""
    runs: Counter[str] = Counter()
    cells: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for experiment in study.experiments:
        if not isinstance(experiment, FieldAudit | FieldAccuracy):
            continue
        cells[experiment.network] += 1
        result = results.get(experiment.name)
        if result is None:
            continue
        done[experiment.network] += 1
        if UNFIT in result:
            runs["what does not fit"] += 1
        elif isinstance(experiment, FieldAudit):
            runs[describe_audit(experiment.server, result)] += 1
        else:
            runs[describe_training(result)] += 1
    shares = (f"{done[n]} of {cells[n]} on the {study.labels['network'][n]}" for n in cells)
    yield f"CIFAR-10, random weights, seed {study.seed}. Cells that were run: {', '.join(shares)}."
    yield ""
    for words, count in sorted(runs.items()):
        yield f"- {count} {'cell' if count == 1 else 'cells'}: {words}."


def describe_audit(server: str, result: Mapping[str, Any]) -> str:
    """What one audit was."""
    batch = result["stage"]["batch_size"]
    limits = [row["parameters"].get("iterations") for row in result["rows"].values()]
    most = max((limit for limit in limits if limit), default=None)
    images = "1 image" if batch == 1 else f"{batch} images"
    steps = "" if most is None else f", {most} iterations at most"
    return (
        f"{server} server, {result['stage']['victims']} clients of {images}{steps}; "
        f"{result['device']}, torch {result['versions']['torch']}"
    )


def describe_training(result: Mapping[str, Any]) -> str:
    """What one training was."""
    how = result["recipe"]
    return (
        f"training of {how['rounds']} rounds, {how['sampled']} of {how['clients']} clients in "
        f"each, {how['epochs']} epochs in batches of {how['batch_size']}, SGD with rate "
        f"{how['lr']:g} and momentum {how['momentum']:g}, accuracy on {how['tested']} test "
        f"images; {result['device']}"
    )


def describe_unfit(points: list[Point]) -> Iterator[str]:
    """Which defenses cannot protect which network, and which attacks do not apply; and why."""
    why: dict[tuple[str, str], str] = {}
    for point in points:
        for part, reason in point.unfit.items():
            if point.is_measured:
                yield f"- `{point.defense}` on `{point.network}`, {PARTS[part]}: {reason}"
            else:
                why.setdefault((point.family, point.network), reason)
    for (family, network), reason in why.items():
        words = reason.partition("the model: ")[2] or reason
        yield f"- `{family}` does not fit `{network}`: {words}"
    if why:
        yield ""


def describe_skipped(points: list[Point]) -> Iterator[str]:
    """Which attacks do not apply to a network under a defense, and why, each once."""
    lines = [
        f"- `{attack}` does not apply to `{point.network}` under `{point.family}`, "
        f"{PARTS[server]}: {why}"
        for point in points
        for (server, attack), why in point.skipped.items()
    ]
    yield from dict.fromkeys(lines)
    if lines:
        yield ""


def describe_idle(points: list[Point]) -> Iterator[str]:
    """Which audits could not confirm that the defense acted as it declares."""
    odd = [p for p in points if p.acted not in ("", "acted")]
    for point in odd:
        yield f"- Of `{point.defense}` on `{point.network}` the audits say: {point.acted}."
    if odd:
        yield ""


def main(path: Path) -> None:
    """Writes the page from the repository's results."""
    study = load_study("field")
    found = read_results(Path("results/field"), [each.name for each in study.experiments])
    path.write_text("\n".join(write_page(study, found)) + "\n", encoding="utf-8")
    say(f"written: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
