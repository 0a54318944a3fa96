"""OASIS: changed copies of all images join the batch, so that a neuron sees more than one image."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.batch_augmentation import TURNS, Augmentation, augment_batch
from keyhole.defenses.batch_gradient import compute_mixed_gradient
from keyhole.defenses.capabilities import AugmentedBatch, BatchChange
from keyhole.errors import DoesNotFit

Copies = Literal["none", "rotations", "flips", "shears", "rotations+shears"]
AUGMENTATIONS: dict[Copies, tuple[Augmentation, ...]] = {
    "none": (),
    "rotations": TURNS,
    "flips": (Augmentation.MIRROR, Augmentation.UPSIDE_DOWN),
    "shears": (Augmentation.SHEAR,),
    "rotations+shears": (*TURNS, Augmentation.SHEAR),
}


@dataclass(frozen=True, kw_only=True)
class Oasis(Defense):
    """Appends turned, mirrored or sheared copies of all images to every batch.

    It is meant against lying servers, whose weights make one neuron respond to one image: a turned
    copy has the same mean brightness and so lands in the same neuron. Nothing about it is random.

    Args:
        copies: Which copies are appended.
    """

    copies: Copies = "rotations"

    name: ClassVar[str] = "oasis"
    summary: ClassVar[str] = "appends turned, mirrored or sheared copies to every batch"
    paper: ClassVar[str] = "Jeter et al. 2024 (OASIS)"
    headline: ClassVar[tuple[str, ...]] = ("copies",)
    paper_attacks: ClassVar[tuple[str, ...]] = ("imprint", "imprint-weights", "trap-weights")

    def caveats(self, model: nn.Module) -> list[str]:
        return ["what it does to every batch is public: an attacker can match it exactly"]

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        """The gradient of the batch with its copies; None where there are none."""
        augmentations = AUGMENTATIONS[self.copies]
        if not augmentations:
            return None
        if inputs.shape[-1] != inputs.shape[-2] and set(augmentations) & set(TURNS):
            raise DoesNotFit(
                f"defense 'oasis' cannot turn images of {inputs.shape[-2]}x{inputs.shape[-1]}: "
                "take square ones, or oasis(copies='flips')"
            )
        batch = augment_batch(inputs, augmentations)
        if side is not None:
            side.record(batch=len(batch))
        own = labels.repeat(1 + len(augmentations))
        return compute_mixed_gradient(model, batch, own, torch.eye(len(batch)).to(inputs))

    def batch_change(self) -> BatchChange:
        return AugmentedBatch(AUGMENTATIONS[self.copies])
