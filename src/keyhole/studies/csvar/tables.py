"""The paper's tables with ours beside them, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from keyhole.studies.base import Study
from keyhole.studies.csvar import paper
from keyhole.studies.text_tables import Results, measured, table

ACCURACIES = ("accuracy", "accuracy_on_defended")
SCORES = ("ssim", "psnr", "reid", "read")


def tables(study: Study, results: Path) -> Iterator[str]:
    """All tables of which some row was measured."""
    found = measured(study, results)
    yield f"{study.paper}: ours (the paper's)"
    for make in (accuracies, costs, overfitting, membership, generated, seen):
        yield from make(found)


def accuracies(found: Results) -> Iterator[str]:
    """Table I: accuracy on clean test images, and on such as the defense shows."""
    rows = []
    for data, words in paper.DATA.items():
        for defense in paper.DEFENSES:
            cells: list[str] = []
            for network in paper.NETWORKS:
                name = f"table-{data.removesuffix('-faces')}-{network}-{defense}"
                theirs = paper.TABLE_1[data, network, defense]
                value = found.get(name)
                if value is None:
                    cells.append(f"- ({theirs:.2f})")
                    continue
                own = value["accuracy_on_defended"]
                also = "" if own is None else f" / {100 * own:.1f}"
                cells.append(f"{100 * value['accuracy']:.1f}{also} ({theirs:.2f})")
            if any(not cell.startswith("-") for cell in cells):
                rows.append([f"{words}, {paper.WORDS[defense]}", *cells])
    head = ("accuracy %: clean / as defended", *paper.NETWORKS.values())
    yield from table("Table I, ten clients", head, rows)


def costs(found: Results) -> Iterator[str]:
    """The same of CSVAR without some of its parts."""
    rows = [
        [result["defense"], *(f"{100 * result[kind]:.1f}" for kind in ACCURACIES)]
        for name, result in found.items()
        if name.startswith("why-")
    ]
    head = ("defense", "clean %", "as defended %")
    yield from table("What of CSVAR costs accuracy: CIFAR-10, MobileNet", head, rows)


def overfitting(found: Results) -> Iterator[str]:
    result = found.get("overfitting")
    rows = [
        [
            str(trial["epochs"]),
            f"{100 * trial['train_accuracy']:.1f}",
            f"{100 * trial['test_accuracy']:.1f}",
            f"{trial['inferences'][0]['auc']:.3f}",
        ]
        for trial in (result or {}).get("trials", ())
    ]
    head = ("epochs", "train %", "test %", "AUC (.5 to .70)")
    yield from table("Figure 1, overfitting and membership inference by loss", head, rows)


def membership(found: Results) -> Iterator[str]:
    rows = []
    for defense in paper.DEFENSES:
        for trial in found.get(f"membership-{defense}", {}).get("trials", ()):
            for one in trial["inferences"]:
                rates = [f"{100 * rate['rate']:.1f}" for rate in one["rates"]]
                theirs = f" ({paper.AUC[defense]:.2f})" if one["attack"] == "loss" else ""
                auc = f"{one['auc']:.3f}{theirs if one['attacker'] == 'naive' else ''}"
                gap = f"{100 * trial['gap']:.0f}"
                row = f"{paper.WORDS[defense]}: {one['attack']}, {one['attacker']}"
                rows.append([row, gap, auc, *rates])
    head = ("attack", "gap", "AUC", "TPR % at .1% FPR", "at 1%")
    yield from table("Figure 7, membership inference on a client of 500 images", head, rows)


def generated(found: Results) -> Iterator[str]:
    """Figure 6: drawings beside noise and other classes' images, which score as much unlearnt."""
    rows = []
    for name, result in found.items():
        if not name.startswith("gan-"):
            continue
        scores = [
            f"{result['generated'][key]:.3f} ({result['others'][key]:.3f})"
            for key in ("recognised", "nearest_ssim", "mean_ssim")
        ]
        accuracy = f"{100 * result['accuracy']:.0f}"
        rows.append([name, result["attacker"], accuracy, *scores])
    head = ("piece", "attacker", "model %", "recognised", "SSIM to nearest", "SSIM to class mean")
    yield from table("Figure 6, drawn by a GAN (images of other classes)", head, rows)


def seen(found: Results) -> Iterator[str]:
    rows = []
    for name, result in found.items():
        if not name.startswith(("see-", "invert-")):
            continue
        for attack, row in result["rows"].items():
            values = [f"{row['metrics'][s]['mean']:.3f}" for s in SCORES]
            rows.append([name, f"{attack.partition(' (')[0]}, {row['attacker']}", *values])
    head = ("images", "attack", "SSIM", "PSNR", "re-identified", "read")
    yield from table("What is seen of the images", head, rows)
