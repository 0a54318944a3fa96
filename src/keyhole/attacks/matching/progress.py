"""What is saved of a run that is interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.checkpointer import Saved
from keyhole.attacks.matching.state import KNOWN, History, Outcome, State


@dataclass
class Progress:
    """How far an attack on many victims has come."""

    active: list[State]
    """The states of chunks that have started and are not done."""
    outcomes: dict[int, Outcome]
    history: dict[int, History]
    notes: list[str]

    def pack(self) -> Saved:
        """The tensors and facts to save; values that are known from the start are left out."""
        tensors: dict[str, Tensor] = {}
        for number, state in enumerate(self.active):
            for name, tensor in state.items():
                if not name.startswith(KNOWN):
                    tensors[f"begun/{number}/{name}"] = tensor
        for victim, outcome in self.outcomes.items():
            for name, tensor in outcome.best.items():
                tensors[f"done/{victim}/{name}"] = tensor
        for victim, history in self.history.items():
            for iteration, image in history.frames:
                tensors[f"frame/{victim}/{iteration}"] = image
        facts = {
            "begun": len(self.active),
            "outcomes": {v: [o.loss, o.iterations] for v, o in self.outcomes.items()},
            "history": {
                v: [h.losses, h.restarts, h.failed, [iteration for iteration, _ in h.frames]]
                for v, h in self.history.items()
            },
            "notes": self.notes,
        }
        return tensors, facts

    @classmethod
    def unpack(cls, saved: Saved, device: torch.device) -> Progress:
        """Restores what was saved; states are moved to ``device``.

        Saved tensors are copied into memory that torch aligned itself, because kernels round
        differently otherwise.
        """
        tensors, facts = saved
        progress = cls([], {}, {}, facts["notes"])
        for key, (losses, restarts, failed, frame_iterations) in facts["history"].items():
            frames = [(i, tensors[f"frame/{key}/{i}"]) for i in frame_iterations]
            curve = [(int(i), float(loss)) for i, loss in losses]
            progress.history[int(key)] = History(curve, frames, restarts, failed)
        for key, (loss, iterations) in facts["outcomes"].items():
            best = {n: t.clone() for n, t in tensors_under(f"done/{key}/", tensors).items()}
            progress.outcomes[int(key)] = Outcome(loss, iterations, best)
        for number in range(facts["begun"]):
            chunk = tensors_under(f"begun/{number}/", tensors)
            progress.active.append({n: t.to(device, copy=True) for n, t in chunk.items()})
        return progress


def tensors_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
