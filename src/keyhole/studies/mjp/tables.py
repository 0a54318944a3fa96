"""The paper's tables with ours beside them, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keyhole.studies.base import Study
from keyhole.studies.mjp.paper import GAMMAS, TABLE_1, TABLE_2, TABLE_3, TABLE_5, TABLE_7, TABLE_8
from keyhole.studies.text_tables import Cell, Results, measured, paired, table


def tables(study: Study, results: Path) -> Iterator[str]:
    """All tables of which some row was measured."""
    found = measured(study, results)
    yield f"{study.paper}: ours (the paper's)"
    for make in (networks, variants, strengths, positions, robustness, april, privacy):
        yield from make(found)


def networks(found: Results) -> Iterator[str]:
    rows = []
    for name, paper in TABLE_1.items():
        value = found.get(name, {}).get("evaluation")
        if value is not None:
            rows.append([name, *paired(numbers(value), paper)])
    yield from table("Table 1, CIFAR-10 (the paper's: ImageNet)", HEAD_1, rows)


HEAD_1 = ("network", "top-1 %", "Diff. Norm.", "consistency %")


def numbers(value: Mapping[str, Any]) -> tuple[float, float, float]:
    return 100 * value["accuracy"], value["difference_norm"], 100 * value["consistency"]


def variants(found: Results) -> Iterator[str]:
    rows = []
    for letter, (words, *paper) in TABLE_2.items():
        value = found.get(f"deit-{letter}", {}).get("evaluation")
        if value is not None:
            accuracy, _, same = numbers(value)
            rows.append([f"{letter}: {words}", *paired((accuracy, same), paper)])
    yield from table("Table 2, variants", ("variant", "top-1 %", "consistency %"), rows)


def strengths(found: Results) -> Iterator[str]:
    rows = []
    for gamma, paper in TABLE_3.items():
        name = {0.0: "deit-D", 0.1: "deit-J"}.get(gamma, f"deit-J-g{round(100 * gamma)}")
        value = found.get(name, {}).get("evaluation")
        if value is not None:
            rows.append([f"{gamma:g}", *paired(numbers(value), paper)])
    yield from table("Table 3, gamma in training", ("gamma", *HEAD_1[1:]), rows)
    names = ("deit-A", "deit-J", "long-deit-A", "long-deit-J", "resnet-plain", "resnet-jp")
    rows = [
        [name, *(100 * found[name]["evaluation"]["accuracy_by_gamma"][str(g)] for g in GAMMAS)]
        for name in names
        if name in found
    ]
    yield from table(
        "Figure 2, top-1 % by gamma at inference", ("network", *map(str, GAMMAS)), rows
    )


def positions(found: Results) -> Iterator[str]:
    rows, errors = [], []
    for letter, words in (("A", "DeiT"), ("I", "MJP, LN"), ("J", "MJP, NLN")):
        value = found.get(f"deit-{letter}", {}).get("positions")
        if value is None:
            continue
        ours = [100 * v for v in value["explained_variance"].values()]
        rows.append([words, *paired(ours, TABLE_7.get(letter, ()))])
        pair = (value["regression_1d"], value["regression_2d"])
        errors.append([words, *paired(pair, TABLE_8.get(letter, ()), digits=3)])
    yield from table("Table 7, explained variance %", ("network", *"34567"), rows)
    yield from table("Table 8, error of positions by regression", ("network", "1D", "2D"), errors)


def robustness(found: Results) -> Iterator[str]:
    rows = []
    for name in ("long-deit-A", "long-deit-J"):
        value = found.get(name, {}).get("robustness")
        if value is not None:
            odd = value.get("aupr_out", value.get("aupr_out_cifar100"))
            rows.append([name, 100 * value["mce"], 100 * value["aurra"], 100 * odd])
    head = ("network", "mean error %", "AURRA %", "AUPR % (CIFAR-100 unseen)")
    yield from table("Table 4's measures, our corruptions of CIFAR-10", head, rows)


SCORES = ("mse", "fft2d", "psnr", "ssim", "lpips")


def april(found: Results) -> Iterator[str]:
    for piece in ("april-deit-s", "april-cifar10"):
        if piece not in found:
            continue
        rows = [
            [f"{setting} {name}", *(digits(scores[k], k) for k in SCORES)]
            for setting in "abcd"
            for name, each in found[piece]["rows"].items()
            for scores in (each[setting],)
        ]
        images = found[piece]["images"]
        title = f"Table 5, APRIL as published, {piece.partition('-')[2]}, {images} images"
        yield from table(title, ("setting", *map(str.upper, SCORES)), rows)
    rows = [
        [name, *(digits(v, k) for v, k in zip(v5, SCORES, strict=True))] for name, v5 in TABLE_5
    ]
    yield from table("Table 5, the paper's", ("setting", *map(str.upper, SCORES)), rows)


def privacy(found: Results) -> Iterator[str]:
    head = ("gamma, attack", "attacker", "images", "SSIM", "PSNR", "LPIPS", "Re-ID %", "read %")
    for kind, title in (
        ("deit", "one update, DeiT-S at 224 px, imagenet-sample"),
        ("vit", "one update, vit-small at 32 px, dia-cifar10"),
    ):
        names = [n for n in found if n.startswith((f"privacy-{kind}", f"match-{kind}"))]
        rows = [row for name in sorted(names, key=strength) for row in audited(found[name], name)]
        yield from table(f"Attackers, {title}", head, rows)
        names = [n for n in found if n.startswith(f"rounds-{kind}")]
        rows = [row for name in sorted(names, key=strength) for row in audited(found[name], name)]
        yield from table(f"Several updates by one image, {kind}", head, rows)
        yield from verdict(found, kind)


def verdict(found: Results, kind: str) -> Iterator[str]:
    """From which gamma on nothing that was tried read an image."""
    for words, begins in (("one update", ("privacy", "match")), ("several updates", ("rounds",))):
        names = [n for n in found if n.startswith(tuple(f"{b}-{kind}" for b in begins))]
        read: dict[float, float] = {}
        for name in names:
            gamma = int(strength(name)[0]) / 100
            shares = [row["metrics"]["read"]["mean"] for row in found[name]["rows"].values()]
            read[gamma] = max([read.get(gamma, 0.0), *shares])
        broken = max((g for g, share in read.items() if share > 0), default=None)
        held = [g for g in sorted(read) if broken is None or g > broken]
        if not read:
            continue
        yield ""
        if held:
            yield f"  {words}: nothing tried read an image from gamma = {held[0]:g} on"
        else:
            yield f"  {words}: images were read at every gamma tried, up to {max(read):g}"


def strength(name: str) -> tuple[str, str]:
    return name.rpartition("-g")[2], name


def audited(result: Mapping[str, Any], name: str) -> list[list[Cell]]:
    """A line for every attacker of an audit."""
    gamma = int(strength(name)[0]) / 100
    rows: list[list[Cell]] = []
    for attack, row in result["rows"].items():
        metrics = {k: v["mean"] for k, v in row["metrics"].items()}
        said = f"{gamma:g} {attack.removesuffix('-read')}"
        if row["iterations"]:
            said += f", {row['iterations']:.0f} steps"
        repeats = result["stage"].get("repeats", 1)
        said += f", {repeats} updates" if repeats > 1 else ""
        scores = [digits(metrics[k], k) for k in ("ssim", "psnr", "lpips") if k in metrics]
        share = [100 * metrics["reid"], 100 * metrics["read"]]
        rows.append([said, row["attacker"], str(result["images"]), *scores, *share])
    return rows


def digits(value: float, name: str) -> str:
    return f"{value:.{ {'psnr': 1, 'mse': 4, 'fft2d': 4}.get(name, 3) }f}"
