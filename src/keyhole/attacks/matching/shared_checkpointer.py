"""One attack in several stages: one checkpointer for all, one reconstruction of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer, Saved
from keyhole.attacks.matching.progress import tensors_under


def merge_stages(stages: Sequence[Reconstruction]) -> Reconstruction:
    """The images of the stage with the least loss, with the curves and frames of all stages."""
    diagnostics = [stage.diagnostics for stage in stages]
    best = min(range(len(stages)), key=lambda k: (diagnostics[k]["failed"], diagnostics[k]["loss"]))
    starts = [int(sum(d["iterations"] for d in diagnostics[:k])) for k in range(len(stages))]
    timed = list(zip(starts, stages, strict=True))
    images = stages[best].images
    return replace(
        stages[best],
        images=None if images is None else images.cpu(),
        loss_curve=tuple((start + i, loss) for start, s in timed for i, loss in s.loss_curve),
        frames=tuple(
            (start + i, image) for start, s in timed for i, image in s.frames if i or not start
        ),
        diagnostics={
            **diagnostics[best],
            "iterations": sum(d["iterations"] for d in diagnostics),
            "stage": float(best),
        },
    )


@dataclass
class SharedCheckpointer:
    """Divides one checkpointer among several stages."""

    checkpointer: Checkpointer
    lengths: Sequence[int]
    """The iterations of each stage."""
    saved: dict[int, Saved] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaded = self.checkpointer.load()
        if loaded is not None:
            tensors, facts = loaded
            for key, stage_facts in facts["stages"].items():
                self.saved[int(key)] = tensors_under(f"{key}/", tensors), stage_facts

    def stage(self, number: int) -> StageCheckpointer:
        """The checkpointer of one stage."""
        return StageCheckpointer(
            self, number, self.checkpointer.victims_at_once, self.checkpointer.deadline
        )

    def save_all(self) -> None:
        """Saves the states of all stages together."""
        tensors = {f"{k}/{n}": t for k, (own, _) in self.saved.items() for n, t in own.items()}
        self.checkpointer.save(tensors, {"stages": {k: own for k, (_, own) in self.saved.items()}})


@dataclass
class StageCheckpointer:
    """The checkpointer of one stage."""

    shared: SharedCheckpointer
    number: int
    victims_at_once: int | None
    deadline: float | None = None

    def load(self) -> Saved | None:
        return self.shared.saved.get(self.number)

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.shared.saved[self.number] = (dict(tensors), dict(facts))
        self.shared.save_all()

    def due(self) -> bool:
        return self.shared.checkpointer.due()

    def watch(self, done: int, total: int, text: str) -> None:
        lengths = self.shared.lengths
        where = f"stage {self.number + 1} of {len(lengths)}: {text}"
        self.shared.checkpointer.watch(sum(lengths[: self.number]) + done, sum(lengths), where)
