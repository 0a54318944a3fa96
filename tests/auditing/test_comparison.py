"""Audits compared: paired images, means alone, verdicts that changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from keyhole.auditing import AuditResult, Plan, Stage, compare_results, run_plan
from keyhole.auditing.comparison import RunComparison, compare_runs
from keyhole.auditing.differences import Leak, compute_unpaired_interval, judge_difference
from keyhole.auditing.pairing import pair_findings
from keyhole.errors import BadValue

Audit = Callable[..., AuditResult]


@pytest.fixture(scope="module")
def audit_digits(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Audits of digits on the fully connected network, each in a folder of its own."""
    place = tmp_path_factory.mktemp("runs")
    known: dict[str, AuditResult] = {}

    def run(seed: int = 0, **values: Any) -> AuditResult:
        chosen = {"data": "digits", "attacks": ("linear",), "victims": 8, **values}
        plan = Plan(seed=seed, stage=(Stage(**chosen),))
        if plan.digest not in known:
            known[plan.digest] = run_plan(plan, out=place / plan.digest)
        return known[plan.digest]

    return run


def of(compared: RunComparison, attack: str = "linear", attacker: str = "naive") -> Any:
    return next(
        p for p in compared.findings if (p.first.attack, p.first.attacker) == (attack, attacker)
    )


def undefended(result: AuditResult) -> AuditResult:
    """The result as if there had been no defense, so that it can be compared with others."""
    values = result.to_json()
    for finding in values["findings"]:
        finding["defense"] = {"name": "none", "parameters": {}}
    return AuditResult.from_json(values)


def test_a_run_is_the_same_as_itself(audit_digits: Audit) -> None:
    result = audit_digits(defenses=("none", "gaussian(sigma=0.01)"))
    compared = compare_runs(result, result)
    assert len(compared.findings) == len(result.findings) == 3
    for pair in compared.findings:
        assert (pair.unpaired, len(pair.images), pair.changes) == ("", 8, ())
        assert {d.leak for d in pair.differences.values()} == {Leak.SAME}
        assert all(d.low == d.high == d.difference == 0 for d in pair.differences.values())
    assert not any(v.changed for v in compared.verdicts)
    assert (compared.only_first, compared.only_second, compared.notes) == ((), (), ())


