"""Whether the clients' defense acted as it declares: what a finding says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from keyhole.auditing.trained_clients import TrainedClients
from keyhole.data import ImageSet
from keyhole.defenses import Acted, Defense, DefenseCheck, NoDefense, check_defense
from keyhole.defenses.acted import DOORS
from keyhole.defenses.base import uses_door
from keyhole.defenses.traces import TraceCheck
from keyhole.federation import LocalTraining, train_client
from keyhole.seeds import generator
from keyhole.update import Update

ORDER = tuple(Acted)
"""From the worst to the best."""
FAILED = (Acted.IDLE, Acted.WEAK)


@dataclass(frozen=True)
class DefenseActed:
    """Whether a defense acted as it declares in every client of a setting.

    Args:
        status: That of the worst client: ``idle``, ``weak``, ``unknown`` or ``acted``.
        words: What was found, in a sentence.
        clients: What was found of each client, in the victims' order.
    """

    status: Acted
    words: str
    clients: tuple[DefenseCheck, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether some client's defense did nothing, or less than it declares."""
        return self.status in FAILED


def summarise_checks(clients: Sequence[DefenseCheck]) -> DefenseActed | None:
    """What all clients together show; None if nothing was checked."""
    if not clients:
        return None
    worst = min((client.status for client in clients), key=ORDER.index)
    those = [client for client in clients if client.status is worst]
    where = "" if len(clients) == 1 else f" in {len(those)} of {len(clients)} clients"
    return DefenseActed(worst, f"{HEADS[worst]}{where}: {those[0].words}", tuple(clients))


HEADS = {
    Acted.IDLE: "the defense did nothing",
    Acted.WEAK: "the defense did less than it declares",
    Acted.UNKNOWN: "nobody can tell whether the defense acted",
    Acted.ACTED: "the defense acted as it declares",
}


def choose_worst(found: Sequence[DefenseActed | None]) -> DefenseActed | None:
    """The worst of several settings with the same defense."""
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: ORDER.index(each.status), default=None)


def check_simulated(
    defense: Defense,
    update: Update,
    model: nn.Module,
    *,
    data: ImageSet,
    indices: Sequence[int],
    training: LocalTraining,
    seed: int,
    path: Sequence[str | int],
    trained: TrainedClients | None = None,
) -> DefenseCheck | None:
    """Checks one simulated client, who trains again without the defense to compare with.

    Args:
        defense: The defense.
        update: What the client sent.
        model: The global model.
        data: The images of all clients.
        indices: Those of this client.
        training: How it trains.
        seed: The seed of the audit.
        path: The name of the client's generator, so that all its other draws are the same.
        trained: Clients of this model who trained already.
    """
    if not any(uses_door(defense, door) for door in DOORS):
        return None
    without = NoDefense()
    like = next(model.parameters())
    reference, _ = train_client(
        model,
        data.images(indices).to(like),
        data.labels[list(indices)].to(like.device),
        data=data,
        defense=without,
        generator=generator(seed, *path),
        training=training,
        train_locally=None if trained is None else trained.choose(model, indices, without),
    )
    return check_defense(defense, update, model, reference=reference)


def checks_to_json(clients: Sequence[DefenseCheck]) -> list[dict[str, object]]:
    """The checks as JSON holds them."""
    return [
        {
            "status": client.status.value,
            "words": client.words,
            "checks": [dict(check.__dict__) for check in client.checks],
        }
        for client in clients
    ]


def checks_from_json(values: Sequence[dict[str, object]]) -> list[DefenseCheck]:
    """What :func:`checks_to_json` gave."""
    found = []
    for each in values:
        checks = tuple(TraceCheck(**check) for check in each["checks"])  # type: ignore[attr-defined]
        found.append(DefenseCheck(Acted(str(each["status"])), str(each["words"]), checks))
    return found
