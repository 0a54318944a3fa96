"""The figures in the docs are those of the run that is kept."""

from __future__ import annotations

import json

from scripts import ROOT

RESULT = json.loads((ROOT / "results/guard/incoming.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/malicious.md").read_text(encoding="utf-8")


def test_honest_networks_raise_at_most_one_alarm_in_forty() -> None:
    honest = RESULT["honest"]
    assert {kind: len(group) for kind, group in honest["alarms"].items()} == {
        "fresh": 30,
        "trained": 10,
    }
    assert honest["networks with an alarm"] <= 1


def test_the_docs_tell_false_alarms_as_they_were_measured() -> None:
    for kind, words in (("honest", "by which the thresholds were set"), ("held out", "others")):
        found = RESULT[kind]
        cells = [
            f"{sum(map(bool, group.values()))} of {len(group)}"
            for group in found["alarms"].values()
        ]
        checks = sum(found["checks"].values())
        assert f"| {words} | {' | '.join(cells)} | {checks} |" in PAGE


def test_the_docs_tell_alarms_by_attack_as_they_were_measured() -> None:
    for rows in RESULT["altered"].values():
        cells = [
            f"{sum(bool(found[view]) for found in rows.values())} of {len(rows)}"
            for view in ("model", "bare tensors")
        ]
        names = dict.fromkeys(name for found in rows.values() for name in found["model"])
        assert f"| {' | '.join(cells)} | {', '.join(names)} |" in PAGE
        assert all(found["model"] for found in rows.values())


def test_the_docs_tell_hidden_ladders_as_they_were_measured() -> None:
    for noise in RESULT["hidden ladder"]["in all directions"]:
        cells = []
        for kind in RESULT["hidden ladder"].values():
            found = kind[noise]
            cells += [
                "found" if "ladder" in found["rows"] else "not found",
                f"{found['units alike on images']} of {found['units']}",
                f"{found['read']} of {found['images']}",
            ]
        assert f"| {noise} | {' | '.join(cells)} |" in PAGE
