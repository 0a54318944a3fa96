from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from captures import audited, change_file, change_json, client_file, manifest, replaced, ssims
from keyhole.errors import KeyholeError, RunFolderError

Keyhole = Callable[..., tuple[int, str, str]]
MODEL = ("--model", "vit-small", "--data", "digits")


def test_another_model_is_told_in_a_line(seen: Path, keyhole: Keyhole, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    command = ("audit", "--model", "mlp", "--data", "digits", "--captured", str(seen))
    code, out, err = keyhole(*command)
    assert (code, out) == (2, "")
    assert err.startswith("keyhole: nothing in ")
    assert "another model's weights" in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rounds", "7"), "round '7' was not captured: there are 1, 2, or say all"),
        (("--rounds", "first"), "'first' was not captured"),
        (("--rounds", ""), "was not captured"),
        (("--clients", "8"), "client 8 did not answer in round 1"),
        (("--truth", "nowhere.json"), "nowhere.json cannot be read"),
        (("--truth", "torn.json"), "torn.json cannot be read"),
        (("--truth", "odd.json"), "odd.json is not a truth file"),
        (("--attack", "patch-lstq"), "did you mean patch-lstsq"),
        (("--captured", "empty"), "holds no captured round"),
        (("--captured", "nowhere"), "is not a folder"),
        (("--data", "faces"), "--image-size 24x24"),
        (("--defense", "gausian"), "did you mean gaussian"),
    ],
)
def test_bad_input_gets_one_clear_line(
    seen: Path, keyhole: Keyhole, tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.json").write_text('{"clie')
    (tmp_path / "odd.json").write_text('{"clients": [1, 2]}')
    code, out, err = keyhole("audit", *MODEL, "--captured", str(seen), *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_truncated_client_is_left_out_and_the_others_are_attacked(seen: Path) -> None:
    path = client_file(seen, 1)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:5000])
    result = audited(seen)
    (note,) = result.notes
    assert note.startswith("client 1 of round 1 is left out: ")
    assert "client-1.safetensors" in note
    assert len(ssims(result)) == 2
    assert min(ssims(result)) > 0.99


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, t: torch.zeros_like(t), "all zeros"),
        (lambda _, t: torch.full_like(t, torch.nan), "NaN or infinite"),
        (lambda n, t: t * torch.inf if n == "head.bias" else t, "NaN or infinite"),
        (lambda n, t: t[:4] if n == "head.bias" else t, "belongs to another model"),
    ],
    ids=["zeros", "nan", "infinite", "shape"],
)
def test_an_update_that_tells_nothing_is_noted(
    seen: Path, change: Callable[[str, Tensor], Tensor], words: str
) -> None:
    change_file(client_file(seen, 2), change)
    result = audited(seen)
    (note,) = result.notes
    assert note.startswith("client 2 of round 1 is left out: ")
    assert words in note
    assert "\n" not in note
    assert len(ssims(result)) == 2


def test_an_update_of_strange_tensors_is_noted(seen: Path) -> None:
    replaced(client_file(seen), {"stranger": torch.ones(3)})
    (note,) = audited(seen).notes
    assert "client 0 of round 1 is left out" in note
    assert "'stranger'" in note


def test_an_update_of_some_tensors_is_noted_and_the_others_are_attacked(seen: Path) -> None:
    path = client_file(seen)
    replaced(path, {n: t for n, t in load_file(path).items() if n != "pos_embed"})
    result = audited(seen)
    assert len(ssims(result)) == 2
    assert any("client 0" in note for note in result.notes)


def test_if_no_client_is_left_the_first_reason_is_told(seen: Path) -> None:
    for node in range(3):
        change_file(client_file(seen, node), lambda _, t: torch.zeros_like(t))
    with pytest.raises(RunFolderError, match="can be attacked: client 0 of round 1 is left out"):
        audited(seen)


def test_a_round_that_nobody_answered_is_told(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m.update(clients=[]))
    with pytest.raises(KeyholeError):
        audited(seen)


def test_clients_that_sent_nothing_are_named(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m.update(lost={"4": "out of memory"}))
    assert audited(seen).notes == ("client 4 sent nothing in round 1: out of memory",)


def test_notes_are_on_the_page_and_in_the_report(seen: Path, keyhole: Keyhole) -> None:
    change_json(manifest(seen), lambda m: m.update(lost={"4": "out of <memory>"}))
    keyhole("audit", *MODEL, "--captured", str(seen), "--out", "audit")
    assert "client 4 sent nothing in round 1: out of &lt;memory&gt;" in (
        Path("audit/report.html").read_text()
    )
    found = json.loads(keyhole("report", "audit", "--json")[1])
    assert found["notes"] == ["client 4 sent nothing in round 1: out of <memory>"]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["clients"][0].update(metrics=None),
        lambda m: m["clients"][0].update(examples=float("nan")),
        lambda m: m["config"].update({"batch-size": float("nan")}),
        lambda m: m["config"].update({"local-steps": float("inf")}),
    ],
    ids=["metrics", "examples", "batch size", "steps"],
)
def test_odd_values_in_a_manifest_do_not_end_an_audit(
    seen: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    change_json(manifest(seen), change)
    assert min(ssims(audited(seen))) > 0.99
