"""The privacy budget that DP-SGD spends, as Opacus counts it."""

from __future__ import annotations

import json
import math

import pytest

from keyhole.data import load
from keyhole.defenses import DpSgd
from keyhole.defenses.base import Memory, Telemetry
from keyhole.defenses.dpsgd import record_step
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")


def one_round(
    defense: DpSgd, memory: Memory, images: int = 8, seed: int = 0
) -> tuple[Update, Telemetry]:
    pytest.importorskip("opacus")
    indices = range(images)
    return train_client(
        build("lenet", classes=10, channels=1, image_size=8),
        digits.images(indices),
        digits.labels[list(indices)],
        data=digits,
        defense=defense,
        generator=generator(seed),
        training=LocalTraining(lr=0.1, epochs=1, batch_size=4),
        memory=memory,
    )


def direct(*history: tuple[float, float], delta: float = 1e-5) -> float:
    """What Opacus' own accountant says of steps of (noise, sample rate)."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for noise, rate in history:
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    return float(accountant.get_epsilon(delta))


def test_the_budget_grows_from_round_to_round_as_opacus_counts_it() -> None:
    memory: Memory = {}
    spent = []
    for number in range(1, 4):
        update, client = one_round(DpSgd(), memory, seed=number)
        assert memory["dpsgd"] == [[1.0, 0.5, 2 * number]]
        assert client["epsilon"] == pytest.approx(direct(*[(1.0, 0.5)] * 2 * number))
        assert client["delta"] == 1e-5
        assert client["noise_multiplier"] == 1.0
        assert client["samples"] == 8
        spent.append(client["epsilon"])
        memory = json.loads(json.dumps(memory))
        json.dumps(client)
    assert spent == sorted(set(spent))
    assert (update.steps, update.batch_size, update.examples) == (2, 4, 8)


def test_batches_of_different_sizes_are_counted_apart_and_the_history_stays_short() -> None:
    memory: Memory = {}
    for seed in range(2):
        _, client = one_round(DpSgd(), memory, images=10, seed=seed)
    assert sorted(memory["dpsgd"]) == [[1.0, 0.2, 2], [1.0, 0.4, 4]]
    steps = [(1.0, 0.4), (1.0, 0.4), (1.0, 0.2)] * 2
    assert client["epsilon"] == pytest.approx(direct(*steps))


def test_delta_and_noise_decide_the_budget() -> None:
    _, usual = one_round(DpSgd(), {})
    _, stricter = one_round(DpSgd(delta=1e-8), {})
    _, louder = one_round(DpSgd(noise=4), {})
    assert stricter["epsilon"] == pytest.approx(direct((1.0, 0.5), (1.0, 0.5), delta=1e-8))
    assert louder["epsilon"] < usual["epsilon"] < stricter["epsilon"]  # type: ignore[operator]


@pytest.mark.parametrize("noise", [0, 1e-200])
def test_without_noise_the_budget_is_infinite_and_json_can_say_so(noise: float) -> None:
    _, client = one_round(DpSgd(noise=noise), {})
    assert client["epsilon"] == "infinite"
    json.loads(json.dumps(client, allow_nan=False))


@pytest.mark.parametrize("noise", [1e-3, 30.0, 1e3])
def test_extreme_noise_is_accounted_for_without_a_warning(noise: float) -> None:
    _, client = one_round(DpSgd(noise=noise, clip=1e-3), {})
    assert isinstance(client["epsilon"], float)
    assert math.isfinite(client["epsilon"])


def test_noise_that_was_once_left_out_is_not_forgotten() -> None:
    memory: Memory = {}
    one_round(DpSgd(noise=0), memory)
    assert one_round(DpSgd(), memory)[1]["epsilon"] == "infinite"


def test_the_budget_is_computed_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    from opacus.accountants import RDPAccountant

    calls = []
    monkeypatch.setattr(RDPAccountant, "get_epsilon", lambda *_: calls.append(1) or 1.5)
    _, client = one_round(DpSgd(), {}, images=32)
    assert (calls, client["epsilon"]) == ([1], 1.5)


def test_a_history_read_from_json_goes_on() -> None:
    pytest.importorskip("opacus")
    memory: Memory = {"dpsgd": json.loads("[[1.0, 0.5, 3]]"), "other": 1}
    record_step(memory, 1.0, 0.5)
    record_step(memory, 2.0, 0.5)
    assert memory == {"dpsgd": [[1.0, 0.5, 4], [2.0, 0.5, 1]], "other": 1}
