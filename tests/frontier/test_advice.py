"""What to do: from a frontier, from measurements, or from neither; and never a promise."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from frontiers import make_frontier, make_outcome
from keyhole.auditing import AuditResult, Plan, Stage, expand_plan, result_schema, run_plan
from keyhole.auditing.measured import read_shipped
from keyhole.auditing.measurement import measure_findings
from keyhole.errors import RunFolderError
from keyhole.frontier.advice import advise, load_frontier
from keyhole.frontier.words import PROMISE
from keyhole.scale import open_store, run_sweep


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    stage = Stage(
        data="digits",
        defenses=("none", "gaussian(sigma=1e-6)"),
        attacks=("linear",),
        victims=1,
        steps=1,
        lr=0.1,  # a regime of which nothing comes with Keyhole
    )
    return run_plan(Plan(stage=(stage,)), out=tmp_path_factory.mktemp("run"))


def test_a_frontier_names_the_mildest_settings_and_their_price(result: AuditResult) -> None:
    [advice] = advise(result, make_frontier())
    assert advice.source == "frontier"
    assert [s.defense for s in advice.settings if s.held] == ["gaussian(sigma=0.1)", "topk(k=0.01)"]
    mildest = advice.settings[0]
    assert mildest.points == pytest.approx(3.0)
    assert mildest.images == 24
    text = " ".join(advice.lines)
    assert "3.0 points of accuracy less than without a defense, +0.00 s a round" in text
    assert "0 of 24 images read (95%: at most 14%) by ig (naive), ig (adaptive)" in text
    assert "topk(k=0.1) (8%)" in text
    assert PROMISE in advice.lines
    assert "attacked: 1 image a client, 1 step of lr 0.03" in text


def test_the_command_names_the_data_of_a_captured_run(result: AuditResult) -> None:
    captured = [
        dataclasses.replace(
            finding,
            data=f"{finding.data}, captured in round 1, 1 client of 1 image",
            recipe={**finding.recipe, "captured": "captured"},
        )
        for finding in result.findings
    ]
    verdicts = [dataclasses.replace(v, data=captured[0].data) for v in result.verdicts]
    run = dataclasses.replace(result, findings=tuple(captured), verdicts=tuple(verdicts))
    [advice] = advise(run)
    assert "--data digits " in advice.command


def test_what_held_elsewhere_and_is_broken_here_is_not_advised(result: AuditResult) -> None:
    held = make_outcome("gaussian", (0.96, 0.95, 0.97), 0, sigma=1e-6, clip=None)
    frontier = make_frontier()
    frontier = dataclasses.replace(frontier, settings=(*frontier.settings, held))
    [advice] = advise(result, frontier)
    assert "Held elsewhere, but broken in this audit: gaussian(sigma=1e-06)." in advice.lines
    assert not any(line.startswith("gaussian(sigma=1e-06):") for line in advice.lines)


def test_a_frontier_about_other_images_is_not_used(result: AuditResult) -> None:
    frontier = make_frontier()
    plan = frontier.plan.model_copy(update={"data": "faces"})
    [advice] = advise(result, dataclasses.replace(frontier, plan=plan))
    assert advice.source == "nothing"
    assert "The frontier given is about mlp on faces, so it was not used." in advice.lines


def test_without_any_measurement_the_command_for_one_is_named(result: AuditResult) -> None:
    [advice] = advise(result)
    assert advice.source == "nothing"
    assert advice.settings == ()
    assert "topk" in advice.not_measured
    words = shlex.split(advice.command)
    assert words[:6] == ["keyhole", "frontier", "--model", "mlp", "--data", "digits"]
    assert any(advice.command in line for line in advice.lines)
    assert "Do not share updates without a defense: broken in this audit." in advice.lines
    assert "Do not rely on gaussian(sigma=1e-06): broken in this audit." in advice.lines
    assert PROMISE not in advice.lines


def test_measurements_of_the_very_regime_are_named_without_a_price(result: AuditResult) -> None:
    known = [each for each in read_shipped() if each.server == "honest"]
    shipped = next(each for each in known if each.held and each.met_adaptive)
    regime = shipped.regime
    recipe = {
        **result.findings[0].recipe,
        "image_size": list(regime.image_size),
        "batch_size": regime.batch_size,
        "steps": regime.steps,
        "lr": None if regime.shares == "gradient" else 0.1,
        "repeats": regime.repeats,
        "client_mode": regime.mode or None,
    }
    moved = [
        dataclasses.replace(f, model=regime.model, data=regime.data, recipe=recipe)
        for f in result.findings
    ]
    verdicts = [
        dataclasses.replace(v, model=regime.model, data=regime.data) for v in result.verdicts
    ]
    [advice] = advise(
        dataclasses.replace(result, findings=tuple(moved), verdicts=tuple(verdicts), store=None)
    )
    assert advice.source == "measured"
    assert advice.where == regime.facts
    found = {each.defense: each for each in advice.settings}
    assert found[shipped.label].held
    assert found[shipped.label].points is None
    assert any(line.startswith("Not measured in this regime: ") for line in advice.lines)
    for change in ({"batch_size": 999}, {"warm_up": 5}, {"share": "head"}):
        other = [dataclasses.replace(f, recipe={**recipe, **change}) for f in moved]
        [elsewhere] = advise(
            dataclasses.replace(result, findings=tuple(other), verdicts=tuple(verdicts), store=None)
        )
        assert elsewhere.source == "nothing"


def test_a_frontier_in_the_run_folder_is_found_and_one_that_is_named_comes_first(
    result: AuditResult, tmp_path: Path
) -> None:
    assert load_frontier(result) is None
    assert result.store is not None
    make_frontier().save(result.store.root)
    try:
        assert advise(result)[0].source == "frontier"
    finally:
        (result.store.root / "frontier.json").unlink()
    with pytest.raises(RunFolderError, match="keyhole frontier"):
        load_frontier(result, tmp_path / "nowhere")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """A sweep over two batch sizes and two seeds."""
    home = tmp_path_factory.mktemp("swept")
    stage = {"data": "digits", "attacks": ("linear",), "victims": 1, "batch_size": [1, 2]}
    sweep = expand_plan({"seed": [0, 1], "stage": [stage]})
    return run_sweep(sweep, out=home / "run", store=open_store(home / "pieces"))


def test_the_seeds_of_a_sweep_are_advised_together_and_its_other_values_apart(
    swept: AuditResult,
) -> None:
    assert len(swept.sections) == 4
    one, two = advise(swept)
    assert (one.data, two.data) == ("digits (batch_size=1)", "digits (batch_size=2)")
    assert shlex.split(one.command)[:6] == [
        "keyhole",
        "frontier",
        "--model",
        "mlp",
        "--data",
        "digits",
    ]
    assert "--victim-images 2" in two.command
    assert sum("broken in this audit" in line for line in one.lines) == 1


def test_a_sweep_uses_the_frontier_of_its_model_and_data(swept: AuditResult) -> None:
    assert {each.source for each in advise(swept, make_frontier())} == {"frontier"}


def test_a_sweep_is_measured_in_the_regimes_of_single_audits(swept: AuditResult) -> None:
    regimes = {each.regime for each in measure_findings(swept.findings)}
    assert {(each.data, each.batch_size) for each in regimes} == {("digits", 1), ("digits", 2)}


def test_advice_fits_its_schema(result: AuditResult) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for frontier in (None, make_frontier()):
        advice = [each.to_json() for each in advise(result, frontier)]
        whole = {**result.to_json(), "what_to_do": json.loads(json.dumps(advice))}
        jsonschema.Draft202012Validator(result_schema()).validate(whole)


def test_a_change_by_a_malicious_server_that_is_noticed_is_advice_too(tmp_path: Path) -> None:
    stage = Stage(data="digits", attacks=("imprint",), victims=1, batch_size=2)
    [advice] = advise(run_plan(Plan(stage=(stage,)), out=tmp_path))
    assert any("keyhole guard --incoming" in line for line in advice.lines)
    assert "--victim-images 2" in advice.command
