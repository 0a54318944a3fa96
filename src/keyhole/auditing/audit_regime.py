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
DID = re.compile(r"^(\d+) steps? of .*\((?:[\d.]+ epochs? in )?batches of (\d+)\)$")
"""What captured clients did, in the words of ``captured_training.describe_training``."""


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
    images, steps = int(recipe["batch_size"]), int(recipe["steps"])
    batch = int(recipe.get("local_batch_size") or images)
    if found := DID.match(str(recipe.get("clients_did") or "")):
        steps, batch = int(found[1]), int(found[2])
    elif recipe.get("epochs"):
        steps = int(recipe["epochs"]) * -(-images // batch)
    if steps == 1:
        return min(batch, images), STEP
    return (batch, EPOCH) if batch < images else (images, STEPS)
