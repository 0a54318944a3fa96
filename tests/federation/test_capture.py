from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from keyhole.federation import Capture, CaptureWriter, Reply
from keyhole.federation.capture import to_plain_json
from recorded_rounds import assert_same, record, replies, tensors


def test_what_was_recorded_is_read_back(root: Path) -> None:
    capture = Capture.open(root)
    assert capture.problems == ()
    assert capture.about == {"model": "mlp", "image-size": None}
    assert [seen.number for seen in capture.rounds] == [1, 2]
    for seen in capture.rounds:
        assert_same(seen.read_weights(), tensors(seen.number))
        assert [(c["node"], c["examples"]) for c in seen.clients] == [("7", 1), ("9", 2)]
        for place, client in enumerate(seen.clients):
            assert_same(seen.read_change(client), tensors(10 * seen.number + place))
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
    CaptureWriter(tmp_path).write_round(1, tensors(1), replies(1), lost={"8": "out of memory"})
    assert Capture.open(tmp_path).rounds[0].lost == {"8": "out of memory"}


def test_a_second_reply_of_a_node_does_not_replace_its_first(tmp_path: Path) -> None:
    replies = [Reply("7", {"w": torch.full((2,), float(value))}) for value in (1, 2)]
    assert CaptureWriter(tmp_path).write_round(1, {"w": torch.zeros(2)}, replies)
    (seen,) = Capture.open(tmp_path).rounds
    kept = [float(seen.read_change(client)["w"][0]) for client in seen.clients]
    assert kept == [1.0]
    assert seen.left_out == {"7": "it is listed twice"}


def test_without_truth_there_is_none(tmp_path: Path) -> None:
    record(tmp_path)
    assert Capture.open(tmp_path).truth is None


def test_rounds_are_in_order_beyond_ten(tmp_path: Path) -> None:
    record(tmp_path, [10, 9, 2, 1, 3, 4, 5, 6, 7, 8])
    assert [seen.number for seen in Capture.open(tmp_path).rounds] == list(range(1, 11))


def test_tensors_anywhere_in_memory_can_be_recorded(tmp_path: Path) -> None:
    square = torch.arange(9.0).view(3, 3)
    change = {"turned": square.T, "column": square[:, 1], "learnt": torch.ones(2).requires_grad_()}
    CaptureWriter(tmp_path).write_round(1, {"w": square}, [Reply("0", change)])
    seen = Capture.open(tmp_path).rounds[0]
    found = seen.read_change(seen.clients[0])
    assert torch.equal(found["turned"], square.T)
    assert torch.equal(found["column"], square[:, 1])


def test_tensors_that_share_memory_can_be_recorded(tmp_path: Path) -> None:
    shared = torch.ones(3)
    assert CaptureWriter(tmp_path).write_round(1, {"one": shared, "same": shared}, [])


def test_metrics_that_are_no_numbers_become_words(tmp_path: Path) -> None:
    metrics = {"loss": math.nan, "up": math.inf, "down": -math.inf, "fine": 0.5, "n": 3, "ok": True}
    odd = {"tensor": torch.ones(1), "list": [1], "none": None, "word": "nan"}
    CaptureWriter(tmp_path).write_round(
        1, tensors(1), [Reply("7", tensors(2), 3, {**metrics, **odd})]
    )
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
    assert to_plain_json({"lr": 0.1, 3: "three", "path": Path("x"), "bytes": b"x"}) == {
        "lr": 0.1,
        "3": "three",
    }
