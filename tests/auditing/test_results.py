"""Results as objects: opened, saved, as rows, frames, CSV and LaTeX."""

from __future__ import annotations

import builtins
import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import keyhole
from keyhole.auditing import (
    AuditResult,
    MembershipPlan,
    MembershipResult,
    Plan,
    Stage,
    infer_membership,
    run_plan,
)
from keyhole.auditing.latex import escape, format_verdicts
from keyhole.errors import DoesNotFit, RunFolderError

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """Two defenses and batches of two images; one attack on labels, one that does not fit."""
    stage = Stage(
        model="mlp",
        data="digits",
        defenses=("none", "gaussian(sigma=10)"),
        attacks=("linear", "labels", "patch-lstsq"),
        victims=3,
        batch_size=2,
    )
    return run_plan(Plan(title="Small", stage=(stage,)), out=tmp_path_factory.mktemp("run") / "a")


def test_a_folder_is_opened_as_it_was_left(result: AuditResult) -> None:
    assert result.run is not None
    again = keyhole.load_result(result.run)
    assert isinstance(again, AuditResult)
    assert again.to_json() == result.to_json()
    assert json.loads(Path(result.run, "summary.json").read_text()) == result.to_json()
    assert again.title == "Small"


def test_one_file_holds_all_but_the_pictures(result: AuditResult, tmp_path: Path) -> None:
    path = result.save(tmp_path / "deep" / "result.json")
    again = AuditResult.load(path)
    assert again.store is None
    assert {**again.to_json(), "run": result.run} == result.to_json()
    assert again.skipped == result.skipped != ()


def test_one_row_for_each_finding(result: AuditResult) -> None:
    frame = result.to_frame()
    assert len(frame) == len(result.findings)
    first = frame.iloc[0]
    finding = result.findings[0]
    assert list(first[["model", "data", "defense", "attack", "attacker", "server"]]) == [
        *("mlp", "digits", "none", "linear", "naive", "honest")
    ]
    assert (first.victims, first.images, first.seed, first.verdict) == (3, 6, 0, "broken")
    for name, summary in finding.metrics.items():
        for part in ("mean", "low", "high", "worst"):
            assert first[f"{name}_{part}"] == getattr(summary, part)
    labels = frame[frame.attack == "labels"].iloc[0]
    assert pandas.isna(labels.psnr_mean)
    assert (labels.labels_mean, labels.images) == (1.0, 6)
    assert first.seconds == pytest.approx(finding.seconds)
    assert json.loads(frame.iloc[-1].defense_parameters)["sigma"] == 10


def test_one_row_for_each_image(result: AuditResult) -> None:
    frame = result.to_frame(per_image=True)
    assert len(frame) == 6 * len(result.findings)
    finding = result.findings[0]
    rows = frame[frame.key == finding.key]
    assert list(rows.psnr) == list(finding.metrics["psnr"].per_image)
    assert list(rows.client) == [0, 0, 1, 1, 2, 2]
    assert list(rows.place) == [0, 1] * 3
    assert list(rows.image) == [i for batch in finding.recipe["indices"] for i in batch]
    means = frame.groupby("key").ssim.mean()
    assert means[finding.key] == pytest.approx(finding.metrics["ssim"].mean)
    labels = next(f for f in result.findings if f.attack == "labels")
    by_client = list(frame[frame.key == labels.key].labels)
    assert by_client == [v for v in labels.metrics["labels"].per_image for _ in range(2)]


def test_a_folder_that_does_not_say_which_images_they_were(result: AuditResult) -> None:
    values = result.to_json()
    for finding, wrong in zip(values["findings"], (None, [[1]], "x", [[1, "x"]] * 3), strict=False):
        finding["recipe"]["indices"] = wrong
    frame = AuditResult.from_json(values).to_frame(per_image=True)
    assert frame.image[:6].isna().all()
    assert list(frame.client[:6]) == [0, 0, 1, 1, 2, 2]


