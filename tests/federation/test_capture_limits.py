"""Captures that must not fill the disk, nor stop where it is full."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from keyhole import atomic
from keyhole.errors import RunFolderError
from keyhole.federation import Capture, CaptureWriter, Reply, TrainingPlan, train
from keyhole.federation.capture import count_bytes
from recorded_rounds import Tensors, assert_same, record, replies, tensors


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_capture_stays_below_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one_round = 3 * count_bytes(tensors(0, 1000))
    writer = CaptureWriter(tmp_path, limit_gb=2.5 * one_round / 1e9)
    kept = []
    for number in (1, 2, 3, 4):
        two = [Reply(n, tensors(number, 1000)) for n in "79"]
        kept.append(writer.write_round(number, tensors(number, 1000), two))
    assert kept == [True, True, False, False]
    assert writer.left_out == [3, 4]
    assert [line.split(":")[0] for line in warnings_in(caplog)] == [
        "round 3 is not captured",
        "round 4 is not captured",
    ]
    assert not (tmp_path / "round-0003").exists()
    capture = Capture.open(tmp_path)
    assert [seen.number for seen in capture.rounds] == [1, 2]
    assert sorted(capture.problems) == [
        "round 3 was left out when it was captured",
        "round 4 was left out when it was captured",
    ]
    used = sum(f.stat().st_size for f in tmp_path.rglob("*.safetensors"))
    assert used < 2.5 * one_round


def test_a_limit_of_nothing_keeps_nothing(tmp_path: Path) -> None:
    writer = record(tmp_path, limit_gb=0)
    assert writer.left_out == [1, 2]
    with pytest.raises(RunFolderError, match="holds no captured round"):
        Capture.open(tmp_path)


def full_disk_at(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Writing tensors fails wherever the path contains these words."""
    real: Callable[..., None] = atomic.save_file

    def save(whole: Tensors, path: Path, header: dict[str, str] | None = None) -> None:
        if words in str(path):
            Path(path).write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        real(whole, path, header)

    monkeypatch.setattr(atomic, "save_file", save)


@pytest.mark.parametrize("words", ["round-0002/.global", "round-0002/.client-9"])
def test_a_full_disk_leaves_a_round_out_and_later_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, words: str
) -> None:
    full_disk_at(monkeypatch, words)
    writer = record(tmp_path, [1, 2, 3])
    assert writer.left_out == [2]
    (line,) = warnings_in(caplog)
    assert "round 2 is not captured" in line
    assert "No space left on device" in line
    assert not (tmp_path / "round-0002").exists()
    capture = Capture.open(tmp_path)
    assert [seen.number for seen in capture.rounds] == [1, 3]
    assert capture.problems == ("round 2 was left out when it was captured",)
    assert not list(tmp_path.rglob("*.half"))


def test_a_disk_too_full_even_for_the_note_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = record(tmp_path, [1])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "save_file", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert writer.write_round(2, tensors(2), replies(2)) is False
    assert len(warnings_in(caplog)) == 2
    monkeypatch.undo()
    assert writer.write_round(3, tensors(3), replies(3)) is True
    assert [seen.number for seen in Capture.open(tmp_path).rounds] == [1, 3]


def test_a_full_disk_does_not_change_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = TrainingPlan(clients=2, images=4, rounds=2, epochs=1, together="no")
    plain_run = train(plan, out=tmp_path / "plain")
    full_disk_at(monkeypatch, "seen/round-0001")
    run = train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    assert_same(run.model.state_dict(), plain_run.model.state_dict())
    assert [seen.number for seen in Capture.open(tmp_path / "seen").rounds] == [2]


def test_a_resumed_recorder_remembers_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk_at(monkeypatch, "round-0001")
    record(tmp_path, [1], about={"model": "mlp"})
    monkeypatch.undo()
    resumed = record(tmp_path, [2], about={"data": "digits"})
    assert resumed.left_out == [1]
    capture = Capture.open(tmp_path)
    assert capture.problems == ("round 1 was left out when it was captured",)
    assert capture.about == {"model": "mlp", "data": "digits"}


def test_a_round_that_is_captured_again_replaces_itself(tmp_path: Path) -> None:
    limit = 1.5 * 3 * count_bytes(tensors(0, 1000)) / 1e9
    writer = CaptureWriter(tmp_path, limit_gb=limit)
    for _ in range(2):
        assert writer.write_round(1, tensors(1, 1000), [Reply(n, tensors(2, 1000)) for n in "79"])
    assert Capture.open(tmp_path).problems == ()


def test_a_round_left_out_at_first_and_captured_later_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk_at(monkeypatch, "round-0001")
    record(tmp_path, [1])
    monkeypatch.undo()
    record(tmp_path, [1])
    capture = Capture.open(tmp_path)
    assert [seen.number for seen in capture.rounds] == [1]
    assert capture.problems == ()
