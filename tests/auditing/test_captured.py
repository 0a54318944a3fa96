from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from captures import audited, change_file, change_json, client_file, manifest, replaced, ssims
from keyhole.auditing import Plan, Stage, run_plan
from keyhole.auditing.captured_clients import give_names
from keyhole.errors import KeyholeError
from keyhole.federation import TrainingPlan, train
from keyhole.models import build

RUN = importlib.import_module("keyhole.auditing.run")
Keyhole = Callable[..., tuple[int, str, str]]
MODEL = ("--model", "vit-small", "--data", "digits")
ONE_IMAGE = ("--images", "1", "--steps", "1", "--batch-size", "1", "--clients", "3")


def test_what_a_training_captured_is_read_by_an_audit(keyhole: Keyhole) -> None:
    options = ("--rounds", "1", "--capture", "seen", "--together", "no", "--json")
    assert keyhole("train", *MODEL, *ONE_IMAGE, *options)[0] == 0
    code, out, err = keyhole("audit", *MODEL, "--captured", "seen", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["notes"] == []
    (verdict,) = found["verdicts"]
    assert verdict["status"] == "broken"
    assert verdict["words"] == "broken by patch-lstsq (naive): 3 of 3 images read"
    finding = next(f for f in found["findings"] if f["attack"] == "patch-lstsq")
    assert finding["data"] == "digits, captured in round 1, 3 clients of 1 image"
    assert len(finding["metrics"]["ssim"]["per_image"]) == 3
    assert min(finding["metrics"]["ssim"]["per_image"]) >= 0.99
    truth = json.loads(Path("seen/truth.json").read_text())["clients"]
    assert finding["recipe"]["indices"] == [truth["0"], truth["1"], truth["2"]]
    assert (finding["recipe"]["lr"], finding["recipe"]["steps"]) == (0.03, 1)


def test_an_audit_of_a_capture_says_where_it_comes_from(seen: Path, keyhole: Keyhole) -> None:
    code, out, _ = keyhole("audit", *MODEL, "--captured", str(seen), "--out", "audit")
    assert code == 0
    assert "captured in round 1" in " ".join(out.split())
    assert "captured weights of round 1" in Path("audit/report.html").read_text()


@pytest.mark.parametrize("attack", ["wiig", "linear"])
def test_attacks_that_do_not_apply_are_not_tried(seen: Path, attack: str) -> None:
    result = audited(seen, attacks=("patch-lstsq", attack))
    assert {f.attack for f in result.findings} == {"patch-lstsq"}
    assert [s.attack.partition("(")[0] for s in result.skipped] == [attack]


def test_an_attack_that_applies_to_nothing_is_told(seen: Path) -> None:
    with pytest.raises(KeyholeError, match="linear"):
        audited(seen, attacks=("linear",))


@pytest.mark.parametrize(
    ("rounds", "expected"), [(None, [1]), ("2", [2]), ("all", [1, 2]), ("2, 1", [2, 1])]
)
def test_rounds_are_chosen(seen: Path, rounds: str | None, expected: list[int]) -> None:
    result = audited(seen, attacks=("patch-lstsq",), rounds=rounds)
    assert [int(f.recipe["rounds"]) for f in result.findings] == expected
    assert [f.recipe["checkpoint_epoch"] for f in result.findings] == [n - 1 for n in expected]
    assert min(ssims(result)) > 0.99
    assert len(result.verdicts) == len(expected)


def test_a_round_named_twice_is_attacked_once(seen: Path) -> None:
    assert len(audited(seen, attacks=("patch-lstsq",), rounds="1,1").findings) == 1


def test_clients_are_chosen(seen: Path) -> None:
    result = audited(seen, attacks=("patch-lstsq",), nodes="1,5")
    assert result.notes == ("client 5 did not answer in round 1",)
    (finding,) = result.findings
    truth = json.loads((seen / "truth.json").read_text())["clients"]
    assert finding.recipe["indices"] == [truth["1"]]
    assert finding.data == "digits, captured in round 1, client 1 of 1 image"
    assert ssims(result)[0] > 0.99


def test_no_more_clients_than_asked_for_are_attacked(seen: Path) -> None:
    assert len(ssims(audited(seen, victims=2))) == 2


def test_clients_go_by_their_partition_where_they_tell_it(seen: Path) -> None:
    def rename(found: dict[str, Any]) -> None:
        for client in found["clients"]:
            client["metrics"] = {"partition-id": int(client["node"])}
            client["node"] = f"98765{client['node']}"

    change_json(manifest(seen), rename)
    result = audited(seen, nodes="2")
    assert ssims(result)[0] > 0.99
    assert result.findings[0].data.startswith("digits, captured in round 1, client 2")


def test_tensors_without_names_are_matched_by_their_order(seen: Path) -> None:
    own = list(build("vit-small", classes=10, channels=1, image_size=8).state_dict())
    assert len(own) > 10  # so that "10" must come after "9"
    for path in (seen / "round-0001").glob("*.safetensors"):
        held = load_file(path)
        replaced(path, {str(place): held[name] for place, name in enumerate(own)})
    result = audited(seen)
    assert result.notes == ()
    assert min(ssims(result)) > 0.99


def test_only_a_whole_list_of_tensors_gets_the_models_names() -> None:
    model = nn.Linear(3, 2)
    listed = {"1": torch.zeros(2), "0": torch.zeros(2, 3)}
    assert {n: tuple(t.shape) for n, t in give_names(listed, model).items()} == {
        "weight": (2, 3),
        "bias": (2,),
    }
    for other in ({"0": torch.zeros(2, 3)}, {"weight": torch.zeros(2, 3), "0": torch.zeros(2)}):
        assert give_names(other, model) is other


def test_the_same_command_continues(
    seen: Path, keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("audit", *MODEL, "--captured", str(seen), "--rounds", "all", "--json")
    first = json.loads(keyhole(*command)[1])
    monkeypatch.setattr(RUN, "run_setting", lambda *_: pytest.fail("attacked again"))
    assert json.loads(keyhole(*command)[1]) == first
    assert len(first["findings"]) == 4


def test_an_audit_stopped_between_rounds_attacks_only_what_is_left(
    seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked: list[str] = []
    real = RUN.run_setting

    def run_settings(setting: Any, *values: Any) -> Any:
        if attacked:
            raise KeyboardInterrupt
        attacked.append(setting.resolved.stage.rounds)
        return real(setting, *values)

    monkeypatch.setattr(RUN, "run_setting", run_settings)
    with pytest.raises(KeyboardInterrupt):
        audited(seen, tmp_path / "audit", rounds="all")
    attacked.clear()
    result = audited(seen, tmp_path / "audit", rounds="all")
    assert attacked == ["2"]
    assert len(ssims(result)) == 6


def test_a_capture_that_changed_is_attacked_anew(seen: Path, tmp_path: Path) -> None:
    audited(seen, tmp_path / "audit")
    change_file(client_file(seen), lambda _, t: torch.randn_like(t))
    assert min(ssims(audited(seen, tmp_path / "audit"))) < 0.9


def test_a_client_of_many_images_is_not_tested_and_described_as_it_trained(
    tmp_path: Path, keyhole: Keyhole
) -> None:
    plan = TrainingPlan(
        model="lenet", clients=1, images=600, epochs=1, batch_size=32, rounds=1, lr=0.01
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    command = ("audit", "--model", "lenet", "--data", "digits", "--captured", "seen")
    code, out, _ = keyhole(*command, "--out", "audit")
    assert code == 0
    text, page = " ".join(out.split()), Path("audit/report.html").read_text()
    assert "not tested: only labels (naive) was run, which does not look for images" in text
    assert "600 images: iterative attacks are tried only if named with --attack" in text
    did = "19 steps of sgd, lr 0.01, momentum 0.9 (1 epoch in batches of 32)"
    for shown in (text, page):
        assert f"weights after {did}" in shown
        assert "attacks that unroll steps take them for one large step on all images" in shown
    assert 'class="chip unsure">not tested<' in page
    assert "not broken by" not in page
    found = json.loads(keyhole("report", "audit", "--json")[1])
    assert [v["status"] for v in found["verdicts"]] == ["not tested"]


def test_a_capture_that_no_attack_fits_does_not_stop_the_plans_other_stages(seen: Path) -> None:
    unfit = Stage(model="vit-small", data="digits", captured=seen, attacks=("linear",))
    fit = Stage(data="digits", attacks=("linear",), victims=1)
    result = run_plan(Plan(stage=(unfit, fit)))
    assert [v.status for v in result.verdicts] == ["broken", "not tested"]
    with pytest.raises(KeyholeError, match="attack 'linear' does not apply to 'vit-small'"):
        run_plan(Plan(stage=(unfit,)))
