"""What no mod lets through: whatever a server sends and a client answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("flwr")

import cloudpickle
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from keyhole.auditing.guard import guard_mod
from keyhole.defenses import DEFENSES, Defense, Gaussian
from keyhole.errors import BadValue
from keyhole.federation.flower import (
    as_mod,
    before_upload,
    protect_images,
    protect_model,
    tell_defense,
)
from keyhole.update import convert_type

Ask = Callable[..., Message]
WEIGHTS = {
    "w": torch.zeros(20),
    "unused": torch.zeros(1),
    "batches": torch.tensor(5),
    "mean_of_batches": torch.tensor(5.0, dtype=torch.float64),  # an integer that was averaged
    "places": torch.arange(6),
    "mask": torch.ones(4, dtype=torch.bool),
}


@pytest.fixture
def ask(grid_of: Callable[..., Any]) -> Ask:
    """Sends one message to one client that answers so, behind a mod."""

    def asked(
        mod: Any, content: RecordDict, weights: dict[str, Tensor], kind: str = "train"
    ) -> Message:
        app = ClientApp(mods=[mod])

        def answer(message: Message, context: Any) -> Message:
            return Message(content, reply_to=message)

        for register in (app.train, app.evaluate, app.query):
            register()(answer)
        sent = RecordDict({"arrays": ArrayRecord(weights)})
        (reply,) = grid_of(app, 1).send_and_receive([Message(sent, 100, kind)])
        assert isinstance(reply, Message)
        return reply

    return asked


def content_of(weights: dict[str, Tensor] | None = None, **beside: Any) -> RecordDict:
    arrays = {} if weights is None else {"arrays": ArrayRecord(weights)}
    metrics = beside.pop("metrics", MetricRecord({"num-examples": 1}))
    return RecordDict({**arrays, "metrics": metrics, **beside})


def refusal(reply: Message) -> str:
    assert reply.has_error()
    return str(reply.error.reason)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("mod", [as_mod(Gaussian(clip=1.0)), before_upload(lambda *_: None)])
def test_a_client_does_not_train_on_weights_that_are_not_finite(
    ask: Ask, mod: Any, value: float
) -> None:
    start = {**WEIGHTS, "unused": torch.tensor([value])}
    reply = ask(mod, content_of(WEIGHTS), start)
    assert "the global weights have 1 NaN or infinite values in 'unused'" in refusal(reply)


def test_a_nan_in_an_unused_buffer_does_not_undo_the_clip(ask: Ask) -> None:
    """The sent norm had been .0098 with finite weights, and 6.1 with one NaN among them."""
    learnt = {**WEIGHTS, "w": torch.full((20,), 3.0)}
    sent = ask(as_mod(Gaussian(sigma=1e-4, clip=1e-3)), content_of(learnt), WEIGHTS)
    moved = sent.content["arrays"].to_torch_state_dict()["w"]
    assert float(moved.norm()) < 3e-3
    learnt["unused"] = torch.tensor([math.nan])
    reply = ask(as_mod(Gaussian(sigma=1e-4, clip=1e-3)), content_of(learnt), WEIGHTS)
    assert "the update has 1 NaN or infinite values in 'unused'" in refusal(reply)


@pytest.mark.parametrize("size", [1e5, 1e30])
def test_large_weights_do_not_take_the_noise_away(ask: Ask, size: float) -> None:
    """Neighbours of 1e5 lie .0078 apart in float32: noise of .001 would be lost in rounding.

    Noise as strong as 4.6 steps, rounded twice on its way, is none in 10.9% of the values. Draws
    are unpredictable, so the values are many: the bound lies seven standard deviations off.
    """
    start = {**WEIGHTS, "w": torch.full((20_000,), size)}
    learnt = {**start, "w": start["w"] * 1.5}
    reply = ask(as_mod(Gaussian(sigma=1e-3)), content_of(learnt), start)
    sent = reply.content["arrays"].to_torch_state_dict()["w"]
    assert float((sent == learnt["w"]).float().mean()) < 0.125


@pytest.mark.parametrize(
    ("name", "tensor", "why"),
    [
        ("w", torch.ones(20, dtype=torch.int8), "no integer buffer of the model"),
        ("w", torch.ones(20, dtype=torch.complex64), "no defense acts on complex numbers"),
        ("w", torch.ones(1, 20), "belongs to another model"),
        ("head", torch.ones(3), "which the model does not have"),
        ("head", torch.ones(3, dtype=torch.int64), "which the model does not have"),
        ("batches", torch.tensor(6.0), "where the model has int64"),
        ("batches", torch.tensor(6, dtype=torch.int8), "no integer buffer of the model"),
        ("places", torch.ones(6, dtype=torch.int64), "holds several numbers"),
        ("mask", torch.zeros(4, dtype=torch.bool), "holds several numbers"),
    ],
)
@pytest.mark.parametrize("defense", ["gaussian", "pruning", "none"])
def test_tensors_that_no_defense_acts_on_do_not_leave(
    ask: Ask, defense: str, name: str, tensor: Tensor, why: str
) -> None:
    reply = ask(as_mod(DEFENSES.parse(defense)), content_of({**WEIGHTS, name: tensor}), WEIGHTS)
    assert why in refusal(reply)


def test_complex_weights_of_a_server_are_refused(ask: Ask) -> None:
    start = {**WEIGHTS, "w": torch.zeros(20, dtype=torch.complex64)}
    reply = ask(as_mod(Gaussian()), content_of(WEIGHTS), start)
    assert "the global weights have complex numbers in 'w'" in refusal(reply)


def test_the_model_s_own_counts_leave_and_what_did_not_change(ask: Ask) -> None:
    counted = {"batches": torch.tensor(8), "mean_of_batches": torch.tensor(8)}
    reply = ask(as_mod(Gaussian(sigma=1.0)), content_of({**WEIGHTS, **counted}), WEIGHTS)
    seen = reply.content["arrays"].to_torch_state_dict()
    assert (int(seen["batches"]), int(seen["mean_of_batches"])) == (8, 8)
    assert torch.equal(seen["places"], WEIGHTS["places"])
    assert torch.equal(seen["mask"], WEIGHTS["mask"])
    assert float(seen["w"].std()) > 0.3


def test_integers_that_a_server_averaged_do_not_seem_changed(ask: Ask) -> None:
    """A third of each of three equal integers, added up."""
    mean = {**WEIGHTS, "places": torch.arange(6).double() * (1 - 2**-40)}
    reply = ask(as_mod(Gaussian()), content_of(WEIGHTS), mean)
    assert torch.equal(reply.content["arrays"].to_torch_state_dict()["places"], torch.arange(6))


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_tensors_leave_only_in_replies_to_training(ask: Ask, kind: str) -> None:
    answer = content_of({"images": torch.rand(1, 3, 32, 32)})
    reply = ask(as_mod(Gaussian()), answer, WEIGHTS, kind)
    assert f"allow_undefended=('{kind}',)" in refusal(reply)
    other = as_mod(Gaussian(), allow_undefended=({"evaluate", "query"} - {kind}))
    assert "no defense has seen" in refusal(ask(other, answer, WEIGHTS, kind))
    assert not ask(as_mod(Gaussian(), allow_undefended=(kind,)), answer, WEIGHTS, kind).has_error()
    assert not ask(as_mod(Gaussian()), content_of(), WEIGHTS, kind).has_error()


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize(
    "beside",
    [
        {"metrics": MetricRecord({"num-examples": 1, "losses": [0.5] * 600})},
        {"metrics": MetricRecord({f"loss-{i}": 0.5 for i in range(600)})},
        {"notes": ConfigRecord({"image": b"0" * 5000})},
        {"notes": ConfigRecord({"image": "0" * 5000})},
        {"notes": ConfigRecord({"rows": ["0" * 100] * 50})},
        {"notes": ConfigRecord({"image": "\U0001f600" * 1100})},
        {"0" * 5000: ConfigRecord({})},
    ],
)
def test_metrics_long_enough_for_an_image_do_not_leave(
    ask: Ask, kind: str, beside: dict[str, Any]
) -> None:
    weights = WEIGHTS if kind == "train" else None
    reply = ask(as_mod(Gaussian()), content_of(weights, **beside), WEIGHTS, kind)
    assert "allow_undefended=('metrics',)" in refusal(reply)
    allowed = as_mod(Gaussian(), allow_undefended=("metrics",))
    assert not ask(allowed, content_of(weights, **beside), WEIGHTS, kind).has_error()


@pytest.mark.parametrize("words", ["evaluate", ("train",), ("evaluation", "query")])
def test_what_may_leave_undefended_is_said_in_known_words(words: Any) -> None:
    with pytest.raises(BadValue, match="'evaluate', 'query', 'metrics'"):
        as_mod(Gaussian(), allow_undefended=words)


def test_two_sets_of_tensors_do_not_leave(ask: Ask) -> None:
    two = content_of(WEIGHTS, more=ArrayRecord({"images": torch.rand(9)}))
    assert "carries one ArrayRecord; this one has 2" in refusal(
        ask(as_mod(Gaussian()), two, WEIGHTS)
    )


KINDS = [torch.float32, torch.float64, torch.float16, torch.int8, torch.int64, torch.complex64]
VALUES = [0.0, 1e-45, 1.0, 6e4, 3e38, 1e200, math.nan, math.inf]


def tensors() -> st.SearchStrategy[Tensor]:
    def made(shape: tuple[int, ...], kind: torch.dtype, value: float) -> Tensor:
        full = torch.full(shape, value, dtype=torch.double)
        whole = not (kind.is_floating_point or kind.is_complex)
        return (full.nan_to_num(7).clamp(0, 99) if whole else full).to(kind)

    shapes = st.sampled_from([(), (0,), (1,), (20,), (1, 20)])
    return st.builds(made, shapes, st.sampled_from(KINDS), st.sampled_from(VALUES))


def replies() -> st.SearchStrategy[dict[str, Tensor]]:
    odd = st.dictionaries(st.sampled_from([*WEIGHTS, "stranger"]), tensors(), max_size=2)
    return st.builds(lambda changed: {**WEIGHTS, "w": torch.full((20,), 3.0), **changed}, odd)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=replies(), learnt=replies())
def test_what_leaves_has_the_promised_norm_or_nothing_leaves(
    ask: Ask, start: dict[str, Tensor], learnt: dict[str, Tensor]
) -> None:
    reply = ask(as_mod(Gaussian(sigma=0, clip=0.01)), content_of(learnt), start)
    if reply.has_error():
        assert "keyhole.errors" in refusal(reply)
        return
    sent = reply.content["arrays"].to_torch_state_dict()
    assert set(sent) <= set(start)
    for name, tensor in sent.items():
        assert tensor.isfinite().all()
        assert tensor.shape == start[name].shape
        if not tensor.is_floating_point():
            assert tensor.numel() <= 1 or torch.equal(tensor, convert_type(start[name], tensor))
            continue
        moved = float((tensor.double() - start[name].double()).norm())
        rounding = float(start[name].double().norm()) * torch.finfo(tensor.dtype).eps
        assert moved <= 0.01 * 1.001 + rounding


@pytest.mark.parametrize("defense", [member() for member in DEFENSES], ids=str)
def test_a_mod_can_be_sent_to_other_processes(defense: Defense) -> None:
    """Flower's simulation pickles the client app for Ray's workers."""
    mods = [as_mod(defense, seed=3), before_upload(str), guard_mod(client=lambda context: None)]
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        model = protect_model(torch.nn.Linear(2, 2))
        images = protect_images(torch.rand(1, 1, 2, 2))
        tell_defense(model, images, torch.zeros(1), steps=1, lr=1.0, batch_size=1)
        return message

    assert isinstance(cloudpickle.loads(cloudpickle.dumps(app)), ClientApp)
    assert cloudpickle.loads(cloudpickle.dumps(mods[0])) == as_mod(defense, seed=3)


def test_a_mod_says_what_it_did(grid_of: Callable[..., Any]) -> None:
    """Inner mods act first; strategies take the reply as they take any."""
    app = ClientApp(mods=[as_mod("gaussian(sigma=0.5)"), as_mod("pruning(ratio=0.5)")])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        return Message(content_of(WEIGHTS), reply_to=message)

    grid = grid_of(app, 2)
    sent = FedAvg().configure_train(1, ArrayRecord(WEIGHTS), ConfigRecord(), grid)
    replies = grid.send_and_receive(sent)
    said = [reply.content.config_records["keyhole"]["defense"] for reply in replies]
    assert said == ["pruning(ratio=0.5, scope='tensor') + gaussian(sigma=0.5)"] * 2
    arrays, _ = FedAvg().aggregate_train(1, replies)
    assert arrays is not None
    assert set(arrays) == set(WEIGHTS)


def test_a_record_of_the_client_s_own_is_not_overwritten(ask: Ask) -> None:
    odd = content_of(WEIGHTS)
    odd["keyhole"] = odd.pop("metrics")
    reply = ask(as_mod(Gaussian()), odd, WEIGHTS)
    assert "give it another name" in refusal(reply)
