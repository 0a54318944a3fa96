"""A frontier as JSON, and in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from frontiers import make_frontier, make_outcome
from keyhole.errors import RunFolderError
from keyhole.frontier import FrontierResult
from keyhole.frontier.advice import advise_outcome
from keyhole.frontier.advice_words import describe_setting
from keyhole.frontier.words import describe_frontier, summarise
from keyhole.report.frontier_view import describe_facts


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    result = make_frontier()
    result.save(tmp_path)
    again = FrontierResult.load(tmp_path)
    assert again.to_json() == result.to_json()
    assert again.folder == tmp_path
    assert FrontierResult.load(tmp_path / "frontier.json").to_json() == result.to_json()


def test_what_follows_is_computed_anew_and_not_believed(tmp_path: Path) -> None:
    values = json.loads(make_frontier().save(tmp_path).read_text())
    values["front"], values["mildest"] = ["none"], ["none"]
    values["settings"][0]["read"] = {"value": 0.0, "low": 0.0, "high": 0.0}
    again = FrontierResult.from_json(values)
    assert [each.label for each in again.mildest] == ["gaussian(sigma=0.1)", "topk(k=0.01)"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"kind": "audit"}, "is no frontier"),
        ({"schema_version": 2}, "schema_version 2"),
        ({"settings": [{"searched": "", "seeds": []}]}, "one seed or more"),
        ({"settings": [{"searched": ""}]}, "not as keyhole frontier writes it"),
        ({"date": 3}, "not as keyhole frontier writes it"),
    ],
)
def test_what_no_frontier_writes_is_refused(spoil: dict[str, object], message: str) -> None:
    with pytest.raises(RunFolderError, match=message):
        FrontierResult.from_json({**make_frontier().to_json(), **spoil})


@pytest.mark.parametrize(
    ("field", "value"), [("read", 9), ("read", -1), ("images", 0), ("read", "3")]
)
def test_readings_that_cannot_be_are_refused(field: str, value: object) -> None:
    values = make_frontier().to_json()
    values["settings"][0]["seeds"][0]["readings"][0][field] = value
    with pytest.raises(RunFolderError):
        FrontierResult.from_json(json.loads(json.dumps(values)))


def test_a_folder_without_a_frontier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="name a folder of keyhole frontier"):
        FrontierResult.load(tmp_path)


def test_the_words_name_the_mildest_and_what_they_cost() -> None:
    result = make_frontier()
    held = describe_frontier(result)["held"]
    assert len(held) == 2
    assert held[0].startswith("gaussian(sigma=0.1): accuracy 93.0%, 3.0 points less than without")
    assert "Nobody read any of 24 images (95%: at most 14%)" in held[0]
    assert held[1].startswith("topk(k=0.01): accuracy 86.0%, 10.0 points less")
    assert "+1.00 s a round" in held[1]
    assert "2 of 5 settings were not broken by the attacks tried" in summarise(result)


def test_the_words_name_what_was_not_tried() -> None:
    lines = describe_frontier(make_frontier())["not_tried"]
    text = " ".join(lines)
    assert "tip: defense 'tip' does not fit the model" in text
    assert "No attacker who knows the defense met dropout(p=0.25)." in lines
    assert "april could not be used: it needs a ViT." in lines
    assert "A server that changes the model was not tried" in text
    rest = next(line for line in lines if line.startswith("Defenses that were not tried"))
    assert "agp" in rest
    assert "topk" not in rest


def test_seconds_that_seeds_disagree_on_are_no_price() -> None:
    """Other work on the machine slows some seeds down and not others."""
    plain, held = (make_outcome(n, (0.9, 0.9), r) for n, r in (("none", 8), ("dp", 0)))
    times = [dataclasses.replace(s, seconds=t) for s, t in zip(held.seeds, (1.0, 3.0), strict=True)]
    mixed = dataclasses.replace(held, seeds=tuple(times))
    for setting, words in ((held, "+0.00 s a round"), (mixed, "seeds disagree on the seconds")):
        result = dataclasses.replace(make_frontier(), settings=(plain, setting))
        assert words in describe_frontier(result)["held"][0]
    assert not mixed.cost(plain).agreed
    assert mixed.cost(plain).seconds == -0.5
    advised = advise_outcome(mixed, result)
    assert advised.seconds is None
    assert "points of accuracy less than without a defense; 0 of" in describe_setting(advised)


def test_attacks_that_were_cut_short_are_said_to_be() -> None:
    whole = make_frontier()
    plan = whole.plan.model_copy(update={"iterations": 100})
    short = dataclasses.replace(whole, plan=plan)
    words = "iterative attacks of at most 100 iterations"
    assert any(words in line for line in describe_frontier(short)["not_tried"])
    assert describe_facts(short).endswith(f"; {words}")
    assert not any("at most" in line for line in describe_frontier(whole)["not_tried"])
    assert "iterat" not in describe_facts(whole)


def test_where_all_are_broken_the_least_read_is_named() -> None:
    broken = tuple(each for each in make_frontier().settings if not each.held)
    result = dataclasses.replace(make_frontier(), settings=broken)
    assert "All 3 were broken" in summarise(result).replace("settings ", "")
    assert "topk(k=0.1): 8% of the images" in summarise(result)
    assert describe_frontier(result)["held"] == [
        "No setting held: try stronger settings, or other defenses."
    ]


def test_one_seed_is_said_to_have_no_interval() -> None:
    plain = make_outcome("none", (0.9,), 8)
    held = make_outcome("topk", (0.8,), 0, k=0.1)
    result = dataclasses.replace(make_frontier(), settings=(plain, held))
    assert "(one seed: no interval)" in describe_frontier(result)["held"][0]
