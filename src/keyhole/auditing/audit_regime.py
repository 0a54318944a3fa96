"""The regime of an audit: what its findings say of network, weights, batch, local steps, server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keyhole.auditing.finding import Finding

STEP, STEPS, EPOCH = "step", "steps", "epoch"
"""One local step; several on the same images; a pass, or several, in smaller batches."""
FRESH, TRAINED, ANY = "fresh", "trained", "any"
"""Random weights; weights that somebody trained; captured ones, of which nobody knows."""
DID = re.compile(
    r"^(?P<steps>\d+) steps? of (?P<optimiser>.*) "
    r"\((?:[\d.]+ epochs? in )?batches of (?P<batch>\d+)\)$"
)
"""What clients did, in the words of ``captured_training.describe_training``."""
PLAIN = "sgd"


@dataclass(frozen=True)
class LocalWork:
    """What a client did before it sent its update.

    Args:
        steps: Its steps.
        batch: Images of one step.
        optimiser: How it turned gradients into steps, without the learning rate.
    """

    steps: int
    batch: int
    optimiser: str = PLAIN


@dataclass(frozen=True)
class AuditRegime:
    """The regime of one setting with one kind of server.

    Args:
        model: The model's name.
        norm: The mode in which clients run batch norms, if the model has any.
        weights: ``fresh``, ``trained`` or ``any``.
        batch: Images of a local step.
        local: ``step``, ``steps`` or ``epoch``.
        server: ``honest`` or ``malicious``.
        usual: Whether the server sees single clients' updates, each once. Secure sums and repeated
            updates were never mapped.
    """

    model: str
    norm: str
    weights: str
    batch: int
    local: str
    server: str
    usual: bool = True

    def has_weights(self, mapped: str) -> bool:
        """Whether a regime of the map with these weights may be this one.

        Args:
            mapped: The weights as the map names them.
        """
        if self.weights == ANY:
            return True
        return (mapped == FRESH) == (self.weights == FRESH)

    @property
    def words(self) -> str:
        """The regime in a few words, for a report."""
        images = "1 image" if self.batch == 1 else f"{self.batch} images"
        weights = {FRESH: "fresh weights", TRAINED: "trained weights", ANY: "captured weights"}
        done = {STEP: "1 step", STEPS: "several steps on the same images", EPOCH: "an epoch"}
        return f"{weights[self.weights]}, {images} in a step, {done[self.local]}"


def read_audit_regime(finding: Finding) -> AuditRegime | None:
    """The regime that a finding's recipe describes; None where it leaves something out.

    Args:
        finding: Any finding of the setting.
    """
    recipe = finding.recipe
    if not {"batch_size", "steps", "weights"} <= set(recipe):
        return None
    batch, local = read_local_training(recipe)
    return AuditRegime(
        model=finding.model,
        norm=str(recipe.get("client_mode") or "train"),
        weights=read_weights(recipe),
        batch=batch,
        local=local,
        server="honest" if finding.honest else "malicious",
        usual=int(recipe.get("aggregate", 1)) == 1 and int(recipe.get("repeats", 1)) == 1,
    )


def read_weights(recipe: Mapping[str, Any]) -> str:
    """What is known of the weights: the first captured round may have begun with trained ones.

    >>> read_weights({"weights": None}), read_weights({"weights": "w.safetensors"})
    ('fresh', 'trained')
    >>> read_weights({"weights": None, "captured": "cap", "checkpoint_epoch": 0})
    'any'
    """
    if recipe.get("weights") or recipe.get("checkpoint_epoch") or recipe.get("warm_up"):
        return TRAINED
    return ANY if recipe.get("captured") else FRESH


def read_local_training(recipe: Mapping[str, Any]) -> tuple[int, str]:
    """Images of a local step, and the kind of local training.

    >>> read_local_training({"batch_size": 8, "steps": 1})
    (8, 'step')
    >>> did = "4 steps of sgd, lr 0.01 (1 epoch in batches of 2)"
    >>> read_local_training({"batch_size": 8, "steps": 1, "clients_did": did})
    (2, 'epoch')
    """
    images, work = int(recipe["batch_size"]), read_local_work(recipe)
    if work.steps == 1:
        return work.batch, STEP
    return (work.batch, EPOCH) if work.batch < images else (images, STEPS)


def read_local_work(recipe: Mapping[str, Any]) -> LocalWork:
    """Steps, images of a step, and optimiser of one client.

    >>> read_local_work({"batch_size": 8, "steps": 1, "epochs": 2, "local_batch_size": 3})
    LocalWork(steps=6, batch=3, optimiser='sgd')
    >>> did = "4 steps of sgd, lr 0.01, momentum 0.9 (1 epoch in batches of 2)"
    >>> read_local_work({"batch_size": 8, "steps": 1, "clients_did": did})
    LocalWork(steps=4, batch=2, optimiser='sgd, momentum 0.9')
    """
    images = int(recipe["batch_size"])
    if found := DID.match(str(recipe.get("clients_did") or "")):
        words = [each for each in found["optimiser"].split(", ") if not is_rate(each)]
        return LocalWork(int(found["steps"]), min(int(found["batch"]), images), ", ".join(words))
    steps, batch = int(recipe["steps"]), min(int(recipe.get("local_batch_size") or images), images)
    if recipe.get("epochs"):
        steps = int(recipe["epochs"]) * -(-images // batch)
    return LocalWork(steps, batch, str(recipe.get("optimiser") or PLAIN))


def is_rate(words: str) -> bool:
    """Whether a part of the words on an optimiser is its learning rate."""
    return words.startswith("lr ") or words == "unknown lr"
