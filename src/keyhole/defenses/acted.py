"""Whether a defense acted as it declares, read off one client's update."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

from keyhole.defenses.base import Defense, uses_door
from keyhole.defenses.traces import Sighting, TraceCheck
from keyhole.update import Update

DOORS = ("on_images", "on_model", "on_step", "on_update")


class Acted(StrEnum):
    """What became of a defense, from the worst to the best."""

    IDLE = "idle"
    """the update is what it would have been without the defense"""
    WEAK = "weak"
    """the update does not show what the defense declares"""
    UNKNOWN = "unknown"
    """this update cannot tell, or the defense declares nothing that could be checked"""
    ACTED = "acted"
    """the update shows all that the defense declares"""


@dataclass(frozen=True)
class DefenseCheck:
    """Whether the defense of one client acted.

    Args:
        status: One of :class:`Acted`.
        words: What was found, in words.
        checks: What was found of every trace.
    """

    status: Acted
    words: str
    checks: tuple[TraceCheck, ...] = ()


def check_defense(
    defense: Defense,
    update: Update,
    model: nn.Module,
    *,
    reference: Update | None = None,
    exact: bool = True,
    training_known: bool = True,
) -> DefenseCheck | None:
    """Whether ``defense`` acted as it declares; None for one that has no door at all.

    Args:
        defense: The defense that the client is said to have.
        update: The update that the server got.
        model: The global model that the update is a change of.
        reference: The same client's update without the defense, as a simulation can compute it.
        exact: Whether the values are those that the defense returned; False: they were found as
            differences of weights.
        training_known: Whether ``update`` tells the client's steps, rate and batch as they were.

    >>> from keyhole.defenses import Pruning
    >>> sent = Update({"weight": torch.tensor([[0.1, -3.0, 0.2, 2.0]])})
    >>> check_defense(Pruning(ratio=0.5), sent, nn.Linear(4, 1)).words
    '0.0% zeros, 50.0% declared'
    """
    if not any(uses_door(defense, door) for door in DOORS):
        return None
    seen = Sighting(update, model, reference, exact, training_known)
    declared = defense.expected_traces(update, model)
    traces = [trace for trace in declared if training_known or not trace.of_training]
    checks = tuple(trace.check(seen) for trace in traces)
    same = reference is not None and are_equal(update, reference)
    failed = [check.words for check in checks if check.passed is False]
    if failed and same:
        return DefenseCheck(Acted.IDLE, f"{UNTOUCHED}: {'; '.join(failed)}", checks)
    if failed:
        return DefenseCheck(Acted.WEAK, "; ".join(failed), checks)
    if same and not checks:
        return DefenseCheck(Acted.IDLE, UNTOUCHED)
    if len(traces) < len(declared):
        return DefenseCheck(Acted.UNKNOWN, "how the client trained is not known exactly", checks)
    words = "; ".join(check.words for check in checks)
    if any(check.passed is None for check in checks):
        return DefenseCheck(Acted.UNKNOWN, words, checks)
    if not checks and reference is None:
        return DefenseCheck(Acted.UNKNOWN, "it declares nothing that an update could show")
    return DefenseCheck(Acted.ACTED, words or "the update differs from the one without it", checks)


UNTOUCHED = "the update is bit for bit what it would be without the defense"


def are_equal(one: Update, other: Update) -> bool:
    """Whether two updates have the same tensors, bit for bit."""
    if set(one.change) != set(other.change):
        return False
    return all(torch.equal(one.change[name], tensor) for name, tensor in other.change.items())
