"""Lists, pieces, shards and plans on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from keyhole.auditing import result_schema

Keyhole = Callable[..., tuple[int, str, str]]
NOISE = ("--defense", "gaussian(sigma=[1e-5,1e-1])")
SMALL = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1")
PLAN = """
seed = [0, 1]
[[stage]]
model = "mlp"
data = "digits"
defenses = ["none", { name = "gaussian", sigma = [1e-5, 1e-1] }]
attacks = ["linear"]
victims = 1
"""


def test_lists_give_one_table_and_json_of_the_schema(keyhole: Keyhole) -> None:
    code, out, err = keyhole(*SMALL, *NOISE, "--seeds", "0,1", "--out", "runs/a")
    assert code == 0, err
    assert "gaussian.sigma: what the worst attacker saw" in out
    assert "mlp on digits (seed=1)" in out
    assert len(list(Path("runs/pieces").glob("*/result.json"))) == 4
    code, out, _ = keyhole("report", "runs/a", "--json", "--figures", "drawn", "--format", "svg")
    assert code == 0
    found = json.loads(out)
    jsonschema.validate(found, result_schema())
    (table,) = found["swept"]
    assert [p["value"] for p in table["points"]] == [1e-5, 0.1]
    assert [p["seeds"] for p in table["points"]] == [2, 2]
    assert Path("drawn/parameter-gaussian.sigma.svg").is_file()


def test_numbers_may_be_lists_on_the_command_line(keyhole: Keyhole) -> None:
    code, out, _ = keyhole(*SMALL, "--batch-size", "1,2", "--steps", "[1]", "--out", "a", "--json")
    assert code == 0
    (table,) = json.loads(out)["swept"]
    assert [(p["value"], table["parameter"]) for p in table["points"]] == [
        (1, "batch_size"),
        (2, "batch_size"),
    ]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--batch-size", "1,x"), "'x' is not a valid integer"),
        (("--lr", "0.1,"), "'' is not a valid float"),
        (("--steps", "[]"), "'' is not a valid integer"),
    ],
)
def test_lists_of_what_is_no_number_are_refused(
    keyhole: Keyhole, option: tuple[str, str], words: str
) -> None:
    code, out, err = keyhole(*SMALL, *option)
    assert (code, out) == (2, "")
    assert words in err


def test_an_option_of_names_that_is_repeated_adds_to_them(keyhole: Keyhole) -> None:
    """An attack or a defense that the user names is never dropped in silence."""
    more = ("--attack", "labels", "--defense", "none", "--defense", "pruning", "--data", "faces")
    code, out, err = keyhole(*SMALL, *more, "--seeds", "0", "--seeds", "1", "--out", "a", "--json")
    assert code == 0, err
    found = {(f["data"], f["attack"], f["defense"]["name"]) for f in json.loads(out)["findings"]}
    assert found == {
        (f"{data} (seed={seed})", attack, defense)
        for data in ("digits", "faces")
        for attack in ("linear", "labels")
        for defense in ("none", "pruning")
        for seed in (0, 1)
    }


def test_the_gate_judges_a_sweep(keyhole: Keyhole) -> None:
    code, out, _ = keyhole(*SMALL, *NOISE, "--out", "runs/a", "--fail-on", "broken")
    assert code == 3
    assert "Gate:     failed in 1 of 2 settings: broken" in out


def test_one_seed_of_several_is_that_seed(keyhole: Keyhole) -> None:
    assert keyhole(*SMALL, "--seeds", "3", "--out", "a")[0] == 0
    assert keyhole(*SMALL, "--seed", "3", "--out", "b")[0] == 0
    first, second = (json.loads(Path(f"{run}/plan.json").read_text()) for run in "ab")
    assert first == second
    assert not Path("pieces").exists()


def test_an_array_may_have_more_jobs_than_pieces(keyhole: Keyhole) -> None:
    assert keyhole(*SMALL, "--shard", "1/2", "--out", "first")[0] == 0
    code, out, err = keyhole(*SMALL, "--shard", "2/2", "--out", "second")
    assert code == 0
    assert "shard 2/2 has no pieces" in err
    assert "Findings: second" in out
    code, out, _ = keyhole("merge", "first", "second", "--out", "whole", "--json")
    assert code == 0
    whole = json.loads(out)
    assert whole["findings"] == json.loads(keyhole("report", "first", "--json")[1])["findings"]
    assert len(whole["findings"]) > 0
    assert keyhole(*SMALL, "--shard", "2/2", "--out", "third", "--fail-on", "broken")[0] == 3


def test_shards_and_merge(keyhole: Keyhole) -> None:
    Path("plan.toml").write_text(PLAN)
    for shard in ("1/2", "2/2"):
        assert keyhole("audit", "plan.toml", "--shard", shard, "--pieces", "p")[0] == 0
    shards = sorted(str(path) for path in Path("runs").glob("*-shard-*"))
    assert [path[-6:] for path in shards] == ["1-of-2", "2-of-2"]
    code, _, err = keyhole("merge", shards[0], "--out", "whole")
    assert code == 2
    assert "shards 2/2 are not finished or not named" in err
    code, out, _ = keyhole("merge", *shards, "--out", "whole")
    assert code == 0
    assert "gaussian.sigma: what the worst attacker saw" in out
    assert len(list(Path("whole/findings").glob("*.json"))) == 10


def test_a_plan_is_shown_with_what_is_done(keyhole: Keyhole) -> None:
    Path("plan.toml").write_text(PLAN)
    code, out, _ = keyhole("plan", "plan.toml", "--no-probe")
    assert code == 0
    assert "Pieces:   6, 0 done" in out
    keyhole(*SMALL, "--defense", "none", "--pieces", "runs/pieces", "--out", "runs/one")
    code, out, _ = keyhole("plan", "plan.toml", "--no-probe", "--json")
    found = json.loads(out)
    assert (found["total"], found["done"]) == (6, 1)
    first, *others = found["pieces"]
    assert (first["status"], first["source"]) == ("done", "measured")
    like = [each for each in others if each["source"] == "pieces like it"]
    assert [each["title"] for each in like] == ["linear against none, mlp on digits, seed 1"]
    assert like[0]["seconds"] == first["seconds"] > 0


def test_a_probe_measures_what_nothing_is_known_of(keyhole: Keyhole) -> None:
    Path("plan.toml").write_text(
        '[[stage]]\nmodel="mlp"\ndata="digits"\nattacks=["ig"]\niterations=100\nvictims=[1,3]\n'
    )
    code, out, _ = keyhole("plan", "plan.toml", "--json")
    assert code == 0
    found = json.loads(out)
    one, three = found["pieces"]
    assert (one["source"], three["source"]) == ("probe", "probe")
    assert 0 < one["seconds"] < three["seconds"]
    assert found["peak_mb"] > 100


def test_several_trainings_are_one_table_and_continue(keyhole: Keyhole) -> None:
    small = ("train", "--clients", "2", "--rounds", "1", "--images", "16", "--together", "no")
    listed = (*small, "--defense", "none,gaussian(sigma=[1e-5])", "--seeds", "0,1")
    code, out, _ = keyhole(*listed, "--out", "runs/t")
    assert code == 0
    assert "gaussian(sigma=1e-05)" in out
    code, out, _ = keyhole(*listed, "--out", "runs/t", "--json")
    found = json.loads(out)["trainings"]
    assert [each["seeds"] for each in found] == [[0, 1], [0, 1]]
    assert all(Path(file).is_file() for each in found for file in each["weights"])
    assert len(list(Path("runs/pieces").glob("*/result.json"))) == 4


def test_a_membership_run_in_pieces_is_that_of_one_go(keyhole: Keyhole) -> None:
    small = (
        *("membership", "--model", "mlp", "--members", "20", "--epochs", "2"),
        *("--attacks", "loss", "--defense", "none,gaussian(sigma=0.1)"),
    )
    small = tuple("--attack" if word == "--attacks" else word for word in small)
    assert keyhole(*small, "--out", "a")[0] == 0
    assert keyhole(*small, "--pieces", "p", "--out", "b", "--json")[0] == 0
    first, second = (json.loads(Path(f"{run}/result.json").read_text()) for run in "ab")
    for result in (first, second):
        result.pop("run")
        for trial in result["trials"]:
            trial.pop("seconds")
            for each in trial["inferences"]:
                each.pop("seconds")
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*SMALL, "--on", "moon"), "on: choose local or ray"),
        ((*SMALL, "--address", "auto"), "address: it is for Ray: add --on ray"),
        ((*SMALL, "--gpus-per-piece", "1"), "gpus-per-piece: it is for Ray"),
        ((*SMALL, "--on", "ray", "--workers", "2"), "workers: Ray decides"),
        ((*SMALL, "--gpus-per-piece", "nan", "--on", "ray"), "write a share of one, such as 0.25"),
        ((*SMALL, "--gpus-per-piece", "1.5", "--on", "ray"), "or a whole number, got 1.5"),
        ((*SMALL, "--shard", "17/16"), "shard: write 3/16"),
        ((*SMALL, "--defense", "gaussian(sgma=[1,2])"), "defense gaussian 'sgma': did you mean"),
        ((*SMALL, "--defense", "topk(k=[.1,2])"), "k"),
        ((*SMALL, "--attack", "ig(itrations=[1,2])"), "attack ig 'itrations': did you mean"),
        ((*SMALL, "--shard", "1/2", "--metric", "nowhere:X"), "nowhere"),
        (("train", "--defense", "none,gaussian(sgma=1)"), "did you mean sigma"),
        (("membership", "--defense", "none,gaussian(sgma=1)", "--workers", "1"), "mean sigma"),
        (("train", "--on", "mars"), "on: choose local, ray or flower, got 'mars'"),
        ((*SMALL, "--seeds", "a"), "seeds: write them as 0,1,2"),
        ((*SMALL, "--seeds", "1", "--seed", "1"), "give --seed or --seeds"),
        ((*SMALL, "--defense", "gaussian(sigma=[])"), "empty list"),
        ((*SMALL, "--pieces", "nowhere://x"), "nowhere://x cannot be opened"),
        (("merge", "nowhere", "--out", "x"), "nowhere is not the folder of an audit"),
        (("plan", "nowhere.toml"), "nowhere.toml does not exist"),
        (("train", "--on", "flower", "--seeds", "0,1"), "capture and --on flower"),
    ],
)
def test_mistakes_are_one_line(keyhole: Keyhole, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = keyhole(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
    assert not Path("runs").exists()
