"""Label inference from the last layer's gradient.

With cross-entropy the gradient at the logits is ``(softmax - onehot) / B`` for each sample, and it
is the last layer's bias gradient; without a bias it is seen through the rows of the weight
gradient. One sample: the true class is the only negative entry. A batch: the class counts are

    n_c = B * (mean softmax_c - gradient_c),

the mean softmax being what the model answers to inputs it knows nothing about.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.base import Attack, Reconstruction
from keyhole.models.anatomy import Shape, cache_per_model, find_logits_layer
from keyhole.seeds import generator
from keyhole.threat import Observation

PROBES = 64
"""Random inputs from which the mean softmax and the mean last features are guessed."""


@dataclass(frozen=True, kw_only=True)
class LabelInference(Attack):
    """Reads the batch's labels (as a multiset) off the last layer."""

    name: ClassVar[str] = "labels"
    summary: ClassVar[str] = "infers the labels from the last layer's gradient"
    paper: ClassVar[str] = "Zhao et al. 2020 (iDLG); Wainakh et al. 2022 (LLG)"
    needs: ClassVar[str] = "a linear last layer; cross-entropy"
    reads_images: ClassVar[bool] = False

    def incompatibilities(self, observation: Observation) -> list[str]:
        if find_logits_layer(observation.model, observation.knowledge.shape) is None:
            return ["it needs a linear last layer, whose output is the logits"]
        return []

    def reads(self, observation: Observation) -> set[str]:
        return {f"{find_logits_layer(observation.model, observation.knowledge.shape)}.weight"}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        layer = find_logits_layer(observation.model, observation.knowledge.shape)
        assert layer is not None
        at_logits = gradient_at_logits(observation, layer)
        batch = observation.knowledge.batch_size
        if batch == 1:
            labels = at_logits.argmin()[None].cpu()
        else:
            softmax = probe_at_random(observation.model, observation.knowledge.shape)[0]
            labels = to_counts(batch * (softmax - at_logits), batch)
        return Reconstruction(labels=labels, diagnostics={"least": float(at_logits.min())})


def gradient_at_logits(observation: Observation, layer: str) -> Tensor:
    """The gradient at each logit, up to a positive factor for a single sample: ``[classes]``."""
    gradient = observation.update.gradient()
    if f"{layer}.bias" in gradient:
        return gradient[f"{layer}.bias"].double()
    weight = gradient[f"{layer}.weight"].double()
    if observation.knowledge.batch_size == 1 and observation.knowledge.classes > 2:
        return compare_rows(weight)
    features = probe_at_random(observation.model, observation.knowledge.shape)[1]
    seen: Tensor = weight @ features / features.square().sum()
    return seen


def compare_rows(weight: Tensor) -> Tensor:
    """At batch 1 the rows are ``gradient_c * a``: the true class's points against all others."""
    unit = weight / weight.norm(dim=1, keepdim=True).clamp_min(1e-300)
    agreement: Tensor = (unit @ unit.T).sum(1)
    return agreement


@cache_per_model
def probe_at_random(model: nn.Module, shape: Shape) -> tuple[Tensor, Tensor]:
    """Mean softmax and mean input of the logits' layer over random images."""
    layer = find_logits_layer(model, shape)
    assert layer is not None
    caught: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(
        lambda module, args: caught.append(args[0])
    )
    probes = torch.randn((PROBES, *shape), generator=generator(0, "labels"))
    logits = model(probes.to(next(model.parameters())))
    handle.remove()
    return logits.softmax(1).double().mean(0), caught[0].double().mean(0)


def to_counts(estimates: Tensor, batch: int) -> Tensor:
    """``batch`` labels whose counts follow ``estimates``: each goes to the largest remainder."""
    remaining = estimates.clone()
    labels = []
    for _ in range(batch):
        label = int(remaining.argmax())
        remaining[label] -= 1
        labels.append(label)
    return torch.tensor(sorted(labels))
