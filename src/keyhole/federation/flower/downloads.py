"""A client mod that checks the global model before the client trains on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import ArrayRecord, Context, Message

from keyhole.errors import DoesNotFit
from keyhole.federation.flower.messages import (
    CallNext,
    Mod,
    Tensors,
    is_training,
    read_sent_weights,
)

MODEL_RECORD = "keyhole-incoming"
"""The record in a node's state that holds the last model it accepted."""

ModelCheck = Callable[[Tensors, Tensors | None, Context], str | None]


def before_training(check: ModelCheck) -> Mod:
    """Returns a client mod that checks every model before the client trains on it.

    Args:
        check: Is called with the weights that the server sent, those of the last round in which
            the node trained, or None, and the node's context. If it returns a reason, the client
            does not train and answers with an error.
    """
    return DownloadCheck(check)


@dataclass(frozen=True)
class DownloadCheck:
    """What :func:`before_training` returns."""

    check: ModelCheck

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        if not is_training(message):
            return call_next(message, context)
        weights = read_sent_weights(message)
        if weights is None:
            raise DoesNotFit("the training message carries no weights that could be checked")
        record = context.state.array_records.get(MODEL_RECORD)
        previous = None if record is None else dict(record.to_torch_state_dict())
        reason = self.check(weights, previous, context)
        if reason is not None:
            raise DoesNotFit(f"the client does not train on this model: {reason}")
        context.state[MODEL_RECORD] = ArrayRecord(weights)
        return call_next(message, context)
