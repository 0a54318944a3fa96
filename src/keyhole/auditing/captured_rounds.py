"""Earlier rounds of a captured client, which attacks combine with the one that is attacked."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.auditing.captured_clients import (
    CapturedClient,
    compute_max_bytes,
    give_names,
    name_clients,
    read_client,
    refuse_complex,
)
from keyhole.auditing.plan import Stage
from keyhole.errors import KeyholeError
from keyhole.federation.capture_reader import CapturedRound
from keyhole.threat import SeenRound
from keyhole.update import check_weights

WITH_WEIGHTS = 3
"""The last rounds before the one attacked come with the global weights, earlier ones without."""


def choose_earlier(
    rounds: Sequence[CapturedRound], number: int, clients: Sequence[CapturedClient]
) -> tuple[CapturedRound, ...]:
    """The rounds before one that its clients may have answered on the same images.

    None where nobody knows which images a step took, and for secure sums, whose members change.

    Args:
        rounds: All captured rounds.
        number: The round that is attacked.
        clients: Its clients, who trained alike.
    """
    training = clients[0].training
    if training.clients > 1 or training.orders > 1:
        return ()
    return tuple(sorted((r for r in rounds if r.number < number), key=lambda r: r.number))


def read_earlier_rounds(
    client: CapturedClient, earlier: Sequence[CapturedRound], stage: Stage, most: int = WITH_WEIGHTS
) -> tuple[SeenRound, ...]:
    """What the server saw of a client in the last rounds that can be combined, in their order.

    A round that the client did not answer, or answered after another training, or whose files
    cannot be used, is passed over.

    Args:
        client: The client.
        earlier: The rounds before the one that is attacked.
        stage: What the user said about the training.
        most: Rounds that are read at most.
    """
    found: list[SeenRound] = []
    for captured_round in reversed(earlier):
        if len(found) == most:
            break
        try:
            seen = read_earlier_round(
                client, captured_round, stage, weights=len(found) < WITH_WEIGHTS
            )
        except KeyholeError:
            continue
        found += [] if seen is None else [seen]
    return tuple(reversed(found))


def read_earlier_round(
    client: CapturedClient, captured_round: CapturedRound, stage: Stage, *, weights: bool = True
) -> SeenRound | None:
    """One earlier round of a client; None if it trained otherwise, or did not answer."""
    names = name_clients(captured_round.clients)
    if client.name not in names:
        return None
    record = captured_round.clients[names.index(client.name)]
    before = read_client(captured_round, stage, client.model, record, client.name, {})
    if before.training != client.training or before.parameters != client.parameters:
        return None
    if not weights:
        return SeenRound(captured_round.number, {}, before.read())
    own = client.model.state_dict()
    found = give_names(captured_round.read_weights(compute_max_bytes(own)), client.model)
    refuse_complex(found)
    like = {name: tensor for name, tensor in own.items() if name in found}
    if any(found[name].shape != tensor.shape for name, tensor in like.items()):
        return None
    sent = {name: found[name].to(tensor) for name, tensor in like.items()}
    check_weights(sent)
    return SeenRound(captured_round.number, sent, before.read())
