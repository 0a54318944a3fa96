"""An audit with parts that no registry knows: objects, and names such as ``own_parts:MyAttack``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keyhole
from keyhole import report
from keyhole.auditing import Store
from keyhole.auditing.membership import MembershipPlan, infer_membership
from keyhole.errors import BadValue, DoesNotFit, UnknownName
from keyhole.metrics import METRICS, ImageMetric, Metric, choose_metrics
from keyhole.registry import spell_part

OWN = Path(__file__).with_name("own_parts.py")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module ``own_parts``, which lies in the current folder."""
    (tmp_path / "own_parts.py").write_text(OWN.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import own_parts

    yield own_parts
    del sys.modules["own_parts"]


def shown(result: keyhole.AuditResult) -> str:
    return Path(report.write(result, title="Own")).read_text()


def test_objects_run_and_are_reported(parts: Any, tmp_path: Path) -> None:
    result = keyhole.audit(
        model=parts.net(10, 1, (8, 8)),
        data="digits",
        defenses=[parts.MyDefense(p=0.3), "none"],
        attacks=[parts.MyAttack(strength=2), "linear"],
        metrics=[parts.ERROR],
        victims=2,
        out=tmp_path / "run",
    )
    first = result.findings[0]
    assert first.attack == "own_parts:MyAttack"
    assert first.attack_parameters == {"strength": 2, "window": None}
    assert first.attack_label == "own_parts:MyAttack(strength=2)"
    assert first.defense == {"name": "own_parts:MyDefense", "parameters": {"p": 0.3}}
    assert first.metrics["error1"].worst == min(first.metrics["error1"].per_image)
    assert "own_parts:MyAttack (naive)" in result.verdicts[0].tried
    page = shown(result)
    for words in ("own_parts:MyAttack(strength=2)<", "own_parts:MyDefense(p=0.3)", "Error 1 ↓"):
        assert words in page
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["stage"][0]["defenses"] == ["own_parts:MyDefense(p=0.3)", "none"]
    assert plan["stage"][0]["metrics"] == ["error1"]


def test_an_interrupted_audit_of_objects_goes_on(parts: Any, tmp_path: Path) -> None:
    again = [
        keyhole.audit(
            model="mlp",
            data="digits",
            defenses=[parts.MyDefense()],
            attacks=[parts.MyAttack()],
            victims=1,
            out=tmp_path / "run",
        )
        for _ in range(2)
    ]
    assert again[0].findings[0] == again[1].findings[0]


def test_a_defense_meets_the_attack_that_its_paper_measured_it_with(parts: Any) -> None:
    result = keyhole.audit(
        model="lenet",
        data="digits",
        defenses=[parts.MyDefense()],
        attacks=["ig(iterations=2)"],
        victims=1,
    )
    (finding,) = result.findings
    assert (finding.attack, finding.attacker) == ("ig", "paper")
    assert finding.knowledge["defense"] == "own_parts:MyDefense(p=0.5)"


def test_auto_tries_the_attacks_that_a_defense_names_by_their_place(parts: Any) -> None:
    class Named(parts.MyDefense):  # type: ignore[misc]
        paper_attacks = ("own_parts:MyAttack",)

    result = keyhole.audit(
        model="lenet", data="digits", defenses=[Named()], victims=1, iterations=1
    )
    tried = {finding.attack: finding.attacker for finding in result.findings}
    assert tried["own_parts:MyAttack"] == "paper"


def test_values_that_json_cannot_hold_are_recorded_as_text(parts: Any, tmp_path: Path) -> None:
    window = torch.ones(2)
    result = keyhole.audit(
        model="mlp",
        data="digits",
        attacks=[parts.MyAttack(window=window)],
        victims=1,
        out=tmp_path / "run",
    )
    assert result.findings[0].attack_parameters["window"] == "tensor([1., 1.])"
    assert Store.existing(tmp_path / "run").findings()[0].attack == "own_parts:MyAttack"
    shown(result)


@pytest.mark.parametrize("part", ["MyAttack(strength=2.0)", "MyDefense(p=0.3)"])
def test_what_an_object_is_spelt_as_parses_back(parts: Any, part: str) -> None:
    rooms: dict[str, Any] = {
        "MyAttack": keyhole.attacks.ATTACKS,
        "MyDefense": keyhole.defenses.DEFENSES,
    }
    registry = rooms[part.partition("(")[0]]
    made = registry.parse(f"own_parts:{part}")
    assert str(made) == spell_part(made) == f"own_parts:{part}"
    assert str(registry.parse(str(made))) == str(made)


def test_a_class_in_place_of_an_object_is_told(parts: Any) -> None:
    with pytest.raises(BadValue, match=r"attack MyAttack is a class: pass MyAttack\(\.\.\.\)"):
        keyhole.audit(model="mlp", data="digits", attacks=[parts.MyAttack], victims=1)
    with pytest.raises(BadValue, match=r"it must extend keyhole\.defenses\.base\.Defense"):
        keyhole.audit(model="mlp", data="digits", defenses=[parts.MyAttack()], victims=1)


def test_the_command_line_takes_parts_by_their_place(parts: Any, keyhole: Run) -> None:
    code, out, err = keyhole(
        *("audit", "--model", "own_parts:net(width=6)", "--data", "digits"),
        *("--attack", "own_parts:MyAttack", "--defense", "own_parts:MyDefense(p=0.3)"),
        *("--metric", "own_parts:error(power=2)", "--victims", "2", "--out", "run", "--json"),
    )
    assert (code, err) == (0, "")
    (found,) = json.loads(out)["findings"]
    assert found["attack"] == "own_parts:MyAttack"
    assert found["defense"] == {"name": "own_parts:MyDefense", "parameters": {"p": 0.3}}
    assert found["model"] == "own_parts:net(width=6)"
    assert len(found["metrics"]["error2"]["per_image"]) == 2
    assert found["custom_metrics"]["error2"]["label"] == "Error 2"


def test_a_plan_takes_parts_by_their_place(parts: Any, keyhole: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        "[[stage]]\nmodel = 'own_parts:net'\ndata = 'digits'\nvictims = 1\n"
        "attacks = ['own_parts:MyAttack(strength=2)']\ndefenses = ['own_parts:MyDefense']\n"
        "metrics = ['own_parts:ERROR', 'fft2d']\n"
    )
    code, out, _ = keyhole("audit", "plan.toml", "--out", "run")
    assert code == 0
    assert "Error 1 ↓" in out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "own_parts:MyDefense" in page
    assert "own_parts:MyAttack(strength=2.0)" in page


def test_a_run_folder_opens_without_the_parts_that_made_it(
    parts: Any, keyhole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyhole(
        *("audit", "--model", "own_parts:net", "--data", "digits", "--victims", "1"),
        *("--attack", "own_parts:MyAttack", "--defense", "own_parts:MyDefense"),
        *("--metric", "own_parts:ERROR", "--out", "run"),
    )
    (tmp_path / "own_parts.py").write_text("raise RuntimeError('gone')")
    monkeypatch.setitem(sys.modules, "own_parts", None)  # type: ignore[arg-type]
    code, out, err = keyhole("report", "run")
    assert (code, err) == (0, "")
    assert "Error 1 ↓" in out
    assert "own_parts:MyDefense" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--attack", "own_parts:MyAttack(strength='x')"], "strength: input should be a valid num"),
        (["--attack", "own_parts:MyAttack(power=2)"], "parameter of attack own_parts:MyAttack"),
        (["--attack", "own_parts:MyAttack(strength=0)"], "it has no strength"),
        (["--attack", "own_parts:MyDefense"], "own_parts:MyDefense is not an attack"),
        (["--defense", "own_parts:Nothing"], "has nothing to call by the name 'Nothing'"),
        (["--defense", "nowhere:Nothing"], "must be importable from here"),
        (["--metric", "own_parts:MyDefense"], "is not a metric: it must extend"),
        (["--model", "own_parts:net(depth=3)"], "parameter of model own_parts:net 'depth'"),
    ],
)
def test_a_mistake_is_one_line(
    parts: Any, keyhole: Run, tmp_path: Path, arguments: list[str], words: str
) -> None:
    usual = {"--model": "mlp", "--attack": "linear"}
    for option, value in usual.items():
        if option not in arguments:
            arguments = [*arguments, option, value]
    code, out, err = keyhole("audit", "--data", "digits", "--victims", "1", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_membership_takes_an_attack_and_a_defense_by_their_place(parts: Any) -> None:
    plan = MembershipPlan(
        attacks=("own_parts:Flat(views=2)",),
        defenses=("own_parts:MyDefense(p=0.3)",),
        members=4,
        public=4,
        epochs=1,
        model="mlp",
    )
    (trial,) = infer_membership(plan).trials
    assert [each.attack for each in trial.inferences] == ["own_parts:Flat(views=2)"]
    assert trial.defense == {"name": "own_parts:MyDefense", "parameters": {"p": 0.3}}


def describe(**changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "name": "grey",
        "label": "Grey",
        "summary": "distance of mean greys",
        "leaks_high": False,
        "low": 0.0,
        "high": 1.0,
        "function": lambda found, truth, data_range: (found - truth).mean((1, 2, 3)).abs(),
    }
    return usual | changes


@pytest.mark.parametrize(
    "changes",
    [{"name": ""}, {"name": "a b"}, {"digits": -1}, {"low": 2.0}, {"low": float("nan")}],
    ids=str,
)
def test_a_metric_that_could_not_be_read_again_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="metric"):
        ImageMetric(**describe(**changes))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda found, truth, data_range: found.mean(), r"must give a tensor \[1\], not \[\]"),
        (lambda found, truth, data_range: 3.0, r"must give a tensor \[1\], not float"),
        (lambda found, truth, data_range: found.mean((1, 2, 3)) + 7, "between 0 and 1"),
        (lambda found, truth, data_range: found.mean((1, 2, 3)) / 0, "it gave inf"),
        (lambda found, truth, data_range: found[:, 3], "fails on 1x1x8x8 images"),
    ],
)
def test_a_metric_is_tried_before_anything_is_written(
    function: Any, words: str, tmp_path: Path
) -> None:
    metric = ImageMetric(**describe(function=function))
    with pytest.raises(DoesNotFit, match=words) as raised:
        keyhole.audit(
            model="mlp",
            data="digits",
            attacks=["linear"],
            victims=1,
            metrics=[metric],
            out=tmp_path / "run",
        )
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_cap_bounds_what_is_infinite() -> None:
    images = torch.full((2, 1, 2, 2), 0.5)
    metric = ImageMetric(
        **describe(
            high=None, cap=9.0, function=lambda found, truth, data_range: found[:, 0, 0, 0] / 0
        )
    )
    assert metric.measure(images, images) == [9.0, 9.0]
    assert metric.description == Metric(
        "grey", "Grey", "distance of mean greys", False, 0.0, None, cap=9.0
    )


def test_metrics_are_chosen_once_and_keep_their_names_apart() -> None:
    grey = ImageMetric(**describe())
    assert choose_metrics([grey, "psnr", METRICS["ssim"], grey]) == (grey,)
    with pytest.raises(BadValue, match="two of that name"):
        choose_metrics([grey, replace(grey, label="Gray")])
    with pytest.raises(BadValue, match="two of that name"):
        choose_metrics([replace(grey, name="psnr")])
    with pytest.raises(BadValue, match="grey cannot be measured"):
        choose_metrics([grey.description])
    with pytest.raises(UnknownName, match=r"unknown metric 'psn': did you mean psnr"):
        choose_metrics(["psn"])
