from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole import atomic
from keyhole.errors import BadUpdate, KeyholeError, RunFolderError
from keyhole.federation import Capture, Recorder, Reply, Round, TrainingPlan, train
from keyhole.federation.capture import plain, size_of

Tensors = dict[str, Tensor]


def tensors(seed: int, size: int = 50) -> Tensors:
    drawn = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(size, generator=drawn), "seen": torch.tensor(seed)}


def replies(number: int, nodes: Sequence[str] = ("7", "9")) -> list[Reply]:
    return [Reply(n, tensors(10 * number + i), examples=i + 1) for i, n in enumerate(nodes)]


def record(root: Path, rounds: Sequence[int] = (1, 2), **values: Any) -> Recorder:
    recorder = Recorder(root, **values)
    for number in rounds:
        recorder.round(number, tensors(number), replies(number), config={"lr": 0.1})
    return recorder


def assert_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two captured rounds of clients 7 and 9."""
    recorder = record(tmp_path / "seen", about={"model": "mlp", "image-size": None})
    recorder.truth("digits", {"7": [4], "9": [5, 6]}, image_size=8)
    return tmp_path / "seen"


def test_what_was_recorded_is_read_back(root: Path) -> None:
    capture = Capture.open(root)
    assert capture.problems == ()
    assert capture.about == {"model": "mlp", "image-size": None}
    assert [seen.number for seen in capture.rounds] == [1, 2]
    for seen in capture.rounds:
        assert_same(seen.weights(), tensors(seen.number))
        assert [(c["node"], c["examples"]) for c in seen.clients] == [("7", 1), ("9", 2)]
        for place, client in enumerate(seen.clients):
            assert_same(seen.change(client), tensors(10 * seen.number + place))
        assert seen.config == {"lr": 0.1}
        assert seen.lost == {}
    assert capture.truth == {
        "data": "digits",
        "image_size": 8,
        "clients": {"7": [4], "9": [5, 6]},
    }


def test_only_json_and_safetensors_are_written(root: Path) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    assert len(files) == 2 + 2 * 4


def test_clients_that_failed_are_named_with_the_reason(tmp_path: Path) -> None:
    Recorder(tmp_path).round(1, tensors(1), replies(1), lost={"8": "out of memory"})
    assert Capture.open(tmp_path).rounds[0].lost == {"8": "out of memory"}


def test_a_second_reply_of_a_node_does_not_replace_its_first(tmp_path: Path) -> None:
    replies = [Reply("7", {"w": torch.full((2,), float(value))}) for value in (1, 2)]
    assert Recorder(tmp_path).round(1, {"w": torch.zeros(2)}, replies)
    (seen,) = Capture.open(tmp_path).rounds
    kept = [float(seen.change(client)["w"][0]) for client in seen.clients]
    assert kept == [1.0]
    assert seen.left_out == {"7": "it is there twice"}


def test_without_truth_there_is_none(tmp_path: Path) -> None:
    record(tmp_path)
    assert Capture.open(tmp_path).truth is None


def test_rounds_are_in_order_beyond_ten(tmp_path: Path) -> None:
    record(tmp_path, [10, 9, 2, 1, 3, 4, 5, 6, 7, 8])
    assert [seen.number for seen in Capture.open(tmp_path).rounds] == list(range(1, 11))


def test_tensors_anywhere_in_memory_can_be_recorded(tmp_path: Path) -> None:
    square = torch.arange(9.0).view(3, 3)
    change = {"turned": square.T, "column": square[:, 1], "learnt": torch.ones(2).requires_grad_()}
    Recorder(tmp_path).round(1, {"w": square}, [Reply("0", change)])
    seen = Capture.open(tmp_path).rounds[0]
    found = seen.change(seen.clients[0])
    assert torch.equal(found["turned"], square.T)
    assert torch.equal(found["column"], square[:, 1])


def test_tensors_that_share_memory_can_be_recorded(tmp_path: Path) -> None:
    shared = torch.ones(3)
    assert Recorder(tmp_path).round(1, {"one": shared, "same": shared}, [])


def client_file(root: Path, number: int = 1, node: str = "7") -> Path:
    return root / f"round-{number:04d}" / f"client-{node}.safetensors"


def test_a_truncated_file_is_told_when_it_is_read(root: Path) -> None:
    path = client_file(root)
    path.write_bytes(path.read_bytes()[:-20])
    first = Capture.open(root).rounds[0]
    with pytest.raises(BadUpdate, match=r"client-7\.safetensors") as raised:
        first.change(first.clients[0])
    assert "\n" not in str(raised.value)
    assert_same(first.change(first.clients[1]), tensors(11))


def test_a_missing_file_is_told_when_it_is_read(root: Path) -> None:
    client_file(root).unlink()
    first = Capture.open(root).rounds[0]
    with pytest.raises(BadUpdate, match="does not exist"):
        first.change(first.clients[0])


def test_a_round_without_manifest_is_left_out(root: Path) -> None:
    (root / "round-0001" / "manifest.json").unlink()
    capture = Capture.open(root)
    assert [seen.number for seen in capture.rounds] == [2]
    assert any("round-0001 has no manifest.json" in line for line in capture.problems)
    assert all("\n" not in line for line in capture.problems)


def test_a_missing_round_is_told(tmp_path: Path) -> None:
    record(tmp_path, [1, 2, 5])
    assert Capture.open(tmp_path).problems == ("round 3 is missing", "round 4 is missing")


@pytest.mark.parametrize(
    "text",
    [
        '{"round": 1, "clie',
        "",
        "[]",
        "null",
        "3",
        "{}",
        '{"round": "one", "clients": []}',
        '{"round": 1, "clients": 4}',
        '{"round": 1, "clients": ["7"]}',
        '{"round": 1, "clients": [{"file": "client-7.safetensors"}]}',
        '{"round": 1, "clients": [{"node": "7"}]}',
        '{"round": 1, "clients": [], "config": null}',
        '{"round": 1, "clients": [], "lost": 3}',
        '{"round": null, "clients": []}',
    ],
)
def test_a_manifest_that_cannot_be_understood_leaves_its_round_out(root: Path, text: str) -> None:
    (root / "round-0001" / "manifest.json").write_text(text)
    capture = Capture.open(root)
    assert [seen.number for seen in capture.rounds] == [2]
    assert "manifest.json" in capture.problems[0]
    assert all("\n" not in line for line in capture.problems)


@pytest.mark.parametrize(
    "name", ["../round-0002/client-7.safetensors", "/etc/passwd", "deep/client-7.safetensors", 7]
)
def test_a_file_name_that_leads_elsewhere_is_refused(root: Path, name: object) -> None:
    path = root / "round-0001" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["clients"][0]["file"] = name
    path.write_text(json.dumps(manifest))
    first = Capture.open(root).rounds[0]
    assert [client["node"] for client in first.clients] == ["9"]
    assert "is no name of a file beside the manifest" in first.left_out["7"]


def test_numbers_as_node_names_are_read_as_words(root: Path) -> None:
    path = root / "round-0001" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["clients"][0]["node"] = 7
    path.write_text(json.dumps(manifest))
    assert Capture.open(root).rounds[0].clients[0]["node"] == "7"


@pytest.mark.parametrize("made", ["nothing", "file", "empty", "halves"])
def test_a_folder_without_captured_rounds_is_told(tmp_path: Path, made: str) -> None:
    root = tmp_path / "seen"
    if made == "file":
        root.write_text("not a folder")
    elif made != "nothing":
        (root / ("round-0001" if made == "halves" else "other")).mkdir(parents=True)
    with pytest.raises(RunFolderError, match="seen") as raised:
        Capture.open(root)
    assert "\n" not in str(raised.value)
    if made == "halves":
        assert "manifest.json" in str(raised.value)


@pytest.mark.parametrize("name", ["capture.json", "truth.json"])
def test_torn_descriptions_are_told_in_a_line(root: Path, name: str) -> None:
    (root / name).write_text('{"abo')
    with pytest.raises(RunFolderError, match=name.replace(".", r"\.")) as raised:
        Capture.open(root)
    assert "\n" not in str(raised.value)


def test_a_description_of_another_kind_is_told_in_a_line(root: Path) -> None:
    (root / "capture.json").write_text("[]")
    with pytest.raises(KeyholeError):
        Capture.open(root)


def test_metrics_that_are_no_numbers_become_words(tmp_path: Path) -> None:
    metrics = {"loss": math.nan, "up": math.inf, "down": -math.inf, "fine": 0.5, "n": 3, "ok": True}
    odd = {"tensor": torch.ones(1), "list": [1], "none": None, "word": "nan"}
    Recorder(tmp_path).round(1, tensors(1), [Reply("7", tensors(2), 3, {**metrics, **odd})])
    text = (tmp_path / "round-0001" / "manifest.json").read_text()
    strict = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert strict["clients"][0]["metrics"] == {
        "loss": "nan",
        "up": "inf",
        "down": "-inf",
        "fine": 0.5,
        "n": 3,
        "ok": True,
        "none": None,
        "word": "nan",
    }
    assert Capture.open(tmp_path).rounds[0].clients[0]["metrics"]["loss"] == "nan"


def test_only_plain_facts_are_kept() -> None:
    assert plain({"lr": 0.1, 3: "three", "path": Path("x"), "bytes": b"x"}) == {
        "lr": 0.1,
        "3": "three",
    }


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_capture_stays_below_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one_round = 3 * size_of(tensors(0, 1000))
    recorder = Recorder(tmp_path, limit_gb=2.5 * one_round / 1e9)
    kept = []
    for number in (1, 2, 3, 4):
        two = [Reply(n, tensors(number, 1000)) for n in "79"]
        kept.append(recorder.round(number, tensors(number, 1000), two))
    assert kept == [True, True, False, False]
    assert recorder.left_out == [3, 4]
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
    recorder = record(tmp_path, limit_gb=0)
    assert recorder.left_out == [1, 2]
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
    recorder = record(tmp_path, [1, 2, 3])
    assert recorder.left_out == [2]
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
    recorder = record(tmp_path, [1])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "save_file", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert recorder.round(2, tensors(2), replies(2)) is False
    assert len(warnings_in(caplog)) == 2
    monkeypatch.undo()
    assert recorder.round(3, tensors(3), replies(3)) is True
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
    limit = 1.5 * 3 * size_of(tensors(0, 1000)) / 1e9
    recorder = Recorder(tmp_path, limit_gb=limit)
    for _ in range(2):
        assert recorder.round(1, tensors(1, 1000), [Reply(n, tensors(2, 1000)) for n in "79"])
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


PLAN = TrainingPlan(clients=3, images=4, rounds=2, epochs=1, together="no", fraction=0.67)


class Killed(Exception):
    """Stands for a kill in the middle of the work."""


def test_a_training_captures_what_its_server_sees(tmp_path: Path) -> None:
    seen: list[Round] = []
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen", watchers=[seen.append])
    capture = Capture.open(tmp_path / "seen")
    assert capture.about.items() >= {"model": "mlp", "data": "digits", "by-user": False}.items()
    for live, kept in zip(seen, capture.rounds, strict=True):
        assert_same(kept.weights(), dict(live.sent))
        assert [c["node"] for c in kept.clients] == [str(share.client) for share in live.shares]
        assert [c["examples"] for c in kept.clients] == [4, 4]
        for client, share in zip(kept.clients, live.shares, strict=True):
            assert_same(kept.change(client), dict(share.update.change))
        assert kept.config == {
            "lr": 0.03,
            "batch-size": 16,
            "optimiser": "sgd",
            "momentum": 0.9,
            "client-mode": "train",
            "defense": "none",
            "local-epochs": 1,
        }
    assert capture.truth is not None
    assert [len(held) for held in capture.truth["clients"].values()] == [4, 4, 4]


def test_a_stopped_training_goes_on_capturing(tmp_path: Path) -> None:
    def kill(_: Round) -> None:
        raise Killed

    with pytest.raises(Killed):
        train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen", watchers=[kill])
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen")
    train(PLAN, out=tmp_path / "other", capture=tmp_path / "whole")
    one, other = Capture.open(tmp_path / "seen"), Capture.open(tmp_path / "whole")
    assert (one.about, one.truth, one.problems) == (other.about, other.truth, other.problems)
    for mine, others in zip(one.rounds, other.rounds, strict=True):
        assert (mine.config, mine.clients) == (others.config, others.clients)
        assert_same(mine.weights(), others.weights())
        for client in mine.clients:
            assert_same(mine.change(client), others.change(client))


def test_the_limit_reaches_the_recorder(tmp_path: Path) -> None:
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen", limit_gb=0.0)
    assert json.loads((tmp_path / "seen" / "capture.json").read_text())["left_out"] == [1, 2]


def test_a_capture_does_not_mix_two_trainings(tmp_path: Path) -> None:
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen")
    other = PLAN.model_copy(update={"rounds": 1, "seed": 5})
    try:
        train(other, out=tmp_path / "run", capture=tmp_path / "seen", fresh=True)
    except RunFolderError:
        return
    assert [seen.number for seen in Capture.open(tmp_path / "seen").rounds] == [1]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_training_that_is_refused_leaves_captures_alone(tmp_path: Path, fresh: bool) -> None:
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for name in ("seen", "new"):
        with pytest.raises(RunFolderError, match="mine holds other files"):
            train(PLAN, out=tmp_path / "mine", capture=tmp_path / name, fresh=fresh)
    assert [seen.number for seen in Capture.open(tmp_path / "seen").rounds] == [1, 2]
    assert not (tmp_path / "new").exists()
