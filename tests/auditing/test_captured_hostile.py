"""Captured folders that hostile clients or torn disks left: each costs itself, nothing more."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from captures import change_file, change_json, client_file, linked, manifest, replaced
from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.errors import KeyholeError
from keyhole.federation import TrainingPlan, train
from torture.captured_mutations import mutate

Keyhole = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captured rounds of three clients with an image each, of a small model."""
    folder = tmp_path_factory.mktemp("small")
    plan = TrainingPlan(clients=3, images=1, steps=1, batch_size=1, rounds=2, together="no")
    train(plan, out=folder / "run", capture=folder / "seen")
    return folder / "seen"


@pytest.fixture
def seen(small: Path, tmp_path: Path) -> Path:
    """A copy of that folder that a test may damage."""
    return Path(shutil.copytree(small, tmp_path / "seen", copy_function=linked))


def attack(seen: Path, **values: Any) -> AuditResult:
    stage = Stage(**{"data": "digits", "captured": seen, "attacks": ("linear",), **values})
    return run_plan(Plan(stage=(stage,)))


def attacked(result: AuditResult) -> set[str]:
    return {node for f in result.findings for node in f.recipe["nodes"].split(",")}


def set_client(name: str, value: Any) -> Callable[[Path], None]:
    """Changes what the manifest says of client 1."""
    return lambda seen: change_json(manifest(seen), lambda m: m["clients"][1].update({name: value}))


def set_metric(name: str, value: Any) -> Callable[[Path], None]:
    return set_client("metrics", {name: value})


def odd_number(text: str) -> Callable[[Path], None]:
    """Writes a number that Python would not into what client 1 says of itself."""

    def write(seen: Path) -> None:
        set_client("examples", "HERE")(seen)
        path = manifest(seen)
        path.write_text(path.read_text().replace('"HERE"', text))

    return write


def in_place(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Puts something else where client 1's tensors should be."""

    def put(seen: Path) -> None:
        client_file(seen, 1).unlink()
        make(client_file(seen, 1))

    return put


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


LEFT_OUT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "images": (set_client("examples", 1e12), "1e+12 images"),
    "many images": (set_client("examples", 10**15), "1e+15 images"),
    "steps": (set_metric("local-steps", 1e18), "1e+18 steps"),
    "epochs": (set_metric("local-epochs", 1e18), "1e+18 epochs"),
    "rate": (set_metric("lr", 1e299), "as learning rate"),
    "no name": (set_client("node", None), "no name of up to 100 printable"),
    "control characters": (set_client("node", "a\x1b[31m"), "no name of up to 100 printable"),
    "long name": (set_client("node", "x" * 5000), "no name of up to 100 printable"),
    "twice": (set_client("node", "0"), "it is listed twice"),
    "path": (set_client("file", "../round-0002/client-1.safetensors"), "not the name of a file"),
    "dots": (set_client("file", ".."), "not the name of a file"),
    "nul": (set_client("file", "a\x00b"), "not the name of a file"),
    "metrics": (set_client("metrics", [1]), "its metrics are not an object"),
    "no object": (lambda s: change_json(manifest(s), lambda m: m["clients"].insert(1, 7)), ""),
    "pipe": (in_place(os.mkfifo), "not a regular file"),
    "folder": (in_place(Path.mkdir), "directory"),
    "device": (in_place(lambda p: p.symlink_to("/dev/zero")), "it is a link"),
    "link": (in_place(lambda p: p.symlink_to("client-0.safetensors")), "it is a link"),
    "loop": (in_place(lambda p: p.symlink_to(p.name)), "it is a link"),
    "absent": (in_place(lambda p: None), "does not exist"),
    "sparse": (in_place(sparse), "bytes: too many for this model"),
    "complex": (
        lambda s: change_file(client_file(s, 1), lambda _, t: t.to(torch.complex64)),
        "complex numbers",
    ),
    "overflow": (
        lambda s: change_file(client_file(s, 1), lambda _, t: t.double() + 1e300),
        "NaN or infinite",
    ),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_a_hostile_client_stops_only_itself(seen: Path, kind: str) -> None:
    spoil, words = LEFT_OUT[kind]
    spoil(seen)
    result = attack(seen)
    assert attacked(result) >= {"0", "2"}
    (note,) = [n for n in result.notes if "left out" in n]
    assert "of round 1 is left out: " in note
    assert words in note
    assert note.isprintable()
    assert len(note) < 500


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400, "true", "-7"])
def test_examples_that_are_no_number_are_not_known(seen: Path, text: str) -> None:
    odd_number(text)(seen)
    change_json(seen / "truth.json", lambda t: t.update(clients={}))
    result = attack(seen)
    assert attacked(result) == {"0", "1", "2"}


