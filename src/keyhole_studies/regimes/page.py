"""Writes the study's page: ``python -m keyhole_studies.regimes.page docs/regimes.md``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from keyhole.terminal import say
from keyhole_studies import load_study
from keyhole_studies.base import Study
from keyhole_studies.regimes.experiments import UNFIT, RegimeExperiment
from keyhole_studies.regimes.figure import FILES, read_value
from keyhole_studies.regimes.points import Key, Point, collect_points
from keyhole_studies.regimes.tables import NOT_RUN, format_auc, make_rows
from keyhole_studies.result_files import Results, read_results

HEAD = """\
# Regimes: where updates leak, and where we could not make them leak

*This page is written from `results/regimes/*.json` by `python -m keyhole_studies.regimes.page
docs/regimes.md`.*

Whether an image can be read out of an update depends on how clients train at least as much as on a
defense. The map has one cell for each network, kind of weights, batch, local training and server,
all without a defense: the share of images that the best of our attacks read and, for an honest
server, how well the best membership attack tells the clients' images from others (AUC; .5 is
guessing). A verdict of `keyhole audit` that says *not broken* quotes this map.

```
keyhole study regimes --list                              # the cells, and which are done
keyhole study regimes 'quickstart-*-b8-*' --victims 4 --iterations 300   # some of them
keyhole study regimes --show --figures docs/img           # the tables and the maps
sh tools/regimes_gpu.sh 1                                 # the rest on a GPU, piece by piece
```
"""

LIMITS = """\
## How to read it

* **Clients.** 16 clients upload once, by plain SGD at a rate of .01, and share their weights.
  Images are attacked of the first four, membership is asked of all. `1 step` and `5 steps` are on
  all of a client's images, as many as the batch; `1 epoch` is one pass over four such batches in
  an order that the server does not know. Attackers are given the labels, as in every audit, but
  not the order.
* **Weights.** `fresh` are random. `70%` and `90%` are the accuracy on the 2,500 *training*
  images, in evaluation mode, at which a training with Adam was stopped; the clients' images are
  among these. It is training accuracy because small networks reach no 70% on CIFAR-10's test
  images, and because the loss of the clients' own images is what an update is made of. The
  weights are kept in the folder of runs, `runs/study-regimes/weights`.
* **Batch norm** runs in the mode that an audit chooses by itself: `train`, and `frozen-norm` for
  batches of one image.
* **Membership** compares each client's images with 500 others, about 5% of which the trained
  weights have seen as well. With one image a client it says little more than that an update of
  one image points along that image's gradient. The best of three attacks (`fedmia`, `cosine`,
  `loss`) is shown, which is a little optimistic.
* **A malicious server** tries one attack, `imprint(form='sparse')`: any network, one kind of
  trap. It is a lower bound on what such a server reads.
* **Few images.** A cell of batch 1 is four images: `0%` there means up to about half may be
  readable (95% Wilson interval), and few iterations stop some attacks early. `0%` with 32 images
  or more is stronger evidence, and none of it is a promise.
* **How verdicts use it.** An audit counts as the largest batch on the map that is not larger than
  its own. Weights from a file count as trained, whatever their accuracy. Secure sums, repeated
  updates and networks that are not on the map count as never measured. Data does not tell regimes
  apart: a verdict names the map's.
