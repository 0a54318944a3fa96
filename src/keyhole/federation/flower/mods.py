"""Client mods: one applies a defense to every training message, one checks every update."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType

from keyhole.defenses import DEFENSES
from keyhole.defenses.base import ClientSide, Defense, make_unpredictable_generator
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation.flower.active_defense import (
    ACTIVE_DEFENSE,
    ActiveDefense,
    add_reported_training,
    check_doors,
)
from keyhole.federation.flower.messages import (
    CallNext,
    Mod,
    Tensors,
    apply_update,
    carries_update,
    claim_defense,
    is_training,
    message_kind,
    read_checked_update,
    read_sent_weights,
    read_update,
    refuse_undefended,
    replace_weights,
)
from keyhole.federation.rounds import client_generator
from keyhole.update import Update, check_finite

MEMORY_RECORD = "keyhole-memory"
"""The record in a node's state that holds what its defense remembers."""


ALLOWABLE = (MessageType.EVALUATE, MessageType.QUERY, "metrics")
"""What a user may allow to leave without a defense."""


def as_mod(
    defense: Defense | str, *, seed: int | None = None, allow_undefended: Collection[str] = ()
) -> Mod:
    """Returns a client mod that applies a defense to every training message.

    The reply names the defense in a ConfigRecord ``keyhole``, and an audit takes it as the client's
    claim. If the training function skips a door that the defense uses, the client sends nothing: an
    undefended update never leaves.

    Args:
        defense: The defense, or its name: ``as_mod("gaussian(sigma=0.001)")``.
        seed: With a seed, random numbers are those of Keyhole's own loop for the node's
            ``partition-id`` and the server's round. Without one nobody can repeat them.
        allow_undefended: What may leave without a defense: ``"evaluate"`` and ``"query"`` allow
            tensors in replies to these messages, ``"metrics"`` allows metrics and configs of more
            than 4096 bytes.
    """
    unknown = sorted({*allow_undefended} - {*ALLOWABLE})
    if isinstance(allow_undefended, str) or unknown:
        raise BadValue(f"allow_undefended takes a tuple of {', '.join(map(repr, ALLOWABLE))}")
    chosen = DEFENSES.resolve(defense)
    return DefenseMod(chosen, seed, frozenset(allow_undefended))


@dataclass(frozen=True)
class DefenseMod:
    """What :func:`as_mod` returns: an object, not a closure, so that Flower can pickle it."""

    defense: Defense
    seed: int | None
    allowed: frozenset[str]

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        if is_training(message):
            reply = self.train(message, context, call_next)
        else:
            reply = call_next(message, context)
        refuse_undefended(message_kind(message), reply, self.allowed)
        return reply

    def train(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Returns the client's reply to a training message, with a defended update."""
        start = read_sent_weights(message)
        draw = make_generator(message, context, self.seed)
        memory = load_memory(context)
        side = ClientSide(draw, memory=copy.deepcopy(memory), weights=start)
        active = ActiveDefense(self.defense, side)
        token = ACTIVE_DEFENSE.set(active)
        try:
            reply = call_next(message, context)
        finally:
            ACTIVE_DEFENSE.reset(token)
        if not carries_update(start, reply):
            return reply
        assert start is not None
        check_doors(active)
        update = add_reported_training(read_checked_update(start, reply), active, start)
        sent = self.defense.on_update(update, side)
        if sent is not update:
            weights = apply_update(start, sent)
            check_finite(weights, "the defended weights have", "the server sent too large weights")
            replace_weights(reply, weights)
        claim_defense(reply, str(self.defense))
        save_memory(context, {k: v for k, v in side.memory.items() if memory.get(k) != v})
        return reply


def before_upload(check: Callable[[Update, Tensors, Context], str | None]) -> Mod:
    """Returns a client mod that checks every update before it leaves.

    Args:
        check: Is called with the update, the global weights and the node's context. If it returns
            a reason, the update is withheld.
    """
    return UploadCheck(check)


@dataclass(frozen=True)
class UploadCheck:
    """What :func:`before_upload` returns."""

    check: Callable[[Update, Tensors, Context], str | None]

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        start = read_sent_weights(message) if is_training(message) else None
        reply = call_next(message, context)
        if not is_training(message) or not carries_update(start, reply):
            return reply
        assert start is not None
        reason = self.check(read_update(start, reply), start, context)
        if reason is not None:
            raise DoesNotFit(f"the update is withheld: {reason}")
        return reply


def load_memory(context: Context) -> dict[str, Any]:
    """Returns what this node's defense remembers from earlier rounds."""
    record = context.state.config_records.get(MEMORY_RECORD)
    return {} if record is None else dict(json.loads(str(record["json"])))


def save_memory(context: Context, changed: dict[str, Any]) -> None:
    """Adds what this mod's defense changed to what inner mods have saved meanwhile."""
    memory = {**load_memory(context), **changed}
    context.state[MEMORY_RECORD] = ConfigRecord({"json": json.dumps(memory)})


def make_generator(message: Message, context: Context, seed: int | None) -> torch.Generator:
    """Returns the generator of a client's round; without a seed, one that nobody can repeat."""
    if seed is None:
        return make_unpredictable_generator()
    config = {k: v for r in message.content.config_records.values() for k, v in r.items()}
    partition = context.node_config.get("partition-id")
    if partition is None or "server-round" not in config:
        raise DoesNotFit(
            "a seeded mod needs the node's partition-id and the server's round: leave out the seed"
        )
    return client_generator(seed, int(partition), int(str(config["server-round"])))
