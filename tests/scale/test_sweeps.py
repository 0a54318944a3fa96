"""A sweep in pieces finds what one audit finds, and says it in tables of means over seeds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t

from keyhole.auditing import AuditResult, expand_plan, run_plan
from keyhole.errors import BadValue, DoesNotFit, RunFolderError
from keyhole.report import render
from keyhole.scale import Shard, merge_runs, open_store, run_sweep

STAGE: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "defenses": ["none", "gaussian(sigma=[1e-5,1e-1])"],
    "attacks": ["linear", "labels"],
    "victims": 2,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweep of three noises, two batch sizes and two seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = expand_plan({"seed": [0, 1], "stage": [{**STAGE, "batch_size": [1, 2]}]})
    run_sweep(sweep, out=folder / "runs" / "whole", store=open_store(folder / "pieces"))
    return folder


def facts(result: AuditResult) -> dict[str, Any]:
    """What is the same in every run of the same settings."""
    plain = json.loads(json.dumps([finding.to_json() for finding in result.findings]))
    for finding in plain:
        finding.pop("seconds")
        finding["telemetry"].pop("client_seconds")
        for added in ("swept", "place"):
            finding["recipe"].pop(added, None)
    return {finding["key"]: finding for finding in plain}


def test_pieces_find_what_one_audit_finds_bit_for_bit(home: Path) -> None:
    whole = facts(AuditResult.load(home / "runs" / "whole"))
    for seed in (0, 1):
        for batch in (1, 2):
            stage = {**STAGE, "batch_size": batch}
            (plan,) = expand_plan({"seed": seed, "stage": [stage]}).plans
            for key, finding in facts(run_plan(plan)).items():
                expected = {**finding, "data": f"digits (batch_size={batch}, seed={seed})"}
                assert whole.pop(key) == expected
    assert whole == {}


def test_another_plan_finds_the_pieces_again(home: Path, tmp_path: Path) -> None:
    store = open_store(home / "pieces")
    dates = {path: path.stat().st_mtime_ns for path in (home / "pieces").glob("*/result.json")}
    sweep = expand_plan({"seed": 1, "stage": [{**STAGE, "defenses": ["gaussian( sigma=0.1 )"]}]})
    result = run_sweep(sweep, out=tmp_path / "run", store=store)
    assert len(result.findings) == 3
    assert {p: p.stat().st_mtime_ns for p in (home / "pieces").glob("*/result.json")} == dates
    assert result.swept == ()
    assert result.findings[0].data == "digits"


def test_each_listed_parameter_has_a_table_of_means_over_seeds(home: Path) -> None:
    result = AuditResult.load(home / "runs" / "whole")
    tables = {table.parameter: table for table in result.swept}
    assert set(tables) == {"gaussian.sigma", "batch_size"}
    noise = {(p.value, p.setting): p for p in tables["gaussian.sigma"].points}
    assert {value for value, _ in noise} == {1e-5, 0.1}
    little = noise[1e-5, "gaussian, mlp, digits, batch_size=1"]
    assert (little.seeds, little.images, little.read.mean) == (2, 4, 1.0)
    assert little.by == ("linear (naive)",)
    assert little.read.low == pytest.approx(4 / (4 + 1.959964**2), abs=1e-6)
    means = [
        finding.metrics["psnr"].mean
        for finding in result.findings
        if finding.defense["parameters"].get("sigma") == 1e-5
        and finding.attacker == "naive"
        and finding.attack == "linear"
        and "batch_size=1" in finding.data
    ]
    half = t.ppf(0.975, 1) * abs(means[0] - means[1]) / 2
    assert little.psnr.mean == pytest.approx(sum(means) / 2)
    assert little.psnr.high == pytest.approx(sum(means) / 2 + half)
    batches = {p.value for p in tables["batch_size"].points}
    assert batches == {1, 2}
    assert any(p.setting.startswith("none") for p in tables["batch_size"].points)
    assert all(math.isfinite(p.ssim.mean) and p.ssim.high <= 1 for p in noise.values())


def test_the_page_shows_tables_and_plots(home: Path) -> None:
    page = render(AuditResult.load(home / "runs" / "whole"))
    assert page.count('<section class="swept">') == 2
    assert "Sweep over <code>gaussian.sigma</code>" in page
    assert "100%<small>[51%, 100%]</small>" in page
    assert 'style="' not in page


def test_shards_merge_to_the_whole(home: Path, tmp_path: Path) -> None:
    sweep = expand_plan({"seed": [0, 1], "stage": [{**STAGE, "batch_size": [1, 2]}]})
    store, shards = open_store(home / "pieces"), [tmp_path / f"shard-{n}" for n in (1, 2, 3)]
    for number, folder in enumerate(shards, start=1):
        run_sweep(sweep, out=folder, store=store, shard=Shard(number, 3))
    merged = merge_runs(shards[::-1], tmp_path / "merged")
    whole = AuditResult.load(home / "runs" / "whole")
    assert merged.findings == whole.findings
    assert merged.verdicts == whole.verdicts
    assert merged.swept == whole.swept
    assert AuditResult.load(tmp_path / "merged").findings == whole.findings
    pictures = [f.key for f in whole.findings if f.reads_images]
    assert merged.store is not None
    assert all("seen" in merged.store.pictures(key) for key in pictures)
    with pytest.raises(RunFolderError, match=r"shards 2/3 are not finished or not named"):
        merge_runs([shards[0], shards[2]], tmp_path / "other")
    lost = next(shards[1].glob("findings/*.json"))
    text = lost.read_text()
    lost.unlink()
    with pytest.raises(RunFolderError, match=rf"lacks 1 of the findings .* {lost.stem}"):
        merge_runs(shards, tmp_path / "other")
    lost.write_text(text)
    part = merge_runs([shards[0], shards[2]], tmp_path / "part", partial=True)
    assert 0 < len(part.findings) < len(whole.findings)
    run_sweep(expand_plan({"stage": [STAGE]}), out=tmp_path / "other", store=store)
    with pytest.raises(BadValue, match="another plan"):
        merge_runs([shards[0], tmp_path / "other"], tmp_path / "bad")
    with pytest.raises(BadValue, match="is one of the runs"):
        merge_runs(shards, shards[0])


def test_where_no_attack_applies_the_folder_stays_away(tmp_path: Path) -> None:
    sweep = expand_plan({"seed": [0, 1], "stage": [{**STAGE, "attacks": ["april"]}]})
    with pytest.raises(DoesNotFit, match="none of the attacks applies: april"):
        run_sweep(sweep, out=tmp_path / "run", store=open_store(tmp_path / "pieces"))
    assert not (tmp_path / "run").exists()
