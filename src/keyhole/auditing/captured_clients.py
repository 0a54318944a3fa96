"""The clients of a captured round that can be attacked: where their updates are, how they trained.

No tensors are kept here: an update is read once to see whether it can be used, and again when it
is attacked, so that memory does not grow with clients or rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from keyhole.atomic import digest_of
from keyhole.auditing.captured_training import CapturedTraining, infer_sum_training
from keyhole.auditing.claimed_defenses import add_claim
from keyhole.auditing.plan import Stage
from keyhole.errors import BadUpdate, KeyholeError, RunFolderError
from keyhole.federation.capture import (
    MAX_REPLY_RATIO,
    SPARE_BYTES,
    JsonObject,
    count_bytes,
    is_integer,
)
from keyhole.federation.capture_reader import CapturedRound, is_name, limit_lines
from keyhole.models.modes import RUNNING_STATISTICS
from keyhole.update import Update

Owners = Mapping[str, tuple[int, ...]]
"""The indices of each client's images."""
MAX_CLIENTS = 1_000_000
"""Clients of one secure sum that are believed."""
MAX_HEADER = 1 << 24
"""Bytes that names and shapes may take in a file of tensors."""


@dataclass(frozen=True, eq=False)
class CapturedClient:
    """One client of one round that can be attacked."""

    name: str
    captured_round: CapturedRound
    record: JsonObject
    """What the round's manifest says about the client."""
    model: nn.Module
    """Gives names, shapes and device of the update; its weights do not matter."""
    training: CapturedTraining
    parameters: frozenset[str]
    """The parameters that the update holds."""
    buffers: frozenset[str]
    """The running statistics of batch norms that the update holds."""
    digest: str
    """Tells the update from any other."""
    truth: tuple[int, ...] | None
    """Indices of its images in the data set, if they are known."""

    def read(self) -> Update:
        """Reads the update from the folder; raises if it has changed since."""
        update = read_update(self.captured_round, self.record, self.model, self.training)
        if digest_of(update.change) != self.digest:
            raise RunFolderError(f"{self.captured_round.folder} has changed while it was audited")
        return update


def find_clients(
    captured_round: CapturedRound, stage: Stage, model: nn.Module, owners: Owners, notes: list[str]
) -> list[CapturedClient]:
    """The clients of a round that the user chose and whose updates can be used."""
    where = f"of round {captured_round.number}"
    names = name_clients(captured_round.clients)
    wanted = None if stage.nodes is None else [n.strip() for n in stage.nodes.split(",")]
    absent = [name for name in wanted or () if name not in names]
    notes += [f"client {name} did not answer in round {captured_round.number}" for name in absent]
    refused = list(captured_round.left_out.items())
    found: list[CapturedClient] = []
    for record, name in zip(captured_round.clients, names, strict=True):
        if (wanted is None and len(found) < stage.victims) or (wanted and name in wanted):
            try:
                found.append(read_client(captured_round, stage, model, record, name, owners))
            except KeyholeError as error:
                refused.append((name, str(error)))
    usual = find_usual_parameters(found)
    for client in (each for each in found if each.parameters != usual):
        odd = sorted(usual - client.parameters) or sorted(client.parameters - usual)
        has = "lacks" if odd[0] in usual else "has"
        refused.append((client.name, f"its update {has} {odd[0]!r}, unlike others"))
    lines = [f"client {name} {where} is left out: {why}" for name, why in refused]
    notes += limit_lines(lines, f"clients {where} are left out")
    usable = [client for client in found if client.parameters == usual]
    unscored = [
        f"client {client.name} {where} is not scored: the truth does not give its "
        f"{client.training.examples} image(s)"
        for client in usable
        if client.truth is None and owners
    ]
    notes += limit_lines(unscored, f"clients {where} are not scored")
    return usable


def find_usual_parameters(clients: Sequence[CapturedClient]) -> frozenset[str]:
    """The parameters that most clients report; on a tie, the larger set."""
    counted = Counter(client.parameters for client in clients)
    return max(counted, key=lambda names: (counted[names], len(names)), default=frozenset())


def name_clients(records: Sequence[JsonObject]) -> list[str]:
    """The names of a round's clients.

    Flower draws new node ids in every run; a partition's number says more. But it is only the
    client's claim: clients that claim the same number go by their node ids.
    """
    claimed = [read_claimed_name(record) for record in records]
    taken = Counter([*claimed, *(str(record["node"]) for record in records)])
    return [
        name if name == record["node"] or taken[name] == 1 else str(record["node"])
        for name, record in zip(claimed, records, strict=True)
    ]


