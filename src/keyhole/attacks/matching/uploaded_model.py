"""IG as the TIP paper ran it: at the model that the client uploaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer, NullCheckpointer
from keyhole.attacks.matching.inverting_gradients import InvertingGradients
from keyhole.defenses.capabilities import Capability
from keyhole.models.channel_importance import apply_change
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class UploadedModelInversion(InvertingGradients):
    """IG that compares gradients at the uploaded model, noise included, not at the one sent out.

    A server that has both models has no reason to do so, because the client took its gradients at
    the model that was sent out. The authors' code does it, and this attack allows comparison with
    their tables. It makes no use of known noise. Each client has its own model, so that the clients
    are attacked one after the other.
    """

    name: ClassVar[str] = "ig-uploaded"
    summary: ClassVar[str] = "IG at the model that the client uploaded"
    paper: ClassVar[str] = "Geiping et al. 2020 (IG), as run in Wang and Su 2025 (TIP)"
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE})
    published: ClassVar[dict[str, Any]] = {"iterations": 10_000, "lr": 0.004, "tv": 1e-4}

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        for number, observation in enumerate(observations):
            model = apply_change(observation.model, observation.update.change)
            own = SingleClientCheckpointer(checkpointer, number, len(observations))
            yield from super().stream([replace(observation, model=model)], own)


@plain_dataclass
class SingleClientCheckpointer(NullCheckpointer):
    """Reports one client's progress as a part of the whole; saves nothing."""

    checkpointer: Checkpointer
    number: int
    count: int

    def __post_init__(self) -> None:
        self.deadline = self.checkpointer.deadline

    def watch(self, done: int, total: int, text: str) -> None:
        self.checkpointer.watch(self.number * total + done, self.count * total, text)
