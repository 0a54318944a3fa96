"""Clients under Flower that look at the server's model before they train on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, Message, RecordDict

from altered_models import ATTACKS, alter, make
from flower_federations import CLIENTS, Run, alone, app_of, plan_of, recorded
from keyhole.auditing import incoming_mod
from keyhole.errors import DoesNotFit
from keyhole.federation import Capture, build_federation
from keyhole.federation.flower import before_training

PLAN = plan_of("lenet", images=12, batch_size=12, steps=1)


def test_clients_train_on_an_honest_model_round_after_round(run: Run, tmp_path: Path) -> None:
    federation = build_federation(PLAN, data_dir=None)
    run(app_of(federation, incoming_mod(client=alone(federation))), federation.model, last=2)
    assert len(recorded(tmp_path, number=2)) == CLIENTS


@pytest.mark.parametrize("attack", ["fishing", "single-out", "imprint cumulative"])
def test_clients_refuse_to_train_on_an_altered_model(run: Run, tmp_path: Path, attack: str) -> None:
    federation = build_federation(PLAN, data_dir=None)
    weights = alter(ATTACKS[attack], make("lenet"))
    assert weights is not None
    trained: list[int] = []

    def count(message: Message, context: Any, call_next: Any) -> Message:
        trained.append(1)
        return call_next(message, context)

    class Sent(nn.Module):
        def state_dict(self, *args: Any, **options: Any) -> Any:
            return weights

    run(app_of(federation, incoming_mod(client=alone(federation)), count), Sent())
    (seen,) = Capture.open(tmp_path).rounds
    assert (seen.clients, trained) == ((), [])
    assert len(seen.lost) == CLIENTS
    assert all("does not train on this model" in why for why in seen.lost.values())


def call(mod: Any, weights: dict[str, torch.Tensor] | None, context: Any) -> list[Message]:
    """What reaches the training function of a client that gets a message with ``weights``."""
    content = RecordDict({} if weights is None else {"arrays": ArrayRecord(weights)})
    message = Message(content, 100, "train")
    reached: list[Message] = []

    def train(message: Message, context: Context) -> Message:
        reached.append(message)
        return Message(RecordDict(), reply_to=message)

    mod(message, context, train)
    return reached


def new_context() -> Context:
    return Context(1, 100, {"partition-id": 0}, RecordDict(), {})


@pytest.mark.usefixtures("grid_of")
def test_the_last_accepted_model_is_compared_with_the_next() -> None:
    seen: list[Any] = []

    def check(weights: Any, previous: Any, context: Any) -> str | None:
        seen.append(previous)
        return "too large" if float(weights["a"]) > 2 else None

    context, mod = new_context(), before_training(check)
    assert call(mod, {"a": torch.tensor(1.0)}, context)
    with pytest.raises(DoesNotFit, match="does not train on this model: too large"):
        call(mod, {"a": torch.tensor(3.0)}, context)
    call(mod, {"a": torch.tensor(2.0)}, context)
    assert seen[0] is None
    assert [float(previous["a"]) for previous in seen[1:]] == [1.0, 1.0]


@pytest.mark.usefixtures("grid_of")
def test_a_message_without_weights_or_with_nan_is_refused() -> None:
    mod = before_training(lambda weights, previous, context: None)
    with pytest.raises(DoesNotFit, match="no weights that could be checked"):
        call(mod, None, new_context())
    with pytest.raises(Exception, match="NaN or infinite"):
        call(mod, {"a": torch.tensor(float("nan"))}, new_context())


@pytest.mark.usefixtures("grid_of")
def test_a_hash_that_differs_is_refused_unless_the_mod_only_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    federation = build_federation(PLAN, data_dir=None)
    weights = dict(federation.model.state_dict())

    def client(context: Any) -> Any:
        return (
            make("lenet", seed=5),
            federation.data,
            federation.data.images(range(8)),
            federation.data.labels[:8],
        )

    def other(context: Any) -> str:
        return "0" * 64

    with pytest.raises(DoesNotFit, match="other model: its hash is"):
        call(incoming_mod(client=client, expected_hash=other), weights, new_context())
    assert call(incoming_mod(client=client, expected_hash=other, warn=True), weights, new_context())
    assert "the incoming model is suspicious: other model" in caplog.text
