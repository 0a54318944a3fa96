"""Several defenses in a row."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from keyhole import audit, protect
from keyhole.attacks import DiaRead, DropoutInversion, InvertingGradients
from keyhole.auditing.stage_attacks import choose_attackers
from keyhole.data import load
from keyhole.defenses import (
    DEFENSES,
    Capability,
    ClientSide,
    Composition,
    Defense,
    Dropout,
    Gaussian,
    Mixup,
    NoDefense,
    Pruning,
    Soteria,
    TopK,
)
from keyhole.defenses.base import uses_door
from keyhole.errors import KeyholeError
from keyhole.federation import train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Attacker, Knowledge
from keyhole.update import Update

digits = load("digits")


def updated(defense: Defense, seed: int = 0, memory: dict | None = None) -> Update:
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    return train_client(
        model,
        digits.images([1, 2]),
        digits.labels[[1, 2]],
        data=digits,
        defense=defense,
        generator=generator(seed),
        memory=memory,
    )[0]


def test_a_plus_makes_a_composition_that_spells_itself() -> None:
    made = DEFENSES.parse("dropout(p=0.3) + topk(k=0.01,scope='tensor')+ half")
    assert isinstance(made, Composition)
    assert [part.name for part in made.parts] == ["dropout", "topk", "half"]
    assert DEFENSES.parse(str(made)) == made
    assert str(made.spec) == "dropout(p=0.3) + topk(k=0.01, scope='tensor') + half"
    assert DEFENSES.parse(str(made.spec)) == made
    assert Composition((Composition(made.parts[:2]), made.parts[2])) == made
    DEFENSES.check_name("dropout + topk(k=0.01)")
    with pytest.raises(KeyholeError, match="unknown defense 'fog'"):
        DEFENSES.check_name("dropout + fog")


def test_parts_are_applied_in_order() -> None:
    change = Update({"w": torch.tensor([3.0, -4.0, 0.1, 0.2])})
    clip_first = DEFENSES.parse("gaussian(sigma=0, clip=1.0) + topk(k=0.5)").on_update(change)
    assert clip_first.change["w"].tolist() == pytest.approx([0.5992, -0.799, 0, 0], abs=1e-3)
    clip_last = DEFENSES.parse("topk(k=0.5) + gaussian(sigma=0, clip=1.0)").on_update(change)
    assert clip_last.change["w"].tolist() == pytest.approx([0.6, -0.8, 0, 0], abs=1e-6)


def test_two_that_do_nothing_change_nothing_bit_for_bit() -> None:
    off = updated(DEFENSES.parse("dropout(p=0) + topk(k=1) + half(kind='float32')"))
    plain = updated(NoDefense())
    assert all(torch.equal(off.change[n], plain.change[n]) for n in plain.change)


def test_one_part_does_not_move_another_s_numbers() -> None:
    zero = Update({"w": torch.zeros(50)})
    noisy = [
        DEFENSES.parse(text).on_update(zero, ClientSide(generator(0))).change["w"]
        for text in (
            "gaussian(sigma=1.0) + quantise(bits=32)",
            "gaussian(sigma=1.0) + quantise(bits=8, rounding='qsgd')",
        )
    ]
    assert float((noisy[0] - noisy[1]).abs().max()) < 0.15
    client = ClientSide(generator(0))
    twice = [DEFENSES.parse("half + gaussian").on_update(zero, client) for _ in range(2)]
    assert not torch.equal(twice[0].change["w"], twice[1].change["w"])


def test_each_part_has_its_own_memory_and_telemetry() -> None:
    defense, client = DEFENSES.parse("topk(k=0.25, error_feedback=True) + half"), ClientSide()
    whole = Update({"w": torch.tensor([4.0, 3.0, 2.0, 1.0])})
    sent = defense.on_update(whole, client).change["w"]
    assert set(client.memory) == {"1-topk"}
    assert client.telemetry["topk.kept"] == 1
    assert client.telemetry["half.beyond_range"] == 0
    client.memory = json.loads(json.dumps(client.memory))
    for _ in range(3):
        sent = sent + defense.on_update(Update({"w": torch.zeros(4)}), client).change["w"]
    assert torch.equal(sent, whole.change["w"])


def test_it_uses_the_doors_of_its_parts_and_no_others() -> None:
    made = DEFENSES.parse("dropout + topk(k=0.01)")
    doors = ("on_images", "on_model", "on_step", "on_update")
    assert [uses_door(made, door) for door in doors] == [False, True, False, True]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    client = protect(model, "topk(k=0.1) + half", seed=0)
    client.backward(torch.rand(4, 1, 8, 8), torch.tensor([3, 1, 4, 1]))
    assert sum(int((g != 0).sum()) for g in client.gradient(batch_size=4).values()) == 65


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        ("dropout + topk(k=0.01)", {Capability.HIDDEN_MASKS, Capability.VALUES}),
        ("gaussian + topk", {Capability.NOISE, Capability.VALUES}),
        ("topk + gaussian", {Capability.NOISE}),
        ("topk + half", set()),
        ("csvar + pruning", {Capability.IMAGE_CHANGE, Capability.VALUES}),
        ("csvar + image-noise", set()),
    ],
)
def test_it_declares_what_is_still_true_of_what_leaves(
    text: str, declared: set[Capability]
) -> None:
    assert set(DEFENSES.parse(text).declares) == declared


def test_bounds_are_those_of_the_part_that_declares_them() -> None:
    made = DEFENSES.parse("dropout(p=0.2) + topk(k=0.1)")
    sent = updated(made)
    values = made.possible_values(sent)
    for name, own in TopK(k=0.1).possible_values(sent).items():
        assert torch.equal(values[name].low, own.low)
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    both = DEFENSES.parse("dp(sigma=3e-4) + gaussian(sigma=4e-4)").noise_model(sent, model)
    assert [noise.sigma for noise in both.values()] == pytest.approx([5e-4] * len(both))


def test_attackers_know_all_some_or_nothing_of_it() -> None:
    made = DEFENSES.parse("dropout(p=0.3) + pruning")
    assert choose_attackers(InvertingGradients(), made) == [Attacker.PAPER, Attacker.ADAPTIVE]
    assert choose_attackers(DiaRead(), made) == [Attacker.ADAPTIVE]
    assert DropoutInversion().matching_capabilities(made) == {
        Capability.HIDDEN_MASKS,
        Capability.VALUES,
    }
    assert set(made.paper_attacks) == {*Dropout.paper_attacks, *Pruning.paper_attacks}
    knowledge = Knowledge((1, 8, 8), 10, (0.0,), (1.0,), defense=made)
    assert knowledge.defense_with(Capability.VALUES) is made
    some = replace(knowledge, defense=made.each_part()[0])
    assert some.defense_with(Capability.HIDDEN_MASKS) == Dropout(p=0.3)
    assert some.defense_with(Capability.VALUES) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pruning + pruning(ratio=0.5)", "pruning stands twice"),
        ("none + pruning", "none does nothing"),
        ("signsgd + half + topk", "all values of a tensor have one size"),
        ("dpsgd + tip + dpsgd", "stands twice"),
        ("pruning +", "a defense on both sides"),
        ("pruning + gaussian(sigma=-1)", "sigma"),
    ],
)
def test_what_makes_no_sense_is_one_line(text: str, why: str) -> None:
    with pytest.raises(KeyholeError, match=why) as caught:
        DEFENSES.parse(text)
    assert "\n" not in str(caught.value)


def test_a_model_that_does_not_fit_a_part_is_refused_by_that_part_s_name() -> None:
    made = DEFENSES.parse("pruning + tip")
    assert any(reason.startswith("tip: ") for reason in made.incompatibilities(nn.Linear(4, 10)))
    assert Composition((Pruning(), Gaussian())).incompatibilities(nn.Linear(4, 10)) == []


def test_an_audit_has_a_row_for_each_attacker() -> None:
    result = audit(
        model="lenet",
        data="digits",
        defenses=["dropout(p=0.1) + pruning(ratio=0.5)"],
        attacks=["ig", "dia"],
        victims=1,
        iterations=3,
    )
    rows = {(f.attack, str(f.attacker)) for f in result.findings}
    assert {("ig", "paper"), ("ig", "adaptive"), ("dia", "adaptive")} <= rows
    assert {f.defense["name"] for f in result.findings} == {"dropout(p=0.1) + pruning(ratio=0.5)"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("censor", {Capability.NORMS}),
        ("dropout + censor", {Capability.HIDDEN_MASKS, Capability.NORMS}),
        ("censor + gaussian", {Capability.NOISE}),
        ("mixup + soteria", {Capability.BATCH_CHANGE, Capability.MISLEADING}),
    ],
)
def test_published_defenses_declare_what_is_left_of_them(text: str, told: set[Capability]) -> None:
    assert set(DEFENSES.parse(text).declares) == told


def test_values_mislead_that_mislead_because_of_one_part() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    update = Update({n: torch.ones_like(p) for n, p in model.named_parameters()})
    update.change["0.weight"][:, 1] = 0
    update.change["1.weight"][:, 2] = 0
    made = Composition((Soteria(layer="0"), Dropout(p=0.5)))
    assert set(made.misleading_values(update, model)) == {"0.weight"}
    found = made.misleading_values(update, model)["0.weight"]
    assert found.any(0).tolist() == [False, True, False]
    assert DEFENSES.parse("mixup + soteria").batch_change() == Mixup().batch_change()
