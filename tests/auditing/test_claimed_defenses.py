"""What clients say of their own defense: believed, said to be a claim, and never trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from captures import audited, change_json, manifest
from keyhole.auditing import AuditResult, Stage
from keyhole.auditing.captured_model import CapturedModel
from keyhole.auditing.captured_training import infer_training
from keyhole.auditing.claimed_defenses import MAX_CLAIM, add_claim, parse_claim
from keyhole.data import load
from keyhole.defenses import Composition, DefenseSpec, Gaussian, Mjp, NoDefense, Pruning
from keyhole.errors import BadUpdate
from keyhole.federation import Capture
from keyhole.federation.capture import CaptureWriter, Reply
from keyhole.models import build

CPU = torch.device("cpu")


def claim(seen: Path, **claims: Any) -> None:
    """Notes in the first round's manifest what each client says that it did."""

    def note(found: dict[str, Any]) -> None:
        for client in found["clients"]:
            if f"client_{client['node']}" in claims:
                client["defense"] = claims[f"client_{client['node']}"]

    change_json(manifest(seen), note)


def told(result: AuditResult) -> dict[str, set[str]]:
    """The defenses that were attacked, and by whom."""
    found: dict[str, set[str]] = {}
    for finding in result.findings:
        spelled = str(DefenseSpec(**finding.defense))
        found.setdefault(spelled, set()).add(finding.attacker)
    return found


def notes_of(result: AuditResult) -> str:
    return "\n".join([*result.notes, *(note for f in result.findings for note in f.notes)])


QUICK: dict[str, Any] = {"attacks": ("ig",), "iterations": 2}


def test_attackers_know_what_clients_claim(seen: Path) -> None:
    claim(seen, client_0="gaussian(sigma=0.001)", client_1="gaussian(sigma=0.001)")
    result = audited(seen, nodes="0,1", **QUICK)
    assert told(result) == {"gaussian(sigma=0.001)": {"naive", "adaptive"}}
    assert "the defense is gaussian(sigma=0.001), as its clients claim" in notes_of(result)


def test_clients_are_grouped_by_what_they_claim(seen: Path) -> None:
    claim(seen, client_0="gaussian(sigma=0.001)", client_1="none")
    result = audited(seen, nodes="0,1", **QUICK)
    assert told(result) == {"gaussian(sigma=0.001)": {"naive", "adaptive"}, "none": {"naive"}}


def test_the_user_s_word_counts_more(seen: Path) -> None:
    claim(seen, client_0="gaussian(sigma=0.001)")
    result = audited(seen, nodes="0", defenses=("pruning(ratio=0.5)",), **QUICK)
    assert set(told(result)) == {"pruning(ratio=0.5, scope='tensor')"}
    assert "claim" not in notes_of(result)


UNREADABLE = [
    "pruning(ratio=0.9) + my_parts:Gaussian",
    "rot13",
    "gaussian(sigma=nan)",
    "gaussian(sigma=-1)",
    "gaussian(" + "(" * 5000,
    "os:system",
    "\x1b[31mgaussian",
    17,
]


@pytest.mark.parametrize("words", UNREADABLE)
def test_a_claim_that_cannot_be_read_is_only_text(words: Any) -> None:
    stage = Stage()
    messages, notes = add_claim({"lr": 0.1}, {"defense": words}, stage, nn.Linear(2, 2))
    training = infer_training(messages, stage)
    assert training.defense == NoDefense()
    (note,) = [n for n in (*notes, *training.notes) if "is not known here" in n]
    assert "attackers do without it" in note
    assert note.isprintable()
    assert len(note) < MAX_CLAIM + 200


def test_hostile_claims_cost_nobody_else(seen: Path) -> None:
    claim(seen, client_0="gaussian(" + "(" * 5000, client_1={"gaussian": 1})
    result = audited(seen, nodes="0,1", **QUICK)
    assert told(result) == {"none": {"naive"}}


def test_a_model_with_the_parameters_of_a_claimed_defense_is_found(tmp_path: Path) -> None:
    """MJP trains parameters of its own, which the server's model has as well."""
    data = load("digits")
    plain = build("vit-small", classes=10, channels=1, image_size=8)
    weights = Mjp().prepare_model(plain).state_dict()
    assert len(weights) > len(plain.state_dict())
    replies = [Reply("0", weights, 1, defense="tip"), Reply("1", weights, 1, defense=str(Mjp()))]
    CaptureWriter(tmp_path).write_round(1, weights, replies)
    (seen,) = Capture.open(tmp_path).rounds
    stage = Stage(model="vit-small", data="digits", captured=tmp_path)
    assert set(CapturedModel(stage, data, 0, CPU).load_round(seen).state_dict()) == set(weights)
    named = Stage(**{**stage.model_dump(exclude_unset=True), "defenses": ("none",)})
    with pytest.raises(BadUpdate):
        CapturedModel(named, data, 0, CPU).load_round(seen)


def test_a_claim_that_the_model_cannot_fulfil_stops_nobody(seen: Path) -> None:
    claim(seen, client_0="tip(epsilon=1.0)", client_1="gaussian(sigma=0.001)")
    result = audited(seen, nodes="0,1", **QUICK)
    assert told(result)["none"] == {"naive"}
    assert "gaussian(sigma=0.001)" in told(result)
    assert "which does not fit the model: attackers do without it" in notes_of(result)


def test_the_defenses_of_several_mods_are_one_composition() -> None:
    claimed = parse_claim("pruning(ratio=0.9) + gaussian(sigma=0.001)")
    assert claimed == Composition((Pruning(ratio=0.9), Gaussian(sigma=0.001)))
    assert parse_claim("pruning + pruning") is None


def test_only_keyhole_s_own_defenses_are_read_from_claims() -> None:
    assert parse_claim("keyhole.defenses:Gaussian") is None
    assert parse_claim("x" * 10**6) is None
    assert str(parse_claim(" gaussian ")) == "gaussian(sigma=0.001)"
