"""A tap on the line by which images come to a client: it notes what passes, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from keyhole.defenses import ClientSide, Defense, DefenseSpec
from keyhole.update import Update


@dataclass(frozen=True)
class RecordingDefense(Defense):
    """``defense``, with every version of the images that it lets through kept in ``passed``."""

    defense: Defense
    passed: list[Tensor] = field(default_factory=list)

    name: ClassVar[str] = "tapped"
    summary: ClassVar[str] = "notes the images that a defense lets through"
    paper: ClassVar[str] = ""

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        shown = self.defense.on_images(images, side)
        self.passed.append(shown.detach().clone())
        return shown

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
