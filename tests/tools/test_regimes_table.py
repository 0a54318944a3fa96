"""The shipped map of regimes holds what the repository's results say."""

from __future__ import annotations

import json
from pathlib import Path

from keyhole.auditing.regime_map import MappedRegime, read_map
from scripts import ROOT, load_script

TOOL = load_script("tools/regimes_table.py")


def test_the_shipped_map_is_that_of_the_results() -> None:
    made = list(TOOL.map_regimes(ROOT / "results"))
    assert made == list(read_map()), (
        "run tools/regimes_table.py src/keyhole/auditing/regimes.json and python -m "
        "keyhole_studies.regimes.page docs/regimes.md"
    )


def test_a_result_becomes_a_line_and_what_does_not_fit_none(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "regimes"
    folder.mkdir(parents=True)
    name = "quickstart-70-b4-step-malicious"
    metrics = {"read": {"mean": 0.5, "per_image": [1.0, 0.0]}, "psnr": {"mean": 20.0}}
    result = {
        "network": "quickstart",
        "weights": "70",
        "batch": 4,
        "local": "step",
        "server": "malicious",
        "model": "quickstart",
        "norm": "",
        "data": "cifar10",
        "images": 2,
        "membership": {},
        "rows": {"imprint": {"parameters": {}, "metrics": metrics}},
    }
    (folder / f"{name}.json").write_text(json.dumps(result))
    (folder / "deit-small-fresh-b1-step-honest.json").write_text('{"does_not_fit": "no file"}')
    out = tmp_path / "map.json"
    assert TOOL.main([str(out), "--results", str(tmp_path / "results")]) == 0
    (line,) = [MappedRegime(**each) for each in json.loads(out.read_text())]
    assert (line.weights, line.read, line.images, line.by) == ("70%", 1, 2, "imprint")
