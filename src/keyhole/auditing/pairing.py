"""Pairs two runs: the findings that both have, and the images that both attack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.pictures import victims_of
from keyhole.auditing.store import Store
from keyhole.auditing.tables import batches_of

T = TypeVar("T")

MIN_SHARED = 0.5
"""The share of the smaller run's images that the other run must have for images to be paired."""
VOLATILE = ("indices", "fingerprint", "gallery", "device", "left_out", "clients_did")
"""Parts of a recipe that do not distinguish the settings of a plan."""


@dataclass(frozen=True)
class Positions:
    """The positions, in two findings' metrics, of the images or clients that both have."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    images: tuple[int, ...]
    """Indices in the data set; for clients, of the first image of each."""


def finding_key(finding: Finding) -> tuple[str, ...]:
    """What identifies a finding in every run: model, data, defense, attack, attacker, server."""
    server = str(finding.knowledge.get("altered_model"))
    defense = label_defense(finding.defense)
    return finding.model, finding.data, defense, finding.attack, finding.attacker, server


def spell_parameters(finding: Finding) -> str:
    """What distinguishes findings with the same key in one run: parameters and recipe."""
    recipe = {k: v for k, v in finding.recipe.items() if k not in VOLATILE}
    return json.dumps([finding.attack_parameters, recipe], sort_keys=True, default=str)


def pair_findings(
    first: Sequence[Finding], second: Sequence[Finding]
) -> tuple[list[tuple[Finding, Finding]], list[Finding], list[Finding]]:
    """The findings of both runs, in the order of the first; then those of one run alone.

    If a run has several findings with one key, such as an attack with several numbers of
    iterations, those with the same parameters and recipe are paired; if one is left in each run,
    these two are paired as well.
    """
    pairs: list[tuple[Finding, Finding]] = []
    others = group_by(second, finding_key)
    for key, mine in group_by(first, finding_key).items():
        theirs = others.get(key, [])
        alike = [(a, b) for a in mine for b in theirs if spell_parameters(a) == spell_parameters(b)]
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
    """Groups things by their keys, in their order."""
    groups: dict[Any, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def pair_images(
    first: Finding, second: Finding, stores: tuple[Store | None, Store | None]
) -> tuple[Positions | None, str]:
    """The images that both findings attack; None and the reason if they cannot be paired.

    Images are the same if data set, image size and indices are the same, and if the pictures in
    the run folders, where there are any, are equal.
    """
    mine, theirs = batches_of(first), batches_of(second)
    if mine is None or theirs is None:
        return None, "a run does not say which images were attacked"
    if list(first.recipe["image_size"]) != list(second.recipe["image_size"]):
        return None, "the images have other sizes"
    images = [[index for batch in batches for index in batch] for batches in (mine, theirs)]
    shared, fewer = find_shared(*images), min(len(each) for each in images)
    common = len(shared.images)
    if common < MIN_SHARED * fewer or not common:
        seeds = first.recipe["seed"], second.recipe["seed"]
        why = f" (seeds {seeds[0]} and {seeds[1]})" if seeds[0] != seeds[1] else ""
        return None, f"the runs attack other images{why}: {common} of {fewer} are in both"
    originals = [
        pictures_by_image(f, s, "truth") for f, s in zip((first, second), stores, strict=True)
    ]
    if not have_same_pictures(*originals):
        return None, "images of the same index differ: the data set has changed"
    return shared, ""


def pair_clients(first: Finding, second: Finding) -> Positions:
    """The clients whose batches are the same, for what is measured once per client."""
    batches = [[tuple(batch) for batch in batches_of(f) or ()] for f in (first, second)]
    shared = find_shared(*batches)
    return Positions(shared.first, shared.second, tuple(batches[0][i][0] for i in shared.first))


def find_shared(first: Sequence[T], second: Sequence[T]) -> Positions:
    """The first positions, in each list, of the things that both lists hold."""
    mine = {thing: place for place, thing in reversed(list(enumerate(first)))}
    theirs = {thing: place for place, thing in reversed(list(enumerate(second)))}
    shared = [thing for thing in dict.fromkeys(first) if thing in theirs]
    images = tuple(thing for thing in shared if isinstance(thing, int))
    return Positions(tuple(mine[t] for t in shared), tuple(theirs[t] for t in shared), images)


def pictures_by_image(finding: Finding, store: Store | None, kind: str) -> dict[int, torch.Tensor]:
    """The stored pictures, ``truth`` or ``seen``, uint8 ``[C, H, W]``, by index in the data set."""
    batches = batches_of(finding)
    if store is None or batches is None:
        return {}
    pictures = store.pictures(finding.key)
    return {
        batches[victim][0]: picture
        for victim, picture in zip(victims_of(pictures), pictures.get(kind, ()), strict=False)
        if victim < len(batches)
    }


def have_same_pictures(first: dict[int, torch.Tensor], second: dict[int, torch.Tensor]) -> bool:
    """Whether the pictures that both have are equal."""
    return all(torch.equal(first[i], second[i]) for i in first.keys() & second.keys())