def read_claimed_name(record: JsonObject) -> str:
    """The partition that a client claims to be; its node id if it claims none."""
    claim = record.get("metrics", {}).get("partition-id")
    named = isinstance(claim, int | float | str) and not isinstance(claim, bool)
    return str(claim) if named and is_name(str(claim)) else str(record["node"])


def read_client(
    captured_round: CapturedRound,
    stage: Stage,
    model: nn.Module,
    record: JsonObject,
    name: str,
    owners: Owners,
) -> CapturedClient:
    """Reads one client; raises if its update or its claims cannot be used."""
    messages = {**captured_round.config, **record.get("metrics", {})}
    if record.get("examples") is not None:
        messages["num-examples"] = record["examples"]
    messages, notes = add_claim(messages, record, stage, model)
    training = infer_sum_training(messages, stage, count_clients(record))
    training = replace(training, notes=(*training.notes, *notes))
    update = read_update(captured_round, record, model, training)
    if update.norm() == 0:
        raise BadUpdate("its update is all zeros and tells nothing")
    truth = find_truth(record, name, owners)
    known = truth is not None and len(truth) == training.examples
    held = frozenset(update.change)
    parameters = held.intersection(n for n, _ in model.named_parameters())
    return CapturedClient(
        name=name,
        captured_round=captured_round,
        record=record,
        model=model,
        training=training,
        parameters=parameters,
        buffers=held - parameters,
        digest=digest_of(update.change),
        truth=truth if known else None,
    )


def count_clients(record: JsonObject) -> int:
    """How many clients an update is the mean of, as the server wrote down."""
    clients: Any = record.get("clients")
    return int(clients) if is_integer(clients) and 1 < clients <= MAX_CLIENTS else 1


def find_truth(record: JsonObject, name: str, owners: Owners) -> tuple[int, ...] | None:
    """The images of a client; those of a secure sum in the order of its members, if all are known.

    >>> find_truth({"node": "aggregate", "members": "1,0"}, "aggregate", {"0": (5,), "1": (7,)})
    (7, 5)
    """
    members = str(record.get("members") or "").split(",")
    if "members" in record and all(member in owners for member in members):
        return tuple(index for member in members for index in owners[member])
    return owners.get(name, owners.get(str(record["node"])))


def read_update(
    captured_round: CapturedRound, record: JsonObject, model: nn.Module, training: CapturedTraining
) -> Update:
    """What a client changed in parameters and running statistics; raises if it cannot be used."""
    own = model.state_dict()
    change = give_names(captured_round.read_change(record, compute_max_bytes(own)), model)
    Update(change).check_against(own)
    refuse_complex(change)
    like = next(model.parameters())
    kept = [name for name, _ in model.named_parameters()]
    kept += [name for name in own if name.rpartition(".")[2] in RUNNING_STATISTICS]
    return Update(
        {name: change[name].to(like) for name in kept if name in change},
        steps=training.steps,
        lr=training.lr,
        batch_size=training.batch_size,
        examples=training.examples,
    ).check()


def compute_max_bytes(weights: Mapping[str, Tensor]) -> int:
    """The largest size of a file of tensors for a model with these weights."""
    return MAX_REPLY_RATIO * count_bytes(weights) + SPARE_BYTES + MAX_HEADER


def refuse_complex(tensors: Mapping[str, Tensor]) -> None:
    odd = next((name for name, tensor in tensors.items() if tensor.is_complex()), None)
    if odd is not None:
        raise BadUpdate(f"{odd!r} holds complex numbers, the model real ones")


def give_names(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Gives the model's names to tensors that came as a list in the model's order."""
    own = list(model.state_dict())
    if len(tensors) == len(own) and all(is_index(name) for name in tensors):
        return dict(zip(own, (tensors[k] for k in sorted(tensors, key=int)), strict=True))
    return tensors


def is_index(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def group_clients(clients: Sequence[CapturedClient]) -> list[list[CapturedClient]]:
    """Clients that can be attacked together: the same training, all with or all without truth."""
    groups: dict[tuple[CapturedTraining, bool], list[CapturedClient]] = {}
    for client in clients:
        groups.setdefault((client.training, client.truth is not None), []).append(client)
    return list(groups.values())
