"""Defenses that send less of each value, or fewer values: topk, quantise, signsgd, half."""

from __future__ import annotations

import json
import math

import pytest
import torch
from pydantic import ValidationError

from keyhole.defenses import ClientSide, Defense, Half, Quantise, SignSgd, TopK
from keyhole.defenses.topk import RESIDUAL
from keyhole.errors import BadUpdate
from keyhole.seeds import generator
from keyhole.update import Update

EVERY = [
    TopK(k=0.2),
    TopK(k=0.2, scope="tensor"),
    Quantise(bits=2),
    Quantise(bits=8),
    Quantise(bits=2, rounding="qsgd"),
    Quantise(bits=5, rounding="qsgd"),
    SignSgd(),
    SignSgd(step=0.1),
    Half(),
    Half(kind="bfloat16"),
]


def drawn(kind: torch.dtype = torch.float32) -> Update:
    draws = generator(0)
    change = {
        "large": torch.randn(20, 30, generator=draws),
        "small": 1e-3 * torch.randn(50, generator=draws),
        "nothing": torch.zeros(4),
    }
    return Update({name: v.to(kind) for name, v in change.items()}, steps=2, lr=0.5)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("defense", EVERY, ids=str)
def test_the_truth_lies_between_the_bounds(defense: Defense, kind: torch.dtype) -> None:
    whole = drawn(kind)
    sent = defense.on_update(whole, ClientSide(generator(1)))
    values = defense.possible_values(sent)
    assert set(values) == set(whole.change)
    for name, interval in values.items():
        truth = whole.gradient()[name]
        assert bool((interval.low <= truth).all()), name
        assert bool((truth <= interval.high).all()), name
        assert torch.equal(interval.low[interval.known], truth[interval.known])


def test_top_k_sends_the_largest_and_counts_them() -> None:
    client = ClientSide()
    sent = TopK(k=0.01).on_update(drawn(), client)
    assert client.telemetry == {"kept": 7, "total": 654}
    largest = drawn().change["large"].abs().flatten().topk(7).values
    assert sent.change["large"].abs().max() == largest[0]
    assert int((sent.change["large"] != 0).sum()) == 7
    assert not sent.change["small"].any()


def test_error_feedback_sends_everything_in_the_end() -> None:
    defense, client = TopK(k=0.25, error_feedback=True), ClientSide()
    whole = Update({"w": torch.tensor([4.0, 3.0, 2.0, 1.0])})
    nothing = Update({"w": torch.zeros(4)})
    sent = defense.on_update(whole, client)
    assert sent.change["w"].tolist() == [4, 0, 0, 0]
    assert client.telemetry["residual_norm"] == pytest.approx(math.sqrt(14))
    total = sent.change["w"]
    for _ in range(3):
        client.memory = json.loads(json.dumps(client.memory))  # as a run folder keeps it
        total = total + defense.on_update(nothing, client).change["w"]
    assert torch.equal(total, whole.change["w"])
    assert defense.possible_values(sent) == {}


@pytest.mark.parametrize("text", ["not base64!", "AAAA", 3])
def test_a_damaged_memory_is_one_line(text: object) -> None:
    client = ClientSide(memory={RESIDUAL: text})
    with pytest.raises(BadUpdate, match=r"is damaged: clear its memory"):
        TopK(error_feedback=True).on_update(drawn(), client)


def test_a_memory_of_another_model_is_refused() -> None:
    client, defense = ClientSide(), TopK(error_feedback=True)
    defense.on_update(Update({"w": torch.ones(4)}), client)
    with pytest.raises(BadUpdate, match=r"does not fit 'w'"):
        defense.on_update(Update({"w": torch.ones(5)}), client)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_uniform_levels_are_few_and_near(bits: int) -> None:
    whole = drawn()
    sent = Quantise(bits=bits).on_update(whole)
    for name in ("large", "small"):
        before, after = whole.change[name], sent.change[name]
        step = 2 * float(before.abs().max()) / (2**bits - 1)
        assert len(after.unique()) <= 2**bits
        assert float((before - after).abs().max()) <= step / 2 * (1 + 1e-5)
        assert float(after.abs().max()) == pytest.approx(float(before.abs().max()))


def test_qsgd_keeps_the_expectation_and_the_levels() -> None:
    value = torch.tensor([3.0, -4.0, 0.5])
    draws, defense = generator(0), Quantise(bits=3, rounding="qsgd")
    sent = torch.stack(
        [
            defense.on_update(Update({"w": value}), ClientSide(draws)).change["w"]
            for _ in range(4000)
        ]
    )
    step = 5.0249377 / 3
    assert torch.allclose(sent.mean(0), value, atol=0.06)
    assert torch.allclose((sent / step).round() * step, sent, atol=1e-5)


def test_signs_have_the_mean_magnitude_of_their_tensor() -> None:
    whole = drawn()
    sent = SignSgd().on_update(whole)
    for name in ("large", "small"):
        before, after = whole.change[name], sent.change[name]
        assert torch.equal(after.sign(), before.sign())
        assert after.abs().unique().tolist() == pytest.approx([float(before.abs().mean())])
    fixed = SignSgd(step=0.5).on_update(whole).change["small"]
    assert fixed.abs().unique().tolist() == [0.5]


def test_what_half_precision_cannot_hold_is_counted() -> None:
    client = ClientSide()
    whole = Update({"w": torch.tensor([1e6, 1.0])})
    sent = Half().on_update(whole, client)
    assert sent.change["w"].tolist() == [65504, 1]
    assert client.telemetry == {"beyond_range": 1}
    (interval,) = Half().possible_values(sent).values()
    assert interval.low[0] == -math.inf
    assert -1 - 2e-3 < interval.low[1] < -1 < interval.high[1] < -1 + 2e-3


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TopK, {"k": 0}),
        (TopK, {"k": 1.1}),
        (Quantise, {"bits": 1}),
        (Quantise, {"rounding": "nearest"}),
        (SignSgd, {"step": 0}),
        (Half, {"kind": "int8"}),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: type[Defense], values: dict) -> None:
    with pytest.raises(ValidationError):
        kind(**values)
