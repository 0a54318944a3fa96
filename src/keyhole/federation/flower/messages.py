"""What travels between a Flower server and its clients: tensors in, tensors out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
from torch import Tensor

from keyhole.errors import BadUpdate, DoesNotFit, one_line
from keyhole.federation.capture import Reply
from keyhole.update import Update, check_weights, difference, in_type_of, sum_of

CallNext = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, CallNext], Message]
Tensors = dict[str, Tensor]


MOST_BYTES = 4096
"""What the metrics and configs of one reply may hold: as much as 512 numbers."""


CLAIM = "keyhole"
"""The record of a reply in which a mod says what it did."""


def kind_of_message(message: Message) -> str:
    """What a client is asked to do: ``train``, ``evaluate``, ``query``, or anything else."""
    return str(message.metadata.message_type).split(".")[0]


def is_training(message: Message) -> bool:
    return bool(kind_of_message(message) == MessageType.TRAIN)


def sent_weights(message: Message) -> Tensors | None:
    """The weights that a training message carries, if any; raises where they are not all finite.

    To be taken before the client sees the message, which it may change.
    """
    if not message.content.array_records:
        return None
    weights = weights_of(message)
    check_weights(weights)
    return weights


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
    try:
        return dict(records[0].to_torch_state_dict())
    except Exception as error:  # noqa: BLE001  NumPy raises anything where a header is spoilt
        raise DoesNotFit(f"the tensors of a message cannot be read ({one_line(error)})") from None


def put_weights(message: Message, weights: Tensors) -> None:
    (key,) = message.content.array_records
    message.content[key] = ArrayRecord(weights)


def update_of(start: Tensors, message: Message) -> Update:
    """What a reply changes; integers, which no defense touches, and strangers as they are."""
    end = weights_of(message)
    change = {
        name: difference(tensor, in_type_of(start[name], tensor)) if name in start else tensor
        for name, tensor in end.items()
    }
    said = {k: v for r in message.content.metric_records.values() for k, v in r.items()}
    examples = said.get("num-examples", 1)
    counted = isinstance(examples, int | float) and math.isfinite(examples)
    return Update(change, examples=int(examples) if counted else 1)


def defensible_update(start: Tensors, reply: Message) -> Update:
    """What a reply changes; raises where it holds what no defense could act on."""
    end = weights_of(reply)
    Update(end).check_against(start)
    for name in end:
        if start[name].is_complex():  # its reply, if real, would be taken from half of it
            raise BadUpdate(f"the global weights have complex numbers in {name!r}: send real ones")
    return update_of(start, reply).check().check_defended(start)


def moved(start: Tensors, update: Update) -> Tensors:
    """The weights that an update leads to, of the types that the client sent."""
    return {
        name: sum_of(in_type_of(start[name], change), change) if name in start else change
        for name, change in update.change.items()
    }


def check_undefended(kind: str, reply: Message, allowed: Collection[str]) -> None:
    """Raises where a reply carries tensors, or long lists, that no defense has seen.

    ``kind`` is what the client was asked for; in training the tensors are the defense's business.
    """
    if reply.has_error():
        return
    if kind != MessageType.TRAIN and kind not in allowed and reply.content.array_records:
        raise DoesNotFit(
            f"the reply to a message of type {kind!r} carries tensors, which no defense has seen: "
            f"leave them out, or say as_mod(..., allow_undefended=({kind!r},))"
        )
    size = bytes_beside(reply)
    if "metrics" not in allowed and size > MOST_BYTES:
        raise DoesNotFit(
            f"the metrics and configs of the reply hold {size} bytes, enough for an image, and no "
            f"defense has seen them: send at most {MOST_BYTES}, or say "
            "as_mod(..., allow_undefended=('metrics',))"
        )


def claim_defense(reply: Message, defense: str) -> None:
    """Notes in a reply what its update went through, after what inner mods have noted."""
    said = claimed_defense(reply)
    if CLAIM in reply.content and CLAIM not in reply.content.config_records:
        raise DoesNotFit(f"the reply has a record {CLAIM!r} of its own: give it another name")
    text = defense if said is None else f"{said} + {defense}"
    reply.content[CLAIM] = ConfigRecord({"defense": text})


def claimed_defense(reply: Message) -> str | None:
    """What a reply says that its update went through, in the client's own words; None: nothing."""
    said = reply.content.config_records.get(CLAIM, ConfigRecord()).get("defense")
    return said if isinstance(said, str) else None


def bytes_beside(reply: Message) -> int:
    """The bytes of all that a reply says beside its tensors, names too; a number has eight."""
    records = [*reply.content.metric_records.values(), *reply.content.config_records.values()]
    named = [(name, value) for record in records for name, value in record.items()]
    titles = sum(size_of_value(title) for title in reply.content)
    return titles + sum(size_of_value(name) + size_of_value(value) for name, value in named)


def size_of_value(value: Any) -> int:
    """
    >>> size_of_value([1.5, 2.5]), size_of_value("text"), size_of_value([b"ab", b"c"])
    (16, 4, 3)
    """
    if isinstance(value, list):
        return sum(size_of_value(each) for each in value)
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else 8


def reply_of(sent: Tensors, message: Message) -> Reply:
    """One client's answer as the server saw it; raises where it cannot be told what changed."""
    said: dict[str, Any] = {}
    for record in message.content.metric_records.values():
        said.update(record)
    return Reply(
        node=str(message.metadata.src_node_id),
        change=change_of(sent, weights_of(message)),
        examples=count_of(said.get("num-examples")),
        metrics=said,
        defense=claimed_defense(message),
    )


def change_of(sent: Tensors, end: Tensors) -> Tensors:
    """What a client changed, floats in the wider of both types; unknown tensors as they are."""
    for name in end.keys() & sent.keys():
        if end[name].shape != sent[name].shape:  # torch would broadcast them to any size
            raise DoesNotFit(
                f"its {name!r} has shape {tuple(end[name].shape)}, the model's "
                f"{tuple(sent[name].shape)}"
            )
    return {
        name: difference(*wider(tensor, sent[name])) if name in sent else tensor
        for name, tensor in end.items()
    }


def wider(end: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one type: floats in the wider; integers stay integers, for FedAvg sends means."""
    if not (end.is_floating_point() or end.is_complex()):
        return end, in_type_of(start.real, end)
    kind = torch.promote_types(end.dtype, start.dtype)
    return end.to(kind), start.to(kind)


def count_of(value: object) -> int | None:
    """A number of examples; None where it is none.

    >>> count_of(12.0), count_of(float("nan")), count_of(-1), count_of(True)
    (12, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value >= 0 else None
