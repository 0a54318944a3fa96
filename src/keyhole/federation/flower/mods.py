"""Client mods: a defense on every training message, a check of every update."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message

from keyhole.defenses.base import ClientSide, Defense, unpredictable
from keyhole.errors import DoesNotFit
from keyhole.federation.fedavg import client_generator
from keyhole.federation.flower.messages import (
    CallNext,
    Mod,
    Tensors,
    is_training,
    learnt_something,
    moved,
    put_weights,
    sent_weights,
    update_of,
)
from keyhole.federation.flower.shield import SHIELD, Shield, as_told, check_doors
from keyhole.update import Update

MEMORY = "keyhole-memory"
"""Where a node's state keeps what its defense remembers."""


def as_mod(defense: Defense, *, seed: int | None = None) -> Mod:
    """A client mod that applies ``defense`` to every training message.

    With a ``seed`` the draws are those of Keyhole's own loop for the node's ``partition-id`` and
    the server's round; without one nobody can repeat them. A client whose training function passes
    by a door of the defense sends nothing: an undefended update never leaves.
    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        if not is_training(message):
            return call_next(message, context)
        start = sent_weights(message)
        side = ClientSide(draws_of(message, context, seed), memory=recalled(context))
        shield = Shield(defense, side)
        token = SHIELD.set(shield)
        try:
            reply = call_next(message, context)
        finally:
            SHIELD.reset(token)
        if not learnt_something(start, reply):
            return reply
        assert start is not None
        check_doors(shield)
        update = as_told(update_of(start, reply), shield, start)
        sent = defense.on_update(update, side)
        if sent is not update:
            put_weights(reply, moved(start, sent))
        remember(context, side.memory)
        return reply

    return mod


def before_upload(check: Callable[[Update, Tensors, Context], str | None]) -> Mod:
    """A client mod that asks ``check`` about every update; a reason it returns holds it back.

    ``check`` gets the update, the global weights and the node's context.
    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        start = sent_weights(message) if is_training(message) else None
        reply = call_next(message, context)
        if not is_training(message) or not learnt_something(start, reply):
            return reply
        assert start is not None
        reason = check(update_of(start, reply), start, context)
        if reason is not None:
            raise DoesNotFit(f"the update is withheld: {reason}")
        return reply

    return mod


def recalled(context: Context) -> dict[str, Any]:
    """What this node's defense kept in earlier rounds."""
    kept = context.state.config_records.get(MEMORY)
    return {} if kept is None else dict(json.loads(str(kept["json"])))


def remember(context: Context, memory: dict[str, Any]) -> None:
    context.state[MEMORY] = ConfigRecord({"json": json.dumps(memory)})


def draws_of(message: Message, context: Context, seed: int | None) -> torch.Generator:
    if seed is None:
        return unpredictable()
    told = {k: v for r in message.content.config_records.values() for k, v in r.items()}
    partition = context.node_config.get("partition-id")
    if partition is None or "server-round" not in told:
        raise DoesNotFit(
            "a seeded mod needs the node's partition-id and the server's round: leave out the seed"
        )
    return client_generator(seed, int(partition), int(str(told["server-round"])))
