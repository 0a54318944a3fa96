"""The defense of captured clients: what the user says, or what clients claim without proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from keyhole.auditing.plan import Stage
from keyhole.defenses import DEFENSES, Defense, NoDefense
from keyhole.errors import KeyholeError
from keyhole.untrusted import printable

MAX_CLAIM = 300
"""Characters of what a client may say about its defense."""


def choose_defense(messages: Mapping[str, Any], stage: Stage) -> Defense:
    """The clients' defense: as the user says, or as messages say, or none."""
    if "defenses" in stage.model_fields_set:
        return DEFENSES.parse(stage.defenses[0])
    return parse_claim(messages.get("defense", "none")) or NoDefense()


def parse_claim(claim: object) -> Defense | None:
    """The defense that a stranger's text names; None if it is not one of Keyhole's own.

    >>> str(parse_claim("gaussian(sigma=0.5)")), parse_claim("pruning + my_parts:Fog")
    ('gaussian(sigma=0.5)', None)
    """
    text = str(claim)
    if len(text) > MAX_CLAIM:
        return None
    try:
        return DEFENSES.parse_builtin(text)
    except KeyholeError:
        return None


def add_claim(
    messages: Mapping[str, Any], client: Mapping[str, Any], stage: Stage, model: nn.Module
) -> tuple[dict[str, Any], list[str]]:
    """The messages with the defense that a client claims, and notes for the reader.

    A client may claim anything: a defense that does not fit the model is not believed.
    """
    claim = client.get("defense")
    if claim is None or "defenses" in stage.model_fields_set:
        return dict(messages), []
    defense = parse_claim(claim)
    if defense is None:
        return {**messages, "defense": claim}, []  # note_unknown_defense() says so
    if defense.incompatibilities(model) or defense.prepare_model(model) is not model:
        note = f"its clients claim {defense}, which does not fit the model: attackers do without it"
        return {**messages, "defense": "none"}, [note]
    return {**messages, "defense": claim}, [
        f"the defense is {defense}, as its clients claim: nobody can check that; "
        "--defense overrides it"
    ]


def note_unknown_defense(messages: Mapping[str, Any], stage: Stage) -> list[str]:
    """Says so if the clients' defense is not one of Keyhole's own."""
    if "defenses" in stage.model_fields_set or parse_claim(messages.get("defense", "none")):
        return []
    claim = printable(messages["defense"], MAX_CLAIM)
    return [
        f"the clients' defense {claim!r} is not known here: attackers do without it; name the one "
        "they should know with --defense"
    ]