def test_csv_holds_the_same_rows(result: AuditResult, tmp_path: Path) -> None:
    text = result.to_csv(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == text
    read = pandas.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
    frames = [each.astype(object).where(each.notna(), None) for each in (read, result.to_frame())]
    pandas.testing.assert_frame_equal(*frames)
    long = list(csv.DictReader(io.StringIO(result.to_csv(per_image=True))))
    assert len(long) == 6 * len(result.findings)


def test_a_spreadsheet_computes_nothing_of_a_csv_file(result: AuditResult) -> None:
    values = result.to_json()
    for finding in values["findings"]:
        finding["model"] = '=HYPERLINK("http://x")'
    (first, *_) = csv.DictReader(io.StringIO(AuditResult.from_json(values).to_csv()))
    assert first["model"] == '\'=HYPERLINK("http://x")'


def test_without_pandas_one_line_says_what_to_install(
    result: AuditResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_pandas(name: str, *others: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(DoesNotFit, match=r"^a data frame needs pandas: pip install 'keyhole\[f"):
        result.to_frame()
    assert result.to_csv()


def test_latex_has_a_row_for_each_attacker_who_returned_images(
    result: AuditResult, tmp_path: Path
) -> None:
    text = result.to_latex(tmp_path / "out.tex")
    assert (tmp_path / "out.tex").read_text() == text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    rows = re.findall(r"^.* & linear & (\w+) & .*\\\\$", text, flags=re.M)
    assert rows == ["naive", "naive", "adaptive"]
    psnr = result.findings[0].metrics["psnr"]
    assert f"none & linear & naive & {psnr.mean:.1f} & " in text
    assert rf"{{\scriptsize [{psnr.low:.1f}, {psnr.high:.1f}]}}" in text
    width = text.split(r"\begin{tabular}{")[1].split("}")[0]
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    for line in body.splitlines():
        if line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == len(width) - 1


def test_latex_of_a_section_without_images_has_its_verdicts() -> None:
    stages = (
        Stage(data="digits", attacks=("labels",), victims=1),
        Stage(model="lenet", data="digits", attacks=("linear",), victims=1),
    )
    text = run_plan(Plan(stage=stages)).to_latex()
    assert text.count(r"none & not tested & not tested: ") == 2


@pytest.fixture(scope="module")
def two_servers() -> AuditResult:
    """An attack with an honest server that reads nothing, and one with a malicious server."""
    stage = Stage(data="digits", attacks=("linear", "imprint"), victims=1, batch_size=4)
    return run_plan(Plan(stage=(stage,)))


def test_rows_hold_the_verdicts_on_both_servers(
    result: AuditResult, two_servers: AuditResult
) -> None:
    frame = two_servers.to_frame()
    assert list(frame.server) == ["honest", "altered"]
    assert list(frame.verdict) == ["not broken"] * 2
    assert list(frame.malicious_verdict) == ["broken"] * 2
    assert list(frame.read_mean) == [0.0, 1.0]
    (first, *_) = csv.DictReader(io.StringIO(two_servers.to_csv()))
    assert (first["verdict"], first["malicious_verdict"]) == ("not broken", "broken")
    assert result.to_frame().malicious_verdict.isna().all()


def test_latex_marks_the_rows_that_need_a_malicious_server(
    result: AuditResult, two_servers: AuditResult
) -> None:
    text = two_servers.to_latex()
    assert "none & linear & naive & " in text
    assert r" & imprint & naive$^\dagger$ & " in text
    (caption,) = re.findall(r"^\\caption\{.*\}$", text, flags=re.M)
    assert caption.endswith(r" $^\dagger$ needs a malicious server, which changes the model.}")
    assert "dagger" not in result.to_latex()


def test_latex_of_verdicts_has_a_line_for_each_server(two_servers: AuditResult) -> None:
    rows = "\n".join(format_verdicts(two_servers.verdicts))
    assert "none & not broken & honest server: not broken by" in rows
    assert "none & broken & malicious server (changes the model: a fully" in rows


def test_no_name_is_a_command_of_latex() -> None:
    hostile = "\\input{/etc/passwd} % $x_1^2$ & # ~ \n\x1b"
    left = escape(hostile)
    for command in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}"):
        left = left.replace(command, "")
    assert re.sub(r"\\[{}%$&#_]", "", left).isprintable()
    assert not re.search(r"[\\{}%$&#_~^]", re.sub(r"\\[{}%$&#_]", "", left))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "it has no findings"),
        ([], "it has no findings"),
        ({"findings": [{}]}, r"finding 0 of .*json is not as an audit writes it"),
        ({"findings": [], "skipped": 3}, "not as an audit writes it"),
        ({"findings": [], "schema_version": 2}, "schema_version 2.*install a newer one"),
        ({"findings": [], "schema_version": "1"}, "schema_version '1'"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(
    tmp_path: Path, values: object, words: str
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(values))
    with pytest.raises(RunFolderError, match=words) as raised:
        AuditResult.load(path)
    assert "\n" not in str(raised.value)


def test_a_folder_of_a_later_version_is_refused(result: AuditResult, tmp_path: Path) -> None:
    assert result.run is not None
    shutil.copytree(result.run, tmp_path / "later")
    path = tmp_path / "later" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    with pytest.raises(RunFolderError, match="schema_version 2"):
        AuditResult.load(tmp_path / "later")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not the folder of an audit"):
        keyhole.load_result(tmp_path / "none")


def test_membership_runs_are_opened_too(tmp_path: Path) -> None:
    plan = MembershipPlan(model="mlp", members=20, public=40, epochs=1, attacks=("loss",))
    made = infer_membership(plan, out=tmp_path / "run")
    found = keyhole.load_result(tmp_path / "run")
    assert isinstance(found, MembershipResult)
    frame = found.to_frame()
    (inference,) = made.trials[0].inferences
    assert list(frame.auc) == [inference.auc]
    assert list(frame.attack) == ["loss"]
    assert {f"tpr_at_{rate.limit:g}" for rate in inference.rates} <= set(frame.columns)
    assert found.to_csv(tmp_path / "out.csv").count("\n") == 2
    assert f"none & 1 & loss & naive & {inference.auc:.3f} " in found.to_latex()
    with pytest.raises(DoesNotFit, match="no scores of single images"):
        found.to_frame(per_image=True)
