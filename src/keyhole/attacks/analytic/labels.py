"""Label inference from the last layer's gradient.

With cross-entropy the gradient at the logits is ``(softmax - onehot) / B`` for each sample, and it
is the last layer's bias gradient. Without a bias it is read from the rows of the weight gradient.
For one sample the true class is the only negative entry. For a batch the class counts are

    n_c = B * (mean softmax_c - gradient_c),

where the mean softmax is estimated on random images, or class by class (iLRG): the rows of the
last layer's gradient divided by those of its bias, ``f_c = dW_c / db_c``, are close to the features
of the images of class c, so that ``P_c = softmax(W f_c + b)`` is close to their softmax, and the
counts k solve ``(P - I)^T k = B db`` with ``sum k = B``, classes that appear twice included.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from scipy.optimize import nnls
from torch import Tensor, nn

from keyhole.attacks.analytic.probes import capture_input
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.models.anatomy import Shape, cache_per_model, find_logits_layer
from keyhole.seeds import generator
from keyhole.threat import Observation

PROBES = 64
"""Random images from which the mean softmax and the mean last features are estimated."""


@dataclass(frozen=True, kw_only=True)
class LabelInference(Attack):
    """Reads the batch's labels (as a multiset) from the last layer's gradient.

    Args:
        softmax: Where the softmax of a batch's images is taken from: ``random`` images, or
            ``classwise`` from the features that the gradient shows, if the layer has a bias.
    """

    softmax: Literal["random", "classwise"] = "random"

    name: ClassVar[str] = "labels"
    summary: ClassVar[str] = "infers the labels from the last layer's gradient"
    paper: ClassVar[str] = "Zhao et al. 2020 (iDLG); Wainakh et al. 2022; Ma et al. 2023 (iLRG)"
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
        at_logits = read_logit_gradient(observation, layer)
        batch = observation.knowledge.batch_size
        if batch == 1:
            labels = at_logits.argmin()[None].cpu()
        elif self.softmax == "classwise" and f"{layer}.bias" in observation.update.change:
            counts = solve_class_counts(observation, layer)
            labels = allocate_labels(counts, batch)
        else:
            softmax = probe_on_random_images(observation.model, observation.knowledge.shape)[0]
            labels = allocate_labels(batch * (softmax - at_logits), batch)
        return Reconstruction(labels=labels, diagnostics={"least": float(at_logits.min())})


def read_logit_gradient(observation: Observation, layer: str) -> Tensor:
    """The gradient at each logit, up to a positive factor for a single sample: ``[classes]``."""
    gradient = observation.update.gradient()
    if f"{layer}.bias" in gradient:
        return gradient[f"{layer}.bias"].double()
    weight = gradient[f"{layer}.weight"].double()
    if observation.knowledge.batch_size == 1 and observation.knowledge.classes > 2:
        return sum_row_cosines(weight)
    features = probe_on_random_images(observation.model, observation.knowledge.shape)[1]
    gradient_at_logits: Tensor = weight @ features / features.square().sum()
    return gradient_at_logits


def solve_class_counts(observation: Observation, layer: str) -> Tensor:
    """The counts ``k >= 0`` of the classes by ``(P - I)^T k = B db``, ``sum k = B``: ``[classes]``.

    Solved by least squares; without ``k >= 0``, as published, it is right less often.

    A class whose bias has next to no gradient gets the mean feature of the batch.
    """
    gradient = {name: g.cpu().double() for name, g in observation.update.gradient().items()}
    rows, bias = gradient[f"{layer}.weight"], gradient[f"{layer}.bias"]
    mean_feature = (rows * bias[:, None]).sum(0) / bias.square().sum().clamp_min(1e-300)
    clear = bias.abs() > 1e-6 * bias.abs().max()
    divisor = torch.where(clear, bias, torch.ones_like(bias))[:, None]
    features = torch.where(clear[:, None], rows / divisor, mean_feature)
    module = observation.model.get_submodule(layer)
    weight = module.get_parameter("weight").detach().cpu().double()
    logits = features @ weight.T + module.get_parameter("bias").detach().cpu().double()
    batch, classes = observation.knowledge.batch_size, len(bias)
    system = (logits.softmax(1) - torch.eye(classes, dtype=torch.double)).T
    whole = torch.cat([system, torch.ones(1, classes, dtype=torch.double)])
    right = torch.cat([batch * bias, torch.tensor([float(batch)], dtype=torch.double)])
    return torch.from_numpy(nnls(whole.numpy(), right.numpy())[0])


def sum_row_cosines(weight: Tensor) -> Tensor:
    """The sum of each row's cosines with all rows, least for the true class of a single sample.

    The rows are ``gradient_c * a``, so that the true class's row points against all others.
    """
    unit = weight / weight.norm(dim=1, keepdim=True).clamp_min(1e-300)
    cosines: Tensor = (unit @ unit.T).sum(1)
    return cosines


@cache_per_model
def probe_on_random_images(model: nn.Module, shape: Shape) -> tuple[Tensor, Tensor]:
    """Mean softmax and mean input of the last layer over random images."""
    layer = find_logits_layer(model, shape)
    assert layer is not None
    images = torch.randn((PROBES, *shape), generator=generator(0, "labels"))
    features, logits = capture_input(model, layer, images.to(next(model.parameters())))
    return logits.softmax(1).double().mean(0), features.double().mean(0)


def allocate_labels(estimated_counts: Tensor, batch: int) -> Tensor:
    """``batch`` labels according to the counts: each goes to the class with the largest rest."""
    remaining = estimated_counts.clone()
    labels = []
    for _ in range(batch):
        label = int(remaining.argmax())
        remaining[label] -= 1
        labels.append(label)
    return torch.tensor(sorted(labels))
