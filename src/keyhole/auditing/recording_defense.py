"""A defense that records the images on their way to a client, and changes nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from keyhole.defenses import ClientSide, Defense, DefenseSpec
from keyhole.update import Update


@dataclass(frozen=True)
class RecordingDefense(Defense):
    """``defense``; every version of the images that leaves it is kept in ``recorded``."""

    defense: Defense
    recorded: list[Tensor] = field(default_factory=list)

    name: ClassVar[str] = "recording"
    summary: ClassVar[str] = "records the images that leave a defense"
    paper: ClassVar[str] = ""

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        defended = self.defense.on_images(images, side)
        self.recorded.append(defended.detach().clone())
        return defended

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        return self.defense.on_model(model, side)

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        return self.defense.on_step(model, inputs, labels, side)

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        return self.defense.on_update(update, side)

    @property
    def spec(self) -> DefenseSpec:
        return self.defense.spec
