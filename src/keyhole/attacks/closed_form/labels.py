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

    def misfits(self, observation: Observation) -> list[str]:
        if last_linear(observation) is None:
            return [
                f"it needs a linear layer with {observation.knowledge.classes} outputs at the end"
            ]
        return []

    def reads(self, observation: Observation) -> set[str]:
        return {f"{last_linear(observation)}.weight"}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        name = last_linear(observation)
        assert name is not None
        gradient = observation.update.gradient()
        softmax, features = uninformed(observation, name)
        if f"{name}.bias" in gradient:
            at_logits = gradient[f"{name}.bias"].double()
        elif observation.knowledge.batch_size == 1 and observation.knowledge.classes > 2:
            at_logits = rows_against_the_rest(gradient[f"{name}.weight"].double())
        else:
            weight = gradient[f"{name}.weight"].double()
            at_logits = weight @ features / features.square().sum()
        batch = observation.knowledge.batch_size
        if batch == 1:
            labels = at_logits.argmin()[None]
        else:
            labels = to_counts(batch * (softmax - at_logits), batch)
        return Reconstruction(labels=labels.cpu(), diagnostics={"least": float(at_logits.min())})


def last_linear(observation: Observation) -> str | None:
    """The linear layer whose output is the logits, whatever order the layers are listed in."""
    made: list[tuple[str, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda m, args, out, name=name: made.append((name, out)))
        for name, module in observation.model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    like = next(observation.model.parameters())
    logits = observation.model(torch.zeros(1, *observation.knowledge.shape).to(like))
    for handle in handles:
        handle.remove()
    return next((name for name, out in reversed(made) if torch.equal(out, logits)), None)


def rows_against_the_rest(weight: Tensor) -> Tensor:
    """At batch 1 the rows are ``gradient_c * a``: the true class's points against all others."""
    unit = weight / weight.norm(dim=1, keepdim=True).clamp_min(1e-300)
    agreement: Tensor = (unit @ unit.T).sum(1)
    return agreement


def uninformed(observation: Observation, layer: str) -> tuple[Tensor, Tensor]:
    """Mean softmax and mean input of ``layer`` over random images."""
    caught: list[Tensor] = []
    handle = observation.model.get_submodule(layer).register_forward_pre_hook(
        lambda module, args: caught.append(args[0])
    )
    shape = (PROBES, *observation.knowledge.shape)
    probes = torch.randn(shape, generator=generator(0, "labels"))
    probes = probes.to(next(observation.model.parameters()))
    softmax = observation.model(probes).softmax(1).double().mean(0)
    handle.remove()
    return softmax, caught[0].double().mean(0)


def to_counts(estimates: Tensor, batch: int) -> Tensor:
    """``batch`` labels whose counts follow ``estimates``: each goes to the largest remainder."""
    remaining = estimates.clone()
    labels = []
    for _ in range(batch):
        label = int(remaining.argmax())
        remaining[label] -= 1
        labels.append(label)
    return torch.tensor(sorted(labels))