def test_images_are_compared_with_themselves(audit_digits: Audit) -> None:
    clear = undefended(audit_digits())
    noisy = undefended(audit_digits(defenses=("gaussian(sigma=0.02)",)))
    pair = of(compare_runs(clear, noisy))
    psnr = pair.differences["psnr"]
    first, second = (np.array(f.metrics["psnr"].per_image) for f in (pair.first, pair.second))
    assert list(psnr.per_image) == list(second - first)
    assert psnr.difference == pytest.approx(float((second - first).mean()))
    assert psnr.difference == pytest.approx(psnr.second - psnr.first)
    draws = np.random.default_rng(0).integers(0, 8, (2000, 8))
    means = (second - first)[draws].mean(axis=1)
    assert (psnr.low, psnr.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert psnr.leak is Leak.LESS
    assert pair.differences["mse"].leak is Leak.LESS
    assert pair.differences["mse"].difference > 0


def test_only_images_of_both_runs_are_compared(audit_digits: Audit) -> None:
    many, few = audit_digits(), audit_digits(victims=6)
    pair = of(compare_runs(many, few))
    indices = [i for batch in few.findings[0].recipe["indices"] for i in batch]
    assert sorted(pair.images) == sorted(indices)
    places = [[i for b in many.findings[0].recipe["indices"] for i in b].index(i) for i in indices]
    values = [many.findings[0].metrics["psnr"].per_image[place] for place in places]
    assert pair.differences["psnr"].first == pytest.approx(np.mean(values))
    assert pair.differences["psnr"].count == 6


def test_images_are_paired_in_whatever_batches_they_are(audit_digits: Audit) -> None:
    values = audit_digits().to_json()
    (finding,) = values["findings"]
    turned = {"recipe": {**finding["recipe"], "indices": finding["recipe"]["indices"][::-1]}}
    metrics = {
        name: {**each, "per_image": each["per_image"][::-1]}
        for name, each in finding["metrics"].items()
    }
    values["findings"] = [{**finding, **turned, "metrics": metrics}]
    pair = of(compare_runs(audit_digits(), AuditResult.from_json(values)))
    assert {d.leak for d in pair.differences.values()} == {Leak.SAME}


def test_other_seeds_attack_other_images_and_means_alone_are_compared(
    audit_digits: Audit,
) -> None:
    first, second = audit_digits(), audit_digits(seed=1)
    compared = compare_runs(first, second)
    pair = of(compared)
    assert pair.images == ()
    assert "the runs attack other images (seeds 0 and 1)" in pair.unpaired
    assert compared.notes[0].startswith("no image can be paired, means alone are compared: ")
    ssim = pair.differences["psnr"]
    assert ssim.per_image == ()
    assert ssim.first == first.findings[0].metrics["psnr"].mean
    assert ssim.difference == pytest.approx(ssim.second - ssim.first)
    assert ssim.low <= ssim.difference <= ssim.high


def test_curated_images_are_the_same_whatever_the_seed(audit_digits: Audit) -> None:
    photos = {"model": "vit-small", "data": "photos", "image_size": 32, "victims": 2}
    runs = [audit_digits(seed=s, attacks=("patch-lstsq",), **photos) for s in (0, 1)]
    pair = of(compare_runs(*runs), "patch-lstsq")
    assert (pair.unpaired, len(pair.images)) == ("", 2)
    assert "seed: 0 -> 1" in pair.changes
    assert pair.differences["psnr"].leak is Leak.UNCLEAR  # two images are too few to say


def test_images_of_another_size_are_not_paired(audit_digits: Audit) -> None:
    photos = {"model": "vit-small", "data": "photos", "victims": 1, "attacks": ("patch-lstsq",)}
    small, large = (audit_digits(image_size=size, **photos) for size in (32, 48))
    assert of(compare_runs(small, large), "patch-lstsq").unpaired == "the images have other sizes"


def test_a_data_set_that_has_changed_is_noticed(audit_digits: Audit, tmp_path: Path) -> None:
    result = audit_digits()
    assert result.run is not None
    shutil.copytree(result.run, tmp_path / "copy")
    path = next((tmp_path / "copy" / "pictures").glob("*.safetensors"))
    tensors = load_file(path)
    tensors["truth"] = tensors["truth"].flip(0)
    path.unlink()
    save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    pair = of(compare_runs(result, AuditResult.load(tmp_path / "copy")))
    assert pair.unpaired == "images of the same index differ: the data set has changed"


def test_a_folder_that_does_not_say_which_images_it_attacked(audit_digits: Audit) -> None:
    values = audit_digits().to_json()
    del values["findings"][0]["recipe"]["indices"]
    pair = of(compare_runs(audit_digits(), AuditResult.from_json(values)))
    assert pair.unpaired == "a run does not say which images were attacked"
    assert pair.differences["psnr"].difference == 0


def test_verdicts_that_changed_are_named(audit_digits: Audit) -> None:
    clear = undefended(audit_digits())
    hidden = undefended(audit_digits(defenses=("gaussian(sigma=10)",)))
    (verdict,) = compare_runs(clear, hidden).verdicts
    assert verdict.changed
    found = verdict.to_json()
    assert (found["first"], found["second"]) == ("broken", "not broken")
    assert (found["first_read"], found["second_read"]) == (1.0, 0.0)
    assert (found["first_by"], found["second_by"]) == ("linear (naive)", None)


def test_verdicts_on_a_malicious_server_that_changed_are_named(audit_digits: Audit) -> None:
    settings = {"attacks": ("linear", "imprint"), "victims": 1, "batch_size": 4}
    clear = audit_digits(**settings)
    hidden = undefended(audit_digits(defenses=("gaussian(sigma=10)",), **settings))
    (verdict,) = compare_runs(clear, hidden).verdicts
    assert verdict.changed
    assert [verdict.changed_for(server) for server in verdict.servers] == [False, True]
    found = verdict.to_json()
    assert (found["first"], found["second"]) == ("not broken", "not broken")
    assert found["malicious"] == {
        "changed": True,
        "first": "broken",
        "second": "not broken",
        "first_read": 1.0,
        "second_read": 0.0,
        "first_by": "imprint (naive)",
        "second_by": None,
    }


def test_an_honest_and_a_malicious_server_are_not_compared(audit_digits: Audit) -> None:
    settings = {"victims": 1, "batch_size": 4}
    honest, malicious = (audit_digits(attacks=(a,), **settings) for a in ("linear", "imprint"))
    (verdict,) = compare_runs(honest, malicious).verdicts
    assert (verdict.changed, verdict.shared) == (False, False)
    assert verdict.servers == ("honest", "malicious")
    found = verdict.to_json()["malicious"]
    assert (found["changed"], found["first"], found["second"]) == (False, None, "broken")
    (same,) = compare_runs(honest, honest).verdicts
    assert (same.shared, same.to_json()["malicious"]) == (True, None)


def test_findings_and_verdicts_of_one_run_alone_are_listed(audit_digits: Audit) -> None:
    first = audit_digits(defenses=("none", "gaussian(sigma=0.01)"))
    second = audit_digits(attacks=("linear", "labels"))
    compared = compare_runs(first, second)
    assert [(f.attack, f.attacker) for f in compared.only_first] == [
        *(("linear", "naive"), ("linear", "adaptive"))
    ]
    assert [f.attack for f in compared.only_second] == ["labels"]
    alone = compared.verdicts[1]
    assert (alone.second, alone.changed) == (None, False)
    assert alone.to_json()["second"] is None


def test_labels_are_compared_client_by_client(audit_digits: Audit) -> None:
    first = audit_digits(attacks=("labels",), batch_size=2, victims=3)
    pair = of(compare_runs(first, first), "labels")
    labels = pair.differences["labels"]
    assert (labels.count, len(labels.per_image), labels.leak) == (3, 3, Leak.SAME)


def test_settings_that_differ_are_said(audit_digits: Audit) -> None:
    settings = {"attacks": ("ig",), "victims": 2}
    short = audit_digits(iterations=20, **settings)
    long = audit_digits(iterations=40, **settings)
    pair = of(compare_runs(short, long), "ig")
    assert "iterations: 20 -> 40" in pair.changes
    assert pair.unpaired == ""


def test_several_findings_of_one_name_are_paired_by_their_parameters(audit_digits: Audit) -> None:
    settings = {"victims": 1}
    first = audit_digits(attacks=("ig(iterations=5)", "ig(iterations=10)"), **settings)
    second = audit_digits(
        attacks=("ig(iterations=10)", "ig(iterations=20)", "ig(iterations=5)"), **settings
    )
    pairs, only_first, only_second = pair_findings(first.findings, second.findings)
    assert [[f.attack_parameters["iterations"] for f in pair] for pair in pairs] == [
        *([5, 5], [10, 10])
    ]
    assert only_first == []
    assert [f.attack_parameters["iterations"] for f in only_second] == [20]
    left = audit_digits(attacks=("ig(iterations=5)", "ig(iterations=20)"), **settings)
    pairs, *_ = pair_findings(first.findings, left.findings)
    assert [[f.attack_parameters["iterations"] for f in pair] for pair in pairs] == [
        *([5, 5], [10, 20])
    ]


def test_runs_without_a_common_finding_say_so(audit_digits: Audit) -> None:
    compared = compare_runs(audit_digits(), audit_digits(attacks=("labels",)))
    assert compared.findings == ()
    assert compared.notes == ("the runs have no finding in common: nothing is compared",)


def test_other_versions_of_the_software_are_noted(audit_digits: Audit) -> None:
    values = audit_digits().to_json()
    before = values["findings"][0]["versions"].pop("torch")
    notes = compare_runs(audit_digits(), AuditResult.from_json(values)).notes
    assert notes == (f"software: torch: {before} -> not said",)


@pytest.mark.parametrize(
    ("low", "high", "count", "leaks_high", "leak"),
    [
        (0.1, 0.2, 6, True, Leak.MORE),
        (0.1, 0.2, 6, False, Leak.LESS),
        (-0.2, -0.1, 6, True, Leak.LESS),
        (-0.2, -0.1, 6, False, Leak.MORE),
        (-0.1, 0.2, 99, True, Leak.UNCLEAR),
        (0.1, 0.2, 5, True, Leak.UNCLEAR),
    ],
)
def test_a_difference_is_clear_where_its_interval_leaves_out_zero(
    low: float, high: float, count: int, leaks_high: bool, leak: Leak
) -> None:
    assert judge_difference(low, high, count, (1.0,), leaks_high=leaks_high) is leak


def test_means_of_other_images_have_an_interval_of_their_own() -> None:
    draw = np.random.default_rng(1)
    first, second = draw.normal(0, 1, 400), draw.normal(1, 1, 900)
    low, high = compute_unpaired_interval(first, second)
    centre, spread = second.mean() - first.mean(), np.sqrt(1 / 400 + 1 / 900)
    assert (low, high) == pytest.approx((centre - 1.96 * spread, centre + 1.96 * spread), abs=0.02)


def test_several_runs_are_compared_with_the_first(audit_digits: Audit) -> None:
    runs = [audit_digits(), audit_digits(victims=6), audit_digits(seed=1)]
    comparison = compare_results(runs)
    assert [c.first for c in comparison.comparisons] == [runs[0]] * 2
    assert [c.second for c in comparison.comparisons] == runs[1:]
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert [r["seeds"] for r in found["runs"]] == [[0], [0], [1]]
    assert [c["findings"][0]["paired"] for c in found["comparisons"]] == [True, False]
    with pytest.raises(BadValue, match="two runs or more"):
        compare_results(runs[:1])
