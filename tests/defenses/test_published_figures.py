"""Every figure in the docs on published defenses is one of the results."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from keyhole.defenses import DEFENSES
from scripts import ROOT

DOCS = (ROOT / "docs" / "published_defenses.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- (results/defenses/[\w-]+\.json).*?-->\n((?:\|.*\n)+)", DOCS)


def write_row(finding: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """One finding as the docs write it, apart from the parameters that they leave out."""
    metrics = finding["metrics"]
    ssim = f"{metrics['ssim']['mean']:.3f}".replace("0.", ".", 1)
    return (
        finding["defense"]["name"],
        f"{finding['attack']}, {finding['attacker']}",
        str(len(metrics["psnr"]["per_image"])),
        f"{metrics['psnr']['mean']:.1f}",
        ssim,
        f"{metrics['read']['mean']:.0%}",
    )


def test_there_is_a_table_for_each_file_of_results() -> None:
    files = {"soteria", "precode", "precode-2000", "single-images", "batches-of-4", "ats"}
    files |= {"oasis-lying-server"}
    assert {file for file, _ in TABLES} == {f"results/defenses/{name}.json" for name in files}


@pytest.mark.parametrize(("file", "table"), TABLES, ids=[file for file, _ in TABLES])
def test_each_row_is_a_finding(file: str, table: str) -> None:
    findings = json.loads((ROOT / file).read_text(encoding="utf-8"))["findings"]
    rows = table.splitlines()[2:]
    assert rows
    for row in rows:
        spelt, *figures = (cell.strip() for cell in row.strip("|").split("|"))
        defense = DEFENSES.parse(spelt.strip("`"))
        same = [f for f in findings if f["defense"]["name"] == defense.name]
        fits = [
            f
            for f in same
            if all(getattr(defense, k) == v for k, v in f["defense"]["parameters"].items())
        ]
        assert (defense.name, *figures) in [write_row(f) for f in fits], row


def test_the_costs_in_the_docs_are_those_measured() -> None:
    docs = (ROOT / "docs" / "deployed_defenses.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "results/defenses/cost.json").read_text(encoding="utf-8"))
    table = docs.partition("<!-- results/defenses/cost.json -->\n")[2].partition("\n\n")[0]
    expected = [
        f"| `{row['defense']}` | {row['ratio']:.2f} | {row['own']:.1f} |"
        for row in measured["rows"]
        if row["defense"] != "none"
    ]
    assert table.splitlines()[2:] == expected
    (own,) = measured["on_vit_small"]["rows"]
    assert f"{own['ratio']:.2f} rounds on `vit-small`" in docs
    names = {row["defense"] for row in [*measured["rows"], own]}
    assert names == set(DEFENSES.names())
