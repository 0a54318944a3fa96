"""Reads and changes the messages between a Flower server and its clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
from torch import Tensor

from keyhole.errors import BadUpdate, DoesNotFit, one_line
from keyhole.federation.capture import Reply
from keyhole.update import Update, apply_change, check_weights, convert_type, subtract

CallNext = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, CallNext], Message]
Tensors = dict[str, Tensor]


MAX_EXTRA_BYTES = 4096
"""The bytes that metrics and configs of one reply may have: enough for 512 numbers."""


CLAIM_RECORD = "keyhole"
"""The record in a reply in which a mod names its defense."""


def message_kind(message: Message) -> str:
    """Returns what a client is asked to do: ``train``, ``evaluate``, ``query``, or another word."""
    return str(message.metadata.message_type).split(".")[0]


def is_training(message: Message) -> bool:
    return bool(message_kind(message) == MessageType.TRAIN)


def read_sent_weights(message: Message) -> Tensors | None:
    """Returns the weights that a training message carries, if any; raises if one is not finite.

    Call it before the client sees the message, which the client may change.
    """
    if not message.content.array_records:
        return None
    weights = read_weights(message)
    check_weights(weights)
    return weights


def carries_update(start: Tensors | None, reply: Message) -> bool:
    """Returns whether a reply carries weights; raises if it does and the message did not."""
    carries = not reply.has_error() and bool(reply.content.array_records)
    if carries and start is None:
        raise DoesNotFit(
            "the reply carries tensors but the message carried none, so the change cannot be "
            "computed: send the global weights with every training message"
        )
    return carries


def read_weights(message: Message) -> Tensors:
    """Returns the tensors of a message that carries exactly one ArrayRecord."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise DoesNotFit(f"a training message carries one ArrayRecord; this one has {len(records)}")
    try:
        return dict(records[0].to_torch_state_dict())
    except Exception as error:  # noqa: BLE001  NumPy raises anything where a header is spoilt
        raise DoesNotFit(f"the tensors of a message cannot be read ({one_line(error)})") from None


def replace_weights(message: Message, weights: Tensors) -> None:
    """Puts ``weights`` in the place of a message's own tensors."""
    (key,) = message.content.array_records
    message.content[key] = ArrayRecord(weights)


def read_update(start: Tensors, message: Message) -> Update:
    """Returns what a reply changes; tensors that the server did not send are taken as they are."""
    end = read_weights(message)
    change = {
        name: subtract(tensor, convert_type(start[name], tensor)) if name in start else tensor
        for name, tensor in end.items()
    }
    metrics = {k: v for r in message.content.metric_records.values() for k, v in r.items()}
    examples = metrics.get("num-examples", 1)
    is_number = isinstance(examples, int | float) and math.isfinite(examples)
    return Update(change, examples=int(examples) if is_number else 1)


def read_checked_update(start: Tensors, reply: Message) -> Update:
    """Returns what a reply changes; raises if it holds a tensor that no defense can act on."""
    end = read_weights(reply)
    Update(end).check_against(start)
    for name in end:
        if start[name].is_complex():  # a real reply would be compared with its real part only
            raise BadUpdate(f"the global weights have complex numbers in {name!r}: send real ones")
    return read_update(start, reply).check().check_defended(start)


def apply_update(start: Tensors, update: Update) -> Tensors:
    """Returns the weights after an update, in the types that the client sent."""
    return {
        name: apply_change(convert_type(start[name], change), change) if name in start else change
        for name, change in update.change.items()
    }


def refuse_undefended(kind: str, reply: Message, allowed: Collection[str]) -> None:
    """Raises if a reply carries tensors, or long metrics, that no defense has seen.

    ``kind`` is what the client was asked to do; the tensors of ``train`` are checked elsewhere.
    """
    if reply.has_error():
        return
    if kind != MessageType.TRAIN and kind not in allowed and reply.content.array_records:
        raise DoesNotFit(
            f"the reply to a message of type {kind!r} carries tensors, which no defense has seen: "
            f"leave them out, or pass as_mod(..., allow_undefended=({kind!r},))"
        )
    size = count_extra_bytes(reply)
    if "metrics" not in allowed and size > MAX_EXTRA_BYTES:
        raise DoesNotFit(
            f"the metrics and configs of the reply hold {size} bytes, enough for an image, and no "
            f"defense has seen them: send at most {MAX_EXTRA_BYTES}, or pass "
            "as_mod(..., allow_undefended=('metrics',))"
        )


def claim_defense(reply: Message, defense: str) -> None:
    """Names the defense in a reply, after the defenses of inner mods."""
    claim = read_claimed_defense(reply)
    if CLAIM_RECORD in reply.content and CLAIM_RECORD not in reply.content.config_records:
        raise DoesNotFit(
            f"the reply has a record {CLAIM_RECORD!r} of its own: give it another name"
        )
    text = defense if claim is None else f"{claim} + {defense}"
    reply.content[CLAIM_RECORD] = ConfigRecord({"defense": text})


def read_claimed_defense(reply: Message) -> str | None:
    """Returns the defense that a reply names, in the client's own words, if any."""
    claim = reply.content.config_records.get(CLAIM_RECORD, ConfigRecord()).get("defense")
    return claim if isinstance(claim, str) else None


def count_extra_bytes(reply: Message) -> int:
    """Returns the bytes of all names and values in a reply except tensors; a number has 8."""
    records = [*reply.content.metric_records.values(), *reply.content.config_records.values()]
    named = [(name, value) for record in records for name, value in record.items()]
    titles = sum(count_value_bytes(title) for title in reply.content)
    return titles + sum(count_value_bytes(name) + count_value_bytes(value) for name, value in named)


def count_value_bytes(value: Any) -> int:
    """Returns the bytes of a metric's or config's value.

    >>> count_value_bytes([1.5, 2.5]), count_value_bytes("text"), count_value_bytes([b"ab", b"c"])
    (16, 4, 3)
    """
    if isinstance(value, list):
        return sum(count_value_bytes(each) for each in value)
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else 8


def read_reply(sent: Tensors, message: Message) -> Reply:
    """Returns one client's reply as the server saw it; raises if the change cannot be computed."""
    metrics: dict[str, Any] = {}
    for record in message.content.metric_records.values():
        metrics.update(record)
    return Reply(
        node=str(message.metadata.src_node_id),
        change=compute_change(sent, read_weights(message)),
        examples=parse_count(metrics.get("num-examples")),
        metrics=metrics,
        defense=read_claimed_defense(message),
    )


def compute_change(sent: Tensors, end: Tensors) -> Tensors:
    """Returns what a client changed, in the wider of both types; unknown tensors as they are."""
    for name in end.keys() & sent.keys():
        if end[name].shape != sent[name].shape:  # torch would broadcast them to any size
            raise DoesNotFit(
                f"its {name!r} has shape {tuple(end[name].shape)}, the model's "
                f"{tuple(sent[name].shape)}"
            )
    return {
        name: subtract(*to_wider_type(tensor, sent[name])) if name in sent else tensor
        for name, tensor in end.items()
    }


def to_wider_type(end: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both in one type: the wider float, or the client's integers.

    The server's tensor may be a float where the client's is an integer: FedAvg averages buffers.
    """
    if not (end.is_floating_point() or end.is_complex()):
        return end, convert_type(start.real, end)
    kind = torch.promote_types(end.dtype, start.dtype)
    return end.to(kind), start.to(kind)


def parse_count(value: object) -> int | None:
    """Returns a number of examples; None if the value is not one.

    >>> parse_count(12.0), parse_count(float("nan")), parse_count(-1), parse_count(True)
    (12, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value >= 0 else None
