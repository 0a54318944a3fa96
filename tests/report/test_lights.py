"""The executive summary: which lamp is lit, why, and who the attackers were."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from keyhole.auditing import AuditResult
from keyhole.auditing.defense_acted import DefenseActed
from keyhole.auditing.finding import Finding
from keyhole.auditing.verdict import HONEST, MALICIOUS, judge_findings
from keyhole.defenses import Acted
from keyhole.metrics import METRICS
from keyhole.report import render, view
from keyhole.report.attackers_view import list_attackers
from keyhole.report.glossary import GLOSSARY, STATUSES
from keyhole.report.lights import Lamp, Light, light_section
from keyhole.report.shell import read_asset
from source_code import LIBRARY
from synthetic_runs import make_finding

NONE: tuple[str, dict[str, Any]] = ("none", {})


def noise(sigma: float) -> tuple[str, dict[str, Any]]:
    return "gaussian", {"sigma": sigma}


def make_result(*findings: Finding) -> AuditResult:
    return AuditResult(findings, tuple(judge_findings(findings)), (), None)


def light(server: str, *findings: Finding) -> Light:
    (section,) = make_result(*findings).sections
    (found,) = [each for each in light_section(section) if each.server == server]
    return found


def test_red_says_that_every_setting_was_broken_and_names_the_worst() -> None:
    found = light(
        HONEST,
        make_finding(NONE, "linear", "naive", read=0.5),
        make_finding(noise(0.1), "ig", "adaptive", read=1.0),
    )
    assert (found.lamp, found.state) == (Lamp.RED, "Images were read")
    assert found.words == (
        "Private images were read in both settings: under gaussian(sigma=0.1), ig (adaptive) read "
        "8 of 8.",
    )


def test_one_setting_that_holds_makes_it_depend_on_the_defense() -> None:
    found = light(
        HONEST,
        make_finding(NONE, "linear", "naive", read=1.0),
        make_finding(noise(0.1), "linear", "adaptive"),
    )
    assert (found.lamp, found.state) == (Lamp.AMBER, "Depends on the defense")
    assert found.words == (
        "Private images were read in 1 of 2 settings: without a defense, linear (naive) read 8 "
        "of 8.",
        "Not broken by the attacks tried: gaussian(sigma=0.1).",
    )


def test_green_needs_an_attacker_who_knows_each_defense() -> None:
    first = make_finding(noise(0.1), "linear", "adaptive", victims=100)
    found = light(HONEST, first)
    assert (found.lamp, found.state) == (Lamp.GREEN, "Not broken")
    assert "Of 100 images that leaves up to 4% that may be readable (95%)" in found.words[0]
    found = light(HONEST, first, make_finding(noise(0.2), "linear", "naive", victims=100))
    assert (found.lamp, found.state) == (Lamp.AMBER, "Not broken, with doubts")
    assert found.words == ("No attacker who knows the defense was tried on gaussian(sigma=0.2).",)


def test_nothing_read_without_a_defense_is_said_to_be_a_weakness_of_the_attacks() -> None:
    found = light(HONEST, make_finding(NONE, "linear", "naive"))
    assert found.lamp is Lamp.AMBER
    assert found.words == (
        "There was no defense and still nothing was read: these attacks are weak here.",
    )


def test_a_defense_that_did_nothing_and_a_picture_that_points_are_doubts() -> None:
    acted = DefenseActed(Acted.IDLE, "the defense did nothing")
    idle = make_finding(noise(0.1), "linear", "adaptive", acted=acted)
    assert light(HONEST, idle).words == (
        "The defense did not act as it declares: gaussian(sigma=0.1).",
    )
    whole = make_finding(noise(0.1), "linear", "adaptive", read=1.0)
    blind = make_finding(noise(0.1), "linear", "adaptive")
    metrics = {**blind.metrics, "reid": whole.metrics["reid"]}
    found = light(HONEST, dataclasses.replace(blind, metrics=metrics))
    assert found.lamp is Lamp.AMBER
    assert found.words == (
        "What was seen still points to the right image under gaussian(sigma=0.1).",
    )
    plain = dataclasses.replace(make_finding(NONE, "linear", "naive"), metrics=metrics)
    assert light(HONEST, plain).words[1:] == (
        "What was seen still points to the right image without a defense.",
    )
    assert light(HONEST, plain, dataclasses.replace(blind, metrics=metrics)).words[1:] == (
        "What was seen still points to the right image without a defense and under "
        "gaussian(sigma=0.1).",
    )


def test_servers_have_lights_of_their_own() -> None:
    findings = (
        make_finding(noise(0.1), "linear", "adaptive"),
        make_finding(noise(0.1), "imprint", "adaptive", read=1.0, malicious=True),
    )
    assert light(HONEST, *findings).lamp is Lamp.GREEN
    assert light(MALICIOUS, *findings).lamp is Lamp.RED
    assert light(MALICIOUS, findings[0]).state == "Not tried"
    assert light(HONEST, findings[1]).words[0].startswith("Only attacks that change the model")


def test_what_was_not_tested_or_not_scored_lights_no_lamp() -> None:
    labels = make_finding(NONE, "labels", "naive", metrics=False, reads_images=False)
    found = light(HONEST, labels)
    assert (found.lamp, found.state) == (Lamp.OFF, "Not judged")
    assert found.words == ("1 setting was not tested: no attack on images was run there.",)
    unscored = make_finding(NONE, "linear", "naive", metrics=False)
    unscored.recipe["scored"] = False
    assert light(HONEST, unscored).words == (
        "1 setting could not be scored: the original images are not known.",
    )


def test_many_settings_are_counted_not_listed() -> None:
    findings = [make_finding(noise(s), "linear", "naive") for s in (0.1, 0.2, 0.3, 0.4, 0.5)]
    (words,) = light(HONEST, *findings).words
    assert words.endswith(
        "gaussian(sigma=0.1), gaussian(sigma=0.2), gaussian(sigma=0.3) and 2 more."
    )


def test_two_servers_stand_in_one_sentence() -> None:
    result = make_result(
        make_finding(noise(0.1), "linear", "adaptive"),
        make_finding(noise(0.1), "imprint", "adaptive", malicious=True),
    )
    assert view.summarise_verdicts(result.verdicts) == (
        "An honest server read private images in 0 of 1 setting; a malicious server, which "
        "changes the model, did so in 0 of 1 setting. That is no promise of safety."
    )


def test_attackers_are_introduced_with_what_they_do_and_how_far_they_came() -> None:
    findings = (
        make_finding(NONE, "linear", "naive", read=1.0),
        make_finding(noise(0.1), "linear", "naive"),
        make_finding(noise(0.1), "linear", "adaptive"),
        make_finding(NONE, "own:Attack", "naive", malicious=True),
    )
    findings[2].knowledge["labels"] = True
    linear, own = list_attackers(findings)
    assert (linear.name, linear.server, linear.kinds) == ("linear", HONEST, ("naive", "adaptive"))
    assert "fully connected" in linear.does
    assert (linear.settings, linear.read_in, linear.given) == (2, 1, "the images' labels")
    assert (own.does, own.server, own.changes) == ("", MALICIOUS, "an added layer")


def test_every_metric_and_every_status_is_explained() -> None:
    assert set(METRICS) <= set(GLOSSARY)
    assert set(STATUSES) == set(view.CHIPS)
    assert set(STATUSES.values()) <= set(GLOSSARY)


@pytest.mark.parametrize("file", sorted(p.name for p in (LIBRARY / "report").glob("*.j2")))
def test_templates_ask_for_words_that_there_are(file: str) -> None:
    asked = re.findall(r'\bterm\("([\w-]+)"', read_asset(file))
    assert set(asked) <= set(GLOSSARY)


def test_every_link_of_a_page_leads_somewhere() -> None:
    page = render(make_result(make_finding(NONE, "linear", "naive", read=1.0)), title="x")
    links = re.findall(r'(?:href|aria-describedby|aria-labelledby)="#?([\w-]+)"', page)
    assert {"summary", "advice", "attackers", "glossary", "term-honest"} <= set(links)
    ids = re.findall(r'\bid="([\w-]+)"', page)
    assert set(links) <= set(ids)
    assert len(ids) == len(set(ids))
