"""Which backend trains the clients: by rule, so that equal commands give equal weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keyhole.errors import DoesNotFit
from keyhole.federation.backends import Backend, CudaGraphTrainer, LoopTrainer, VmapTrainer
from keyhole.federation.backends.cuda_graph import why_recording_fails
from keyhole.federation.backends.vmap import vmap_is_faster, why_vmap_fails
from keyhole.federation.plan import TrainingPlan
from keyhole.federation.precision import multiply_in
from keyhole.federation.rounds import Federation
from keyhole.settings import Precision

log = logging.getLogger("keyhole")

SMALL_MODEL = 1_000_000
"""Parameters below which one client's operations leave a GPU idle, so that several share it."""
SLOTS = 4
"""How many such clients take turns."""
COMPILE_PAYS = 5_000_000
"""Images in a whole training from which the time to compile the network comes back: on an H200
ResNet-18 takes 16 s and trains 42,500 images a second in place of 35,300."""


@dataclass(frozen=True)
class BackendFacts:
    """How clients are trained, as a run folder says it.

    Args:
        together: Whether they are one tensor axis.
        slots: How many of them take turns at recorded steps; 0: steps are not recorded.
        compiled: Whether the network is compiled before steps are recorded.
        precision: The precision of training; None: torch's own settings.
    """

    together: bool
    slots: int
    compiled: bool
    precision: Precision | None

    @classmethod
    def of(cls, federation: Federation) -> BackendFacts:
        """Returns the facts of a federation that is about to train.

        Args:
            federation: The federation.
        """
        backend, precision = federation.backend, federation.training.precision
        if isinstance(backend, CudaGraphTrainer):
            return cls(False, len(backend.slots), backend.compiled, precision)
        return cls(isinstance(backend, VmapTrainer), 0, False, precision)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> BackendFacts:
        """Reads what :meth:`to_json` returned; earlier versions wrote ``together`` alone.

        Args:
            facts: The facts of a checkpoint, these and others.
        """
        slots, compiled = int(facts.get("slots", 0)), bool(facts.get("compiled", False))
        return cls(bool(facts["together"]), slots, compiled, facts.get("precision"))

    def to_json(self) -> dict[str, Any]:
        """Returns plain values by name."""
        return {
            "together": self.together,
            "slots": self.slots,
            "compiled": self.compiled,
            "precision": self.precision,
        }

    def notes(self) -> tuple[str, str | None, str]:
        """Returns how clients were trained, in which precision, and how steps were run."""
        how = "together" if self.together else "one by one"
        if self.slots > 1:
            how = f"{self.slots} in turns"
        steps = "recorded" if self.slots else "launched"
        return how, self.precision, f"compiled, {steps}" if self.compiled else steps

    def apply(self, federation: Federation) -> None:
        """Lets a federation train so.

        Args:
            federation: The federation.
        """
        federation.training = replace(federation.training, precision=self.precision)
        federation.backend = VmapTrainer() if self.together else LoopTrainer()
        if self.slots:
            federation.backend = CudaGraphTrainer(slots=self.slots, compiled=self.compiled)


def choose_backend(plan: TrainingPlan, federation: Federation) -> Backend:
    """Returns the backend that the plan asks for or, if it leaves that open, the faster one.

    Args:
        plan: What is trained.
        federation: Its server and clients.
    """
    if plan.together != "yes" and (recorded := choose_recording(plan, federation)) is not None:
        return recorded
    if plan.together == "no":
        return LoopTrainer()
    backend, sampled = VmapTrainer(), federation.sample_clients(1)
    sizes = [len(federation.shares[client]) for client in sampled]
    if not backend.supports(federation.model, sizes, federation.training, federation.defense):
        if plan.together == "yes":
            raise DoesNotFit(
                "these clients cannot be trained together: they need equally many images, and a "
                "defense without a gradient of its own"
            )
        return LoopTrainer()
    first = sampled[: backend.clients_at_once(federation.model)]
    clients = [federation.make_client(1, client) for client in first]
    if plan.together == "yes":
        why = why_vmap_fails(federation.model, clients)
        if why is not None:
            raise DoesNotFit(f"these clients cannot be trained together: {why}")
    elif not vmap_is_faster(federation.model, clients):
        return LoopTrainer()
    return backend


def choose_recording(plan: TrainingPlan, federation: Federation) -> CudaGraphTrainer | None:
    """Returns what replays recorded steps, on a GPU where they can be recorded; else None.

    Args:
        plan: What is trained.
        federation: Its server and clients.
    """
    model, sampled = federation.model, federation.sample_clients(1)
    sizes = [len(federation.shares[client]) for client in sampled]
    small = sum(weight.numel() for weight in model.parameters()) < SMALL_MODEL
    slots = min(SLOTS, len(sampled)) if small and plan.together == "auto" else 1
    trainer = CudaGraphTrainer(slots=slots, compiled=pays_to_compile(plan, federation))
    if not trainer.supports(model, sizes, federation.training, federation.defense):
        return None
    client = federation.make_client(1, sampled[sizes.index(max(sizes))])
    with multiply_in(federation.training.precision):
        why = why_recording_fails(model, client, trainer)
        if why is not None and trainer.compiled:
            log.warning("note: the network cannot be compiled (%s)", why)
            trainer = CudaGraphTrainer(slots=slots)
            why = why_recording_fails(model, client, trainer)
    if why is not None:
        log.warning("note: steps cannot be recorded (%s): they are launched one by one", why)
        return None
    return trainer


def pays_to_compile(plan: TrainingPlan, federation: Federation) -> bool:
    """Returns whether the network is to be compiled.

    Args:
        plan: What is trained.
        federation: Its server and clients.
    """
    if plan.compiled != "auto":
        return plan.compiled == "yes"
    training = plan.training
    per_client = [
        training.count_steps(len(share)) * training.batch_size_for(len(share))
        for share in federation.shares
    ]
    return plan.rounds * plan.fraction * sum(per_client) >= COMPILE_PAYS
