"""Client mods: a defense on every training message, a check of every update."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType

from keyhole.defenses import DEFENSES
from keyhole.defenses.base import ClientSide, Defense, unpredictable
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation.fedavg import client_generator
from keyhole.federation.flower.messages import (
    CallNext,
    Mod,
    Tensors,
    check_undefended,
    claim_defense,
    defensible_update,
    is_training,
    kind_of_message,
    learnt_something,
    moved,
    put_weights,
    sent_weights,
    update_of,
)
from keyhole.federation.flower.shield import SHIELD, Shield, as_told, check_doors
from keyhole.update import Update, check_finite

MEMORY = "keyhole-memory"
"""Where a node's state keeps what its defense remembers."""


ALLOWED = (MessageType.EVALUATE, MessageType.QUERY, "metrics")
"""What a user may let leave without a defense."""


def as_mod(
    defense: Defense | str, *, seed: int | None = None, allow_undefended: Collection[str] = ()
) -> Mod:
    """A client mod that applies ``defense`` to every training message.

    A defense may also be spelled, ``as_mod("gaussian(sigma=0.001)")``. The reply tells the server
    what it is, in a ConfigRecord ``keyhole``: an audit believes it, as a claim.

    With a ``seed`` the draws are those of Keyhole's own loop for the node's ``partition-id`` and
    the server's round; without one nobody can repeat them. A client whose training function passes
    by a door of the defense sends nothing: an undefended update never leaves. Nor do tensors in
    replies to other messages, unless ``allow_undefended`` names these (``"evaluate"``,
    ``"query"``), nor metrics and configs of more than 4096 bytes without ``"metrics"`` in it.
    """
    unknown = sorted({*allow_undefended} - {*ALLOWED})
    if isinstance(allow_undefended, str) or unknown:
        raise BadValue(f"allow_undefended takes a tuple of {', '.join(map(repr, ALLOWED))}")
    known = DEFENSES.parse(defense) if isinstance(defense, str) else defense
    return DefenseMod(known, seed, frozenset(allow_undefended))


@dataclass(frozen=True)
class DefenseMod:
    """What :func:`as_mod` makes: an object of a class, which Flower's simulation can pickle."""

    defense: Defense
    seed: int | None
    allowed: frozenset[str]

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        if is_training(message):
            reply = self.train(message, context, call_next)
        else:
            reply = call_next(message, context)
        check_undefended(kind_of_message(message), reply, self.allowed)
        return reply

    def train(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """The client's reply to a training message, with its update defended."""
        start = sent_weights(message)
        draws = draws_of(message, context, self.seed)
        before = recalled(context)
        side = ClientSide(draws, memory=copy.deepcopy(before), weights=start)
        shield = Shield(self.defense, side)
        token = SHIELD.set(shield)
        try:
            reply = call_next(message, context)
        finally:
            SHIELD.reset(token)
        if not learnt_something(start, reply):
            return reply
        assert start is not None
        check_doors(shield)
        update = as_told(defensible_update(start, reply), shield, start)
        sent = self.defense.on_update(update, side)
        if sent is not update:
            weights = moved(start, sent)
            check_finite(weights, "the defended weights have", "the server sent too large weights")
            put_weights(reply, weights)
        claim_defense(reply, str(self.defense))
        remember(context, {k: v for k, v in side.memory.items() if before.get(k) != v})
        return reply


def before_upload(check: Callable[[Update, Tensors, Context], str | None]) -> Mod:
    """A client mod that asks ``check`` about every update; a reason it returns holds it back.

    ``check`` gets the update, the global weights and the node's context.
    """
    return UploadCheck(check)


@dataclass(frozen=True)
class UploadCheck:
    """What :func:`before_upload` makes."""

    check: Callable[[Update, Tensors, Context], str | None]

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        start = sent_weights(message) if is_training(message) else None
        reply = call_next(message, context)
        if not is_training(message) or not learnt_something(start, reply):
            return reply
        assert start is not None
        reason = self.check(update_of(start, reply), start, context)
        if reason is not None:
            raise DoesNotFit(f"the update is withheld: {reason}")
        return reply


def recalled(context: Context) -> dict[str, Any]:
    """What this node's defense kept in earlier rounds."""
    kept = context.state.config_records.get(MEMORY)
    return {} if kept is None else dict(json.loads(str(kept["json"])))


def remember(context: Context, news: dict[str, Any]) -> None:
    """Keeps what this mod's defense noted, beside what those of inner mods did meanwhile."""
    context.state[MEMORY] = ConfigRecord({"json": json.dumps({**recalled(context), **news})})


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
