"""The paper's tables with ours beside them, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keyhole.studies.base import Study
from keyhole.studies.text_tables import Cell, Results, measured, table
from keyhole.studies.tip import paper
from keyhole.studies.tip.inversion import FRONT, OTHERS, SPELLED

METRICS = {"psnr": ("PSNR", 1), "ssim": ("SSIM", 3), "lpips": ("LPIPS", 3)}
SCORES = ("mse", "psnr", "ssim")


def tables(study: Study, results: Path) -> Iterator[str]:
    """All tables of which some row was measured."""
    found = measured(study, results)
    yield f"{study.paper}: ours (the paper's)"
    for make in (inversions, others, explanations, curves):
        yield from make(found)


def inversions(found: Results) -> Iterator[str]:
    """Table 1, and beside each attack the same by one who knows the defense."""
    for data, words in paper.DATA.items():
        names = [f"invert-{data}-{short}" for short in SPELLED]
        rows: list[list[Cell]] = []
        for attack in paper.ATTACKS:
            for key, (metric, _) in METRICS.items():
                for who in ("", " (adaptive)"):
                    cells = [
                        told(found.get(name), attack, who, key) + theirs(data, attack, who, key, at)
                        for at, name in enumerate(names)
                    ]
                    if any(not cell.startswith(("-", " ")) and cell for cell in cells):
                        rows.append([f"{attack}{who or ' (naive)'}, {metric}", *cells])
        counts = {found[name]["images"] for name in names if name in found}
        title = f"Table 1, {words}, ResNet-18, {' or '.join(map(str, sorted(counts)))} images"
        yield from table(title, ("attack", *SPELLED), rows)


def told(result: Mapping[str, Any] | None, attack: str, who: str, key: str) -> str:
    row = None if result is None else result["rows"].get(f"{attack}{who}")
    return "-" if row is None else score(row, key)


def score(row: Mapping[str, Any], key: str) -> str:
    metric = row["metrics"].get(key)
    return "-" if metric is None else f"{metric['mean']:.{METRICS[key][1]}f}"


def theirs(data: str, attack: str, who: str, key: str, at: int) -> str:
    """The paper's figure, beside the attacker that it had."""
    values = {"psnr": paper.PSNR, "ssim": paper.SSIM}.get(key)
    return "" if values is None or who else f" ({values[data, attack][at]:g})"


def others(found: Results) -> Iterator[str]:
    """What else was inverted on CIFAR-10, a line an attacker; and the accuracy left, if known."""
    names = [f"invert-cifar10-{short}" for short in (*OTHERS, *FRONT)]
    kinds = ("long-", "small-", "uploaded-", "unrolled-", "several-")
    names += [n for n in found if n.startswith(kinds)]
    rows: list[list[Cell]] = []
    for name in names:
        for attack, row in found.get(name, {}).get("rows", {}).items():
            values = [score(row, key) for key in METRICS]
            said = f"{attack.partition(' (')[0]}, {row['attacker']}"
            kept = found.get(f"utility-{name.removeprefix('invert-')}", {}).get("accuracy")
            left = "" if kept is None else f"{100 * kept:.1f}"
            rows.append([name, said, str(found[name]["images"]), *values, left])
    head = ("piece", "attack", "images", "PSNR", "SSIM", "LPIPS", "accuracy %")
    yield from table("Other settings", head, rows)


def explanations(found: Results) -> Iterator[str]:
    """Table 2: heat maps laid over images, with and without a defense."""
    rows: list[list[Cell]] = []
    for name, result in found.items():
        if not name.startswith("heat-"):
            continue
        for defense, row in result["rows"].items():
            if defense == "none":
                continue
            known = result["paper"].get(defense, {})
            ours = row["uploaded"]["overlay"]
            cells = [
                f"{ours[key]:.2f}" + (f" ({known[key]:g})" if key in known else "")
                for key in SCORES
            ]
            rows.append([f"{result['data']}, {defense}", f"{row['noise_norm']:.1f}", *cells])
    yield from table("Table 2, heat maps", ("defense", "noise norm", "MSE", "PSNR", "SSIM"), rows)


def curves(found: Results) -> Iterator[str]:
    """Figure 3: each curve at the last round that all of its panel have reached."""
    panels: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, result in found.items():
        if name.startswith("curve-"):
            recipe, partition = result["recipe"]["name"], result["partition"]
            panel = panels.setdefault(f"{result['data']}, {partition}, {recipe}", {})
            panel[result["defense"]] = {p["round"]: p["accuracy"] for p in result["points"]}
    rows: list[list[Cell]] = []
    for title, lines in panels.items():
        reached = set.intersection(*(set(line) for line in lines.values()))
        for defense, line in lines.items() if reached else ():
            rows.append([title, defense, str(max(reached)), 100 * line[max(reached)]])
    head = ("data, split, recipe", "defense", "round", "accuracy %")
    yield from table("Figure 3", head, rows)