"""


def write_page(study: Study, results: Results) -> Iterator[str]:
    """The page's lines.

    Args:
        study: The regimes.
        results: What was measured, by the names of experiments.
    """
    points = collect_points(study, results)
    yield from HEAD.splitlines()
    yield ""
    yield "## The map"
    yield ""
    yield from describe_runs(study, results, points)
    yield ""
    for what, file in FILES.items():
        if any(read_value(point, what) is not None for point in points.values()):
            yield f"![{what}](img/{file})"
            yield ""
    yield from describe_silent(study, points)
    yield "## The figures"
    yield ""
    yield "Share of images read, and for an honest server the AUC of membership."
    yield f"`{NOT_RUN}`: not run."
    yield ""
    yield from format_networks(study, points)
    yield from LIMITS.splitlines()


def describe_runs(study: Study, results: Results, points: Mapping[Key, Point]) -> Iterator[str]:
    """Clients, iterations, machine and versions of what was run, each kind of run once."""
    kinds: Counter[str] = Counter()
    for experiment in study.experiments:
        result = results.get(experiment.name)
        if result is None or UNFIT in result or not isinstance(experiment, RegimeExperiment):
            continue
        most = points[experiment.key].iterations
        steps = "closed forms alone" if not most else f"{most} iterations at most"
        versions = result["versions"]["torch"]
        kinds[
            f"{result['server']} server, {result['victims']} clients attacked, {steps}; "
            f"{result['device']}, torch {versions}, seed {result['seed']}"
        ] += 1
    yield f"{sum(kinds.values())} of {len(study.experiments)} cells were run:"
    yield ""
    for words, count in kinds.items():
        yield f"- {count} {'cell' if count == 1 else 'cells'}: {words}."


def describe_silent(study: Study, points: Mapping[Key, Point]) -> Iterator[str]:
    """The regimes in which nothing was read, by network and server."""
    silent: dict[tuple[str, str], list[str]] = {}
    for (network, weights, batch, local, server), point in points.items():
        if point.images and not point.read:
            words = (
                f"{study.labels['weights'][weights]} weights, batch {batch}, "
                f"{study.labels['local'][local]} ({point.images} images)"
            )
            silent.setdefault((network, server), []).append(words)
    yield "## Where nothing was read"
    yield ""
    for (network, server), cells in silent.items():
        who = study.labels["server"][server]
        yield f"- **{study.labels['network'][network]}, {who}:** {'; '.join(cells)}."
    if not silent:
        yield "In every regime that was run, an image was read."
    yield ""


def format_networks(study: Study, points: Mapping[Key, Point]) -> Iterator[str]:
    """One table for each network and server of which anything was run."""
    batches = list(study.labels["batch"])
    for network, label in study.labels["network"].items():
        for server, who in study.labels["server"].items():
            rows = list(make_rows(study, points, network, server))
            if not any(cell != NOT_RUN for row in rows for cell in row[2:]):
                continue
            yield f"### {label}, {who}"
            yield ""
            yield f"| weights | clients do | {' | '.join(f'batch {size}' for size in batches)} |"
            yield f"|{'---|' * (2 + len(batches))}"
            for row in rows:
                yield f"| {' | '.join(row)} |"
            yield ""
            yield from list_attacks(points, network, server)
            yield ""


def list_attacks(points: Mapping[Key, Point], network: str, server: str) -> Iterator[str]:
    """Which attacks read most, and how often."""
    own = [p for k, p in points.items() if (k[0], k[4]) == (network, server)]
    best = Counter(p.attack for p in own if p.read)
    if best:
        words = ", ".join(f"`{attack}` ({count} cells)" for attack, count in best.most_common())
        yield f"Read most: {words}."
    guesses = Counter(p.member_attack for p in own if p.auc is not None)
    if guesses:
        low, high = min(p.auc or 1 for p in own), max(p.auc or 0 for p in own)
        words = ", ".join(f"`{attack}` ({count})" for attack, count in guesses.most_common())
        yield f"Best at membership: {words}; AUC from {format_auc(low)} to {format_auc(high)}."
    for start in dict.fromkeys(k[1] for k, p in points.items() if p.unfit and k[0] == network):
        reason = next(p.unfit for k, p in points.items() if k[:2] == (network, start) and p.unfit)
        yield f"Weights `{start}`: {reason}."


def main(path: Path) -> None:
    """Writes the page from the repository's results."""
    study = load_study("regimes")
    found = read_results(Path("results/regimes"), [each.name for each in study.experiments])
    path.write_text("\n".join(write_page(study, found)) + "\n", encoding="utf-8")
    say(f"written: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