@pytest.mark.parametrize("value", ["1" * 400, "NaN", '"a"', "[]", "null", "{}"])
def test_a_rate_that_is_no_number_is_not_known(seen: Path, value: str) -> None:
    path = manifest(seen)
    path.write_text(path.read_text().replace('"lr": 0.03', f'"lr": {value}'))
    assert attacked(attack(seen)) == {"0", "1", "2"}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"round":' * 5000 + "1" + "}" * 5000,
        '{"round": 1000000, "clients": []}',
        '{"round": 1e999, "clients": []}',
        '{"round": true, "clients": []}',
        '{"round": -1, "clients": []}',
        '{"round": 1, "clients": [[], 3, null]}',
        '{"round": 1, "clients": {"a": 1}}',
    ],
)
def test_a_hostile_manifest_costs_its_round(seen: Path, text: str) -> None:
    manifest(seen).write_text(text)
    result = attack(seen)
    assert {f.recipe["rounds"] for f in result.findings} == {"2"}
    assert any("round-0001" in note for note in result.notes)


def test_a_round_of_a_high_number_costs_no_time_and_few_words(seen: Path) -> None:
    (seen / "round-0002").rename(seen / "round-900000000")
    path = seen / "round-900000000" / "manifest.json"
    change_json(path, lambda m: m.update(round=900_000_000))
    change_json(seen / "capture.json", lambda c: c.update(left_out=list(range(10, 3000))))
    result = attack(seen, rounds="all")
    assert len(result.notes) < 60
    assert "899,996,988 more rounds are missing" in result.notes


def test_a_pipe_for_a_manifest_costs_its_round(seen: Path) -> None:
    manifest(seen).unlink()
    os.mkfifo(manifest(seen))
    assert {f.recipe["rounds"] for f in attack(seen).findings} == {"2"}


@pytest.mark.parametrize("value", ["banana", 0, -3, 10**7, [8], [8, 8, 8], ["a"], True, 1.5, {}])
def test_an_image_size_that_cannot_be_is_noted(seen: Path, value: Any) -> None:
    change_json(seen / "capture.json", lambda c: c["about"].update({"image-size": value}))
    assert attacked(attack(seen)) == {"0", "1", "2"}


def test_clients_that_claim_one_name_go_by_their_own(seen: Path) -> None:
    def claim(found: dict[str, Any]) -> None:
        for client in found["clients"]:
            client["metrics"] = {"partition-id": 0}
            client["node"] = f"98765{client['node']}"

    change_json(manifest(seen), claim)
    result = attack(seen)
    assert attacked(result) == {"987650", "987651", "987652"}
    assert [v.status for v in result.verdicts] == ["not scored"]


def test_a_client_that_reports_more_than_others_stops_only_itself(seen: Path) -> None:
    for node in (0, 2):
        path = client_file(seen, node)
        replaced(path, {n: t for n, t in load_file(path).items() if n != "7.weight"})
    result = attack(seen)
    assert attacked(result) == {"0", "2"}
    words = "client 1 of round 1 is left out: its update has '7.weight', unlike others"
    assert words in result.notes


def test_if_nothing_is_left_there_is_one_line(seen: Path, keyhole: Keyhole) -> None:
    for number in (1, 2):
        change_json(manifest(seen, number), lambda m: [c.update(node=None) for c in m["clients"]])
    code, out, err = keyhole("audit", "--data", "digits", "--captured", str(seen))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "holds no captured round" in err


def one_line_only(error: KeyholeError, how: str) -> None:
    assert "\n" not in str(error), how


@pytest.mark.parametrize("seed", range(25))
def test_no_damage_ends_an_audit_but_in_a_line(seen: Path, seed: int) -> None:
    how = mutate(seen, random.Random(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = attack(seen, rounds="all")
        except KeyholeError as error:
            one_line_only(error, how)
            return
    assert len(json.dumps(result.to_json(), allow_nan=False)) < 10**6, how
    assert all(note.isprintable() and len(note) < 1000 for note in result.notes), how
