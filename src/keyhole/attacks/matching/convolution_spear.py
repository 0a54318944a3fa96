"""Whole batches from the gradient of a deep convolution: exact features, and images that fit."""

from __future__ import annotations

import copy
import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.convolution_features import (
    ConvolutionInputs,
    list_readable,
    match_labels,
    read_convolution,
)
from keyhole.attacks.analytic.earlier_inputs import read_earlier
from keyhole.attacks.analytic.features import Features, decode_features, mixes_batches
from keyhole.attacks.analytic.labels import LabelInference
from keyhole.attacks.analytic.probes import capture_early_input
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.matching.guided_inversion import hold_statistics
from keyhole.data.image_set import normalise
from keyhole.models.anatomy import Shape, cache_per_model
from keyhole.threat import Knowledge, Observation


@cache_per_model
def copy_still(model: nn.Module, shape: Shape) -> nn.Module:
    """A copy in evaluation mode that overwrites none of its values; one for all clients.

    Args:
        model: The model.
        shape: The shape of its images.
    """
    still = copy.deepcopy(model).eval()
    for module in still.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return still


@dataclass(frozen=True, kw_only=True)
class ConvolutionSpear(Attack):
    """Reads the inputs of a convolution for each image of a batch, and looks for such images.

    The kernel's shifts separate the positions, and the zeros of the ReLU before the layer separate
    the images; both are exact. The inputs of the convolution right before it then follow from its
    own gradient, where that has enough equations. Images are decoded from these inputs by linear
    regression, and then improved by gradient descent until the model gives them the inputs that
    were read. The loss, the labels and the layers above do not matter, and batch norm in train
    mode does not either if its statistics were uploaded.

    Args:
        iterations: Steps of the descent.
        lr: Its first step size, in units of normalised pixels; it falls along a cosine.
        tv: Weight of the total variation at the start; it falls to 0.
    """

    iterations: Annotated[int, Field(ge=0)] = 500
    lr: Annotated[float, Field(gt=0)] = 0.1
    tv: Annotated[float, Field(ge=0)] = 1e-4

    name: ClassVar[str] = "conv-spear"
    summary: ClassVar[str] = "reads a deep convolution's inputs of each image, and inverts them"
    paper: ClassVar[str] = "Keyhole; after Dimitrov et al. 2024 (SPEAR), Zhu and Blaschko 2021"
    needs: ClassVar[str] = (
        "a 3x3 convolution behind a ReLU with as many channels as the batch has positions there"
    )
    exact: ClassVar[bool] = False

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = []
        if observation.update.steps > 1:
            reasons.append("inputs change from step to step: it needs clients of one local step")
        if next(list_readable(observation), None) is None:
            reasons.append(
                "it needs a convolution of stride 1 behind a ReLU with at least as many channels "
                "in and out as the batch has positions there"
            )
        elif mixes_batches(observation) and hold_statistics(observation) is None:
            reasons.append("in train mode, batch norms' statistics must be uploaded")
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        return {f"{next(iter(list_readable(observation))).name}.weight"}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        model, shape = observation.model, observation.knowledge.shape
        if mixes_batches(observation):
            held = hold_statistics(observation)
            assert held is not None  # as `incompatibilities` says
            model = held
        still = copy_still(model, shape)
        labels = self.read_labels(observation)
        found = read_convolution(observation, still)
        if found is None:
            return Reconstruction(
                labels=labels,
                diagnostics={"images": 0},
                notes=("no convolution's gradient could be taken apart into images",),
            )
        first = found
        while earlier := read_earlier(found, observation, still, mixed=mixes_batches(observation)):
            found = earlier
        return self.show(observation, first, found, labels, still)

    def read_labels(self, observation: Observation) -> Tensor | None:
        """The labels as they are known, or as the last layer tells them; None: it does not.

        Args:
            observation: What the server saw of one client.
        """
        if observation.knowledge.labels is not None:
            return observation.knowledge.labels
        inference = LabelInference()
        fits = not inference.incompatibilities(observation)
        fits = fits and inference.reads(observation) <= set(observation.update.change)
        return inference.reconstruct(observation).labels if fits else None

    def show(
        self,
        observation: Observation,
        first: ConvolutionInputs,
        found: ConvolutionInputs,
        labels: Tensor | None,
        still: nn.Module,
    ) -> Reconstruction:
        """The images that have the inputs that were read.

        Args:
            observation: What the server saw of one client.
            first: The inputs of the convolution that separated the images.
            found: The inputs nearest to the pixels, in the same order.
            labels: The batch's labels.
            still: The model that in evaluation mode computes what the client's model computed.
        """
        knowledge, batch = observation.knowledge, len(found.inputs)
        features = Features(found.layer, found.inputs.flatten(1), torch.zeros(batch))
        images, decoder = decode_features(features, still, knowledge)
        images, mismatch = self.improve(images, found, still, knowledge)
        if labels is not None:
            order = match_labels(first, images, labels, still)
            images, mismatch = images[order], mismatch[order]
        return Reconstruction(
            images=images,
            labels=labels,
            confidence=(1 - mismatch.sqrt()).clamp(0, 1),
            diagnostics={
                "images": batch,
                "explained": decoder.explained,
                "shifts": found.mismatch,
                "scaled": float(found.scaled),
                "loss": float(mismatch.mean()),
            },
            notes=(f"the inputs of {found.layer!r} were read and inverted",),
        )

    @torch.enable_grad()
    def improve(
        self, images: Tensor, found: ConvolutionInputs, still: nn.Module, knowledge: Knowledge
    ) -> tuple[Tensor, Tensor]:
        """The images after the descent, and the relative squared distance of each one's inputs.

        Args:
            images: The images at the start, as model inputs ``[B, C, H, W]``.
            found: The inputs that they should have.
            still: The model in evaluation mode.
            knowledge: How images are normalised.
        """
        like = next(still.parameters())
        wanted = found.inputs.to(like)
        sizes = wanted.square().flatten(1).sum(1)
        bounds = [
            normalise(torch.full_like(images, end), knowledge.mean, knowledge.std).to(like)
            for end in (0.0, 1.0)
        ]
        guess = images.to(like).clamp(*bounds).detach().requires_grad_()
        optimiser = torch.optim.Adam([guess], lr=self.lr)

        def distance() -> Tensor:
            seen = capture_early_input(still, found.layer, guess)
            return (seen - wanted).square().flatten(1).sum(1) / sizes

        for step in range(self.iterations):
            left = 1 - step / self.iterations
            optimiser.param_groups[0]["lr"] = self.lr * (
                0.5 - 0.5 * math.cos(math.pi * left) + 0.01
            )
            rough = guess.diff(dim=-1).abs().mean((1, 2, 3)) + guess.diff(dim=-2).abs().mean(
                (1, 2, 3)
            )
            loss = (distance() + left * self.tv * rough).sum()
            (guess.grad,) = torch.autograd.grad(loss, [guess])
            optimiser.step()
            with torch.no_grad():
                guess.clamp_(*bounds)
        with torch.no_grad():
            return guess.detach(), distance()
