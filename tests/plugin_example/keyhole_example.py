"""A package that adds an attack, a defense and a command to Keyhole, without an edit of Keyhole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import nn

import keyhole
from keyhole.attacks import Attack, Reconstruction
from keyhole.defenses import ClientSide, Defense
from keyhole.terminal import say
from keyhole.threat import Observation


@dataclass(frozen=True)
class RankOne(Attack):
    """Reads one image off the gradient of a linear first layer.

    That gradient is ``dW = delta x^T``: its first right singular vector is the image ``x``, up to
    its scale and sign. It is taken to be mostly dark, its darkest pixel black, its brightest white.
    """

    layer: int = 0  # which of the linear layers

    def linear_layers(self, observation: Observation) -> list[str]:
        modules = observation.model.named_modules()
        return [f"{name}.weight" for name, module in modules if isinstance(module, nn.Linear)]

    def incompatibilities(self, observation: Observation) -> list[str]:
        shapes = {name: p.shape for name, p in observation.model.named_parameters()}
        pixels = torch.Size(observation.knowledge.shape).numel()
        layers = self.linear_layers(observation)
        if len(layers) <= self.layer or shapes[layers[self.layer]][1] != pixels:
            return [f"linear layer {self.layer} does not see all pixels"]
        return [] if observation.knowledge.batch_size == 1 else ["it reads batches of one image"]

    def reads(self, observation: Observation) -> set[str]:
        return {self.linear_layers(observation)[self.layer]}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        (weight,) = self.reads(observation)
        _, _, right = torch.linalg.svd(observation.update.gradient()[weight], full_matrices=False)
        image = right[0].view(1, *observation.knowledge.shape)
        image = image if image.mean() > image.median() else -image
        share = (image - image.min()) / (image.max() - image.min())
        black, white = observation.knowledge.box(share)
        return Reconstruction(images=black + share * (white - black))


@dataclass(frozen=True)
class Shrink(Defense):
    """Shortens the update to ``1 - p`` of its length."""

    p: float = 0.5

    paper_attacks = ("rank-one",)

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ValueError(f"p must be at least 0 and below 1, got {self.p}")

    def on_update(self, update: keyhole.Update, side: ClientSide | None = None) -> keyhole.Update:
        return update.map(lambda name, tensor: tensor * (1 - self.p))


def try_shrink(
    p: Annotated[float, typer.Option(help="How much of the update is taken away.")] = 0.5,
) -> None:
    """Show what the example's attack sees through the example's defense."""
    result = keyhole.audit(
        model="mlp", data="digits", defenses=[Shrink(p=p)], attacks=[RankOne()], victims=2
    )
    say(f"{Shrink(p=p)}: {result.verdicts[0].words}")
