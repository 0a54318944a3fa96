"""What travels between a Flower server and its clients: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MessageType
from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.federation.capture import Reply
from keyhole.update import Update

CallNext = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, CallNext], Message]
Tensors = dict[str, Tensor]


def is_training(message: Message) -> bool:
    kind = str(message.metadata.message_type).split(".")[0]
    return bool(kind == MessageType.TRAIN)


def sent_weights(message: Message) -> Tensors | None:
    """The weights that a training message carries, if any.

    To be taken before the client sees the message, which it may change.
    """
    return weights_of(message) if message.content.array_records else None


def learnt_something(start: Tensors | None, reply: Message) -> bool:
    """Whether a reply carries weights; raises where it does and none had been sent to begin with:
    what they give away cannot be told."""
    carries = not reply.has_error() and bool(reply.content.array_records)
    if carries and start is None:
        raise DoesNotFit(
            "the reply carries tensors and the message carried none, so that what was learnt "
            "cannot be told: send the global weights with every training message"
        )
    return carries


def weights_of(message: Message) -> Tensors:
    """The tensors of a message that carries one set of them."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise DoesNotFit(f"a training message carries one ArrayRecord; this one has {len(records)}")
    return dict(records[0].to_torch_state_dict())


def put_weights(message: Message, weights: Tensors) -> None:
    (key,) = message.content.array_records
    message.content[key] = ArrayRecord(weights)


def update_of(start: Tensors, message: Message) -> Update:
    """What a reply changes; integers, which no defense touches, and strangers as they are."""
    end = weights_of(message)
    change = {
        name: tensor - start[name].to(tensor) if name in start else tensor
        for name, tensor in end.items()
    }
    said = {k: v for r in message.content.metric_records.values() for k, v in r.items()}
    examples = said.get("num-examples", 1)
    return Update(change, examples=int(examples) if isinstance(examples, int | float) else 1)


def moved(start: Tensors, update: Update) -> Tensors:
    """The weights that an update leads to, of the types that the client sent."""
    return {
        name: start[name].to(change) + change if name in start else change
        for name, change in update.change.items()
    }


def reply_of(sent: Tensors, message: Message) -> Reply:
    """One client's answer as the server saw it."""
    said: dict[str, Any] = {}
    for record in message.content.metric_records.values():
        said.update(record)
    examples = said.get("num-examples")
    return Reply(
        node=str(message.metadata.src_node_id),
        change=update_of(sent, message).change,
        examples=None if examples is None else int(examples),
        metrics=said,
    )
