"""Captured folders that are damaged, incomplete or hostile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyhole.errors import BadUpdate, KeyholeError, RunFolderError
from keyhole.federation import Capture
from recorded_rounds import assert_same, record, tensors


def client_file(root: Path, number: int = 1, node: str = "7") -> Path:
    return root / f"round-{number:04d}" / f"client-{node}.safetensors"


def test_a_truncated_file_is_told_when_it_is_read(root: Path) -> None:
    path = client_file(root)
    path.write_bytes(path.read_bytes()[:-20])
    first = Capture.open(root).rounds[0]
    with pytest.raises(BadUpdate, match=r"client-7\.safetensors") as raised:
        first.read_change(first.clients[0])
    assert "\n" not in str(raised.value)
    assert_same(first.read_change(first.clients[1]), tensors(11))


def test_a_missing_file_is_told_when_it_is_read(root: Path) -> None:
    client_file(root).unlink()
    first = Capture.open(root).rounds[0]
    with pytest.raises(BadUpdate, match="does not exist"):
        first.read_change(first.clients[0])


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
    assert "is not the name of a file in the folder" in first.left_out["7"]


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
