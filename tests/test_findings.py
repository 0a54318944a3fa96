"""Figures of README's table and of the page on findings are those of ``results/``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from scripts import ROOT

Metrics = Mapping[str, Mapping[str, Any]]

TABLE = {
    ("none", "DeiT-S, 224 px photos"): ("closed_form/summary.json", "none"),
    ("dropout(p=0.25)", "DeiT-S, 224 px photos"): ("closed_form/summary.json", "dropout"),
    ("dropout(p=0.25)", "LeNet, CIFAR-10"): ("dia/lenet-cifar10-p25.json", "dropout"),
    ("pruning(ratio=0.9)", "LeNet, CIFAR-10"): ("defenses/bounds_lenet_h200.json", "pruning"),
    ("signsgd", "LeNet, CIFAR-10"): ("defenses/bounds_lenet_h200.json", "signsgd"),
    ("mjp(gamma=0.5)", "DeiT-S, 224 px photos"): ("mjp/privacy-deit-g50.json", "mjp"),
    ("tip", "ResNet-18, CIFAR-10"): ("tip/invert-cifar10-tip.json", "tip"),
    ("csvar", "none: shuffled CIFAR-10 images"): ("csvar/see-cifar10-csvar-v1.json", "csvar"),
    ("dp(epsilon=50)", "ResNet-18, CIFAR-10"): ("tip/invert-cifar10-dp-e50.json", "dp"),
}
"""Where the figures of a row of README's table lie: the file, and whose findings count in it."""
KNOWS_MASKS = {"dia", "dia-read"}
"""Attacks of the DIA study that model dropout; its other attacks ignore the masks."""


def load(file: str) -> Any:
    return json.loads((ROOT / "results" / file).read_text(encoding="utf-8"))


def findings(file: str, defense: str) -> tuple[str, list[tuple[bool, Metrics]]]:
    """The machine, and for each finding whether its attacker knows the defense, and its metrics."""
    whole = load(file)
    if "findings" in whole:  # of an audit
        first = whole["findings"][0]["model"]
        found = [
            (f["attacker"] == "adaptive", f["metrics"])
            for f in whole["findings"]
            if f["defense"]["name"] == defense and f["model"] == first and f["attack"] != "april"
        ]
        return "H200", found
    if "machine" in whole:
        rows = [row for row in whole["rows"] if row["defense"]["name"] == defense]
        return "H200", [(row["attacker"] == "adaptive", row) for row in rows]
    machine = "H200" if "H200" in whole["device"] else "CPU"
    return machine, [
        (row["attacker"] == "adaptive" or name in KNOWS_MASKS, row["metrics"])
        for name, row in whole["rows"].items()
        if row["attacker"] != "paper" or defense == "dropout"
    ]


def write_best(found: list[tuple[bool, Metrics]], *, knows: bool) -> str:
    """The figures of the attacker who read most; of equals, of the one who saw most."""
    own = [metrics for who, metrics in found if who == knows]
    if not own:
        return ""
    best = max(own, key=lambda m: (m["read"]["mean"], m["psnr"]["mean"]))
    return f"{best['psnr']['mean']:.1f} dB, {best['read']['mean']:.0%}"


def count_images(file: str, found: list[tuple[bool, Metrics]]) -> int:
    metrics = found[0][1]
    whole = load(file)
    return int(whole.get("images") or metrics.get("victims") or len(metrics["psnr"]["per_image"]))


def readme_rows() -> list[list[str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it found")[2]
    lines = re.findall(r"^\| (.+) \|$", text, re.M)[1:]
    return [[cell.strip() for cell in line.split("|")] for line in lines if "---" not in line]


def test_the_table_has_a_row_for_each_result_that_it_names() -> None:
    assert [(row[0].replace("`", ""), row[1]) for row in readme_rows()] == list(TABLE)


@pytest.mark.parametrize("row", readme_rows(), ids=lambda row: f"{row[0]} {row[1]}")
def test_each_row_says_what_was_measured(row: list[str]) -> None:
    file, defense = TABLE[row[0].replace("`", ""), row[1]]
    machine, found = findings(file, defense)
    expected = [write_best(found, knows=knows) for knows in (False, True)]
    assert row[2:] == [f"{count_images(file, found):,}", *expected, machine]


def test_the_accuracies_are_those_of_the_trainings() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    kept, plain = (load(f"tip/utility-cifar10-{of}.json") for of in ("dp-e50", "none"))
    assert f"{kept['accuracy']:.1%} accuracy instead of {plain['accuracy']:.1%}" in text
    assert f"after {plain['recipe']['rounds']} rounds" in text


def test_who_knows_bounds_reads_what_the_page_says() -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    file = re.escape("<!-- results/defenses/bounds_lenet_h200.json -->")
    (table,) = re.findall(rf"{file}\n((?:\|.*\n)+)", text)
    rows = table.splitlines()[2:]
    measured = load("defenses/bounds_lenet_h200.json")["rows"]
    assert len(rows) == len(measured) / 2
    for row in rows:
        spelt, count, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        name = spelt.strip("`").split("(")[0]
        own = {m["attacker"]: m for m in measured if m["defense"]["name"] == name}
        assert {str(m["victims"]) for m in own.values()} == {count}
        for kind, cell in zip(("naive", "adaptive"), cells, strict=True):
            m = own[kind]
            ssim = f"{m['ssim']['mean']:.3f}".replace("0.", ".", 1)
            assert cell == f"{m['psnr']['mean']:.1f} dB, {ssim}, {m['read']['mean']:.0%}", row
