"""What two runs have in common: the same findings, and the same images in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.store import Store
from keyhole.auditing.tables import batches_of

T = TypeVar("T")

ENOUGH = 0.5
"""Share of the smaller run's images that must be in the other one as well to be paired."""
VOLATILE = ("indices", "fingerprint", "gallery", "device", "left_out", "clients_did")
"""Parts of a recipe that do not tell one setting of a plan from another."""


@dataclass(frozen=True)
class Places:
    """Where the images, or the clients, that two findings share stand in their metrics' values."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    images: tuple[int, ...]
    """Their indices in the data set; of clients, of the first image of each."""


def finding_key(finding: Finding) -> tuple[str, ...]:
    """What a finding is called in every run: model, data, defense, attack, attacker, server."""
    server = str(finding.knowledge.get("altered_model"))
    defense = label_defense(finding.defense)
    return finding.model, finding.data, defense, finding.attack, finding.attacker, server


def details(finding: Finding) -> str:
    """What tells findings of one key in one run from each other: parameters and recipe."""
    recipe = {k: v for k, v in finding.recipe.items() if k not in VOLATILE}
    return json.dumps([finding.attack_parameters, recipe], sort_keys=True, default=str)


def pair_findings(
    first: Sequence[Finding], second: Sequence[Finding]
) -> tuple[list[tuple[Finding, Finding]], list[Finding], list[Finding]]:
    """The findings of both runs, in the first one's order; then those of one run alone.

    Where a run has several of one key, as of an attack with several numbers of iterations, those
    with the same parameters and recipe are paired, and then what is left if it is one in each run.
    """
    pairs: list[tuple[Finding, Finding]] = []
    others = group_by(second, finding_key)
    for key, mine in group_by(first, finding_key).items():
        theirs = others.get(key, [])
        alike = [(a, b) for a in mine for b in theirs if details(a) == details(b)]
        same = list({id(a): (a, b) for a, b in reversed(alike)}.values())
        used = {id(each) for pair in same for each in pair}
        left = [[f for f in group if id(f) not in used] for group in (mine, theirs)]
        pairs += same
        if [len(group) for group in left] == [1, 1]:
            pairs.append((left[0][0], left[1][0]))
    paired = {id(each) for pair in pairs for each in pair}
    order = {id(finding): place for place, finding in enumerate(first)}
    pairs.sort(key=lambda pair: order[id(pair[0])])
    alone = [[f for f in run if id(f) not in paired] for run in (first, second)]
    return pairs, alone[0], alone[1]


def group_by(things: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The things by what ``key`` says of each, in their order."""
    groups: dict[Any, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def pair_images(
    first: Finding, second: Finding, stores: tuple[Store | None, Store | None] = (None, None)
) -> tuple[Places | None, str]:
    """The images that both findings attack; None and the reason where they cannot be paired.

    Images are the same if the data set, its image size and their indices are, and where run folders
    keep pictures of them, these as well.
    """
    mine, theirs = batches_of(first), batches_of(second)
    if mine is None or theirs is None:
        return None, "a run does not say which images were attacked"
    if list(first.recipe["image_size"]) != list(second.recipe["image_size"]):
        return None, "the images have other sizes"
    images = [[index for batch in batches for index in batch] for batches in (mine, theirs)]
    places, fewer = shared_places(*images), min(len(each) for each in images)
    if len(places.images) < ENOUGH * fewer or not places.images:
        common = len(places.images)
        seeds = first.recipe["seed"], second.recipe["seed"]
        why = f" (seeds {seeds[0]} and {seeds[1]})" if seeds[0] != seeds[1] else ""
        return None, f"the runs attack other images{why}: {common} of {fewer} are in both"
    if not same_pictures(originals(first, stores[0]), originals(second, stores[1])):
        return None, "images of the same index differ: the data set has changed"
    return places, ""


def pair_clients(first: Finding, second: Finding) -> Places:
    """The clients whose batches are the same, for what is measured once per client."""
    batches = [[tuple(batch) for batch in batches_of(f) or ()] for f in (first, second)]
    places = shared_places(*batches)
    return Places(places.first, places.second, tuple(batches[0][i][0] for i in places.first))


def shared_places(first: Sequence[T], second: Sequence[T]) -> Places:
    """Where each thing that both lists hold stands in each; of one that recurs, the first time."""
    mine = {thing: place for place, thing in reversed(list(enumerate(first)))}
    theirs = {thing: place for place, thing in reversed(list(enumerate(second)))}
    shared = [thing for thing in dict.fromkeys(first) if thing in theirs]
    images = tuple(thing for thing in shared if isinstance(thing, int))
    return Places(tuple(mine[t] for t in shared), tuple(theirs[t] for t in shared), images)


def originals(finding: Finding, store: Store | None) -> dict[int, torch.Tensor]:
    """The kept originals, uint8 ``[C, H, W]``, by their indices in the data set."""
    return pictures_by_image(finding, store, "truth")


def pictures_by_image(finding: Finding, store: Store | None, kind: str) -> dict[int, torch.Tensor]:
    """The kept pictures of a finding, ``truth`` or ``seen``, by their indices in the data set."""
    batches = batches_of(finding)
    if store is None or batches is None:
        return {}
    kept = store.pictures(finding.key).get(kind, ())
    return {batch[0]: picture for batch, picture in zip(batches, kept, strict=False)}


def same_pictures(first: dict[int, torch.Tensor], second: dict[int, torch.Tensor]) -> bool:
    """Whether the pictures that both have are the same."""
    return all(torch.equal(first[i], second[i]) for i in first.keys() & second.keys())
