"""The clients of a captured round that can be attacked: where their updates lie, how they trained.

No tensors are held here: an update is read once to see whether it can be used, and again when it
is attacked, so that memory does not grow with clients or rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from keyhole.atomic import digest_of
from keyhole.auditing.captured_training import CapturedRecipe, believe_claims, recipe_of
from keyhole.auditing.plan import Stage
from keyhole.errors import BadUpdate, KeyholeError, RunFolderError
from keyhole.federation.capture import MAX_REPLY_RATIO, SPARE_BYTES, JsonObject, count_bytes
from keyhole.federation.capture_reader import CapturedRound, is_name, limit_lines
from keyhole.update import Update

Owners = Mapping[str, tuple[int, ...]]
"""Of each client the indices of its images."""
HEADER = 1 << 24
"""Bytes that names and shapes may take in a file of tensors."""


@dataclass(frozen=True, eq=False)
class CapturedClient:
    """One client of one round that can be attacked."""

    node: str
    seen: CapturedRound
    client: JsonObject
    model: nn.Module
    """Whose names, shapes and place the update has; weights do not matter."""
    recipe: CapturedRecipe
    reported: frozenset[str]
    """The parameters that it reports."""
    digest: str
    """Tells its update from any other."""
    truth: tuple[int, ...] | None
    """Indices of its images in the data set, where they are known."""

    def read(self) -> Update:
        """Its update, from the folder; raises where that is no longer what it was."""
        update = read_update(self.seen, self.client, self.model, self.recipe)
        if digest_of(update.change) != self.digest:
            raise RunFolderError(f"{self.seen.folder} has changed while it was audited")
        return update


def find_witnesses(
    seen: CapturedRound, stage: Stage, model: nn.Module, owners: Owners, notes: list[str]
) -> list[CapturedClient]:
    """The clients of a round that the user chose and whose updates can be used."""
    wanted = None if stage.nodes is None else [n.strip() for n in stage.nodes.split(",")]
    names = names_of(seen.clients)
    where = f"of round {seen.number}"
    if wanted is not None:
        absent = [node for node in wanted if node not in names]
        notes += [f"client {node} did not answer in round {seen.number}" for node in absent]
    found: list[CapturedClient] = []
    refused = [f"client {n} {where} is left out: {why}" for n, why in seen.left_out.items()]
    for client, name in zip(seen.clients, names, strict=True):
        if (wanted is None and len(found) < stage.victims) or (wanted and name in wanted):
            try:
                found.append(witness(seen, stage, model, client, name, owners))
            except KeyholeError as error:
                refused.append(f"client {name} {where} is left out: {error}")
    usual = usual_names(found)
    for each in (w for w in found if w.reported != usual):
        odd = sorted(usual - each.reported) or sorted(each.reported - usual)
        has = "lacks" if odd[0] in usual else "has"
        refused.append(
            f"client {each.node} {where} is left out: its update {has} {odd[0]!r}, unlike others"
        )
    alike = [each for each in found if each.reported == usual]
    notes += limit_lines(refused, f"clients {where} are left out")
    unscored = [
        f"client {each.node} {where} is not scored: the truth does not give its "
        f"{each.recipe.examples} image(s)"
        for each in alike
        if each.truth is None and owners
    ]
    notes += limit_lines(unscored, f"clients {where} are not scored")
    return alike


def usual_names(clients: Sequence[CapturedClient]) -> frozenset[str]:
    """The parameters that most clients report; of as many, the larger set."""
    counted = Counter(client.reported for client in clients)
    return max(counted, key=lambda names: (counted[names], len(names)), default=frozenset())


def names_of(clients: Sequence[JsonObject]) -> list[str]:
    """What the clients of a round go by.

    Flower's node ids are drawn anew in every run; a partition's number says more. It is the
    client's word, though: where several claim the same one, they go by their node ids.
    """
    claimed = [name_of(client) for client in clients]
    taken = Counter([*claimed, *(str(client["node"]) for client in clients)])
    return [
        name if name == client["node"] or taken[name] == 1 else str(client["node"])
        for name, client in zip(claimed, clients, strict=True)
    ]


def name_of(client: JsonObject) -> str:
    """A client's own word on which partition it is; its node id where it has none."""
    said = client.get("metrics", {}).get("partition-id")
    named = isinstance(said, int | float | str) and not isinstance(said, bool)
    return str(said) if named and is_name(str(said)) else str(client["node"])


def witness(
    seen: CapturedRound,
    stage: Stage,
    model: nn.Module,
    client: JsonObject,
    name: str,
    owners: Owners,
) -> CapturedClient:
    told = {**seen.config, **client.get("metrics", {})}
    if client.get("examples") is not None:
        told["num-examples"] = client["examples"]
    told, notes = believe_claims(told, client, stage, model)
    recipe = recipe_of(told, stage)
    recipe = replace(recipe, notes=(*recipe.notes, *notes))
    update = read_update(seen, client, model, recipe)
    if update.norm() == 0:
        raise BadUpdate("its update is all zeros and tells nothing")
    truth = owners.get(name, owners.get(str(client["node"])))
    known = truth is not None and len(truth) == recipe.examples
    return CapturedClient(
        node=name,
        seen=seen,
        client=client,
        model=model,
        recipe=recipe,
        reported=frozenset(update.change),
        digest=digest_of(update.change),
        truth=truth if known else None,
    )


def read_update(
    seen: CapturedRound, client: JsonObject, model: nn.Module, recipe: CapturedRecipe
) -> Update:
    """What a client changed in the model's parameters; raises where that cannot be used."""
    own = model.state_dict()
    change = give_names(seen.read_change(client, longest_file(own)), model)
    Update(change).check_against(own)
    refuse_complex(change)
    place = next(model.parameters())
    return Update(
        {n: change[n].to(place) for n, _ in model.named_parameters() if n in change},
        steps=recipe.steps,
        lr=recipe.lr,
        batch_size=recipe.batch_size,
        examples=recipe.examples,
    ).check()


def longest_file(weights: Mapping[str, Tensor]) -> int:
    """The bytes that a file of tensors for a model may have."""
    return MAX_REPLY_RATIO * count_bytes(weights) + SPARE_BYTES + HEADER


def refuse_complex(tensors: Mapping[str, Tensor]) -> None:
    odd = next((name for name, tensor in tensors.items() if tensor.is_complex()), None)
    if odd is not None:
        raise BadUpdate(f"{odd!r} holds complex numbers, the model real ones")


def give_names(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Tensors that came without names, as a list in the model's order, get the model's."""
    own = list(model.state_dict())
    if len(tensors) == len(own) and all(is_place(name) for name in tensors):
        return dict(zip(own, (tensors[k] for k in sorted(tensors, key=int)), strict=True))
    return tensors


def is_place(name: str) -> bool:
    return name.isdecimal() and len(name) < 10


def alike(clients: Sequence[CapturedClient]) -> list[list[CapturedClient]]:
    """Clients that can be attacked as one: the same recipe, all with or all without truth."""
    groups: dict[tuple[CapturedRecipe, bool], list[CapturedClient]] = {}
    for client in clients:
        groups.setdefault((client.recipe, client.truth is not None), []).append(client)
    return list(groups.values())
