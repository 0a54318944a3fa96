"""Ctrl-C: the checkpoint is written, one line says how to go on, the exit code is 130."""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from keyhole.interrupts import INTERRUPTS, Interrupts

Keyhole = Callable[..., tuple[int, str, str]]

SAYS = "keyhole: interrupted: continue with the same command"
AUDIT = ("audit", "--model", "mlp", "--data", "digits", "--defense", "none", "--attack", "ig")
SHORT = ("--victims", "2", "--iterations", "200", "--out", "run")


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press_after(monkeypatch: pytest.MonkeyPatch, where: str, name: str, calls: int) -> list[Any]:
    """Presses Ctrl-C when a function has been called so many times."""
    module, _, holder = where.partition(":")
    owner = importlib.import_module(module)
    owner = getattr(owner, holder) if holder else owner
    real, seen = getattr(owner, name), []

    def watched(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        seen.append(given)
        if len(seen) == calls:
            press_ctrl_c()
        return found

    monkeypatch.setattr(owner, name, watched)
    return seen


def interrupted(keyhole: Keyhole, *command: str) -> str:
    code, out, err = keyhole(*command)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == SAYS
    assert "Traceback" not in err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return err


def timeless(text: str) -> Any:
    found = json.loads(text)
    for finding in found["findings"]:
        del finding["seconds"], finding["telemetry"]["client_seconds"]
    return {**found, "run": None}


def test_an_attack_saves_where_it_stands_and_goes_on_to_the_same_bits(
    keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        looks = press_after(
            patched, "keyhole.auditing.store_checkpointer:StoreCheckpointer", "watch", calls=3
        )
        interrupted(keyhole, *AUDIT, *SHORT)
        assert len(looks) == 3, "the attack ends at the look at which it was interrupted"
    assert [path.suffix for path in Path("run/states").iterdir()] == [".safetensors"]
    assert not list(Path("run").rglob(".*"))
    with monkeypatch.context() as patched:
        looks = press_after(
            patched, "keyhole.auditing.store_checkpointer:StoreCheckpointer", "watch", calls=-1
        )
        code, out, _ = keyhole(*AUDIT, *SHORT, "--json")
        assert looks[0][1] == 100, "taken up where it was stopped"
    whole = keyhole(*AUDIT, *SHORT[:-1], "whole", "--json")[1]
    assert code == 0
    assert timeless(out) == timeless(whole)


def test_a_client_that_trains_can_be_interrupted(
    keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        press_after(patched, "keyhole.auditing.run", "observe_client", calls=1)
        interrupted(keyhole, *AUDIT, *SHORT)
    assert keyhole(*AUDIT, *SHORT)[0] == 0


def test_a_training_goes_on_after_its_last_round(
    keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "--data", "digits", "--clients", "3", "--rounds", "3", "--images", "20")
    with monkeypatch.context() as patched:
        press_after(patched, "keyhole.federation.run:TrainingFolder", "save_round", calls=2)
        interrupted(keyhole, *command, "--out", "run")
    out = json.loads(keyhole(*command, "--out", "run", "--json")[1])
    whole = json.loads(keyhole(*command, "--out", "whole", "--json")[1])
    assert out["resumed_after"] == 2
    assert out["loss"] == whole["loss"]


def test_shuffling_goes_on_with_the_next_picture(
    keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.new("RGB", (16, 16), (number, 9, 9)).save(tmp_path / "photos" / f"{number}.png")
    command = ("obfuscate", "photos", "out", "--key-file", "key", "--epochs", "1", "--jobs", "1")
    with monkeypatch.context() as patched:
        press_after(patched, "keyhole.obfuscation.node", "append_to_manifest", calls=2)
        interrupted(keyhole, *command)
    code, out, _ = keyhole(*command, "--json")
    assert code == 0
    assert (json.loads(out)["done"], json.loads(out)["were_there"]) == (1, 2)


def test_a_study_can_be_interrupted(keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("study", "tip-theorem", "--results", "results", "--runs", "runs")
    press_after(monkeypatch, "keyhole_studies.base", "read_result", calls=1)
    interrupted(keyhole, *command)
    assert not Path("results").exists()


def test_what_cannot_be_continued_does_not_say_so(
    keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_after(monkeypatch, "keyhole.report.catalogue", "build_catalogue", calls=1)
    code, _, err = keyhole("list")
    assert (code, err) == (130, "keyhole: interrupted\n")


def test_with_json_an_object_says_so(keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch) -> None:
    press_after(monkeypatch, "keyhole.auditing.run", "observe_client", calls=1)
    code, out, _ = keyhole(*AUDIT, *SHORT, "--json")
    assert (code, json.loads(out)) == (130, {"error": SAYS.removeprefix("keyhole: ")})


class Left(BaseException):
    """Stands for a process that is gone."""


def test_a_second_ctrl_c_leaves_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(os, "_exit", leave)
    with INTERRUPTS.handled(), INTERRUPTS.deferred():
        press_ctrl_c()
        assert INTERRUPTS.asked
        assert "Ctrl-C again leaves at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            INTERRUPTS.check()
        with pytest.raises(Left, match="130"):
            press_ctrl_c()
    assert not INTERRUPTS.asked


def test_a_child_leaves_ctrl_c_to_its_parent() -> None:
    interrupts = Interrupts()
    interrupts.process = os.getpid() + 1
    interrupts.receive(signal.SIGINT, None)
    assert not interrupts.asked


def test_a_process_that_ignores_ctrl_c_still_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with INTERRUPTS.handled():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
