"""A client's share of one round: images in, defended update out."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import ClientSide, Defense, Telemetry
from keyhole.errors import DoesNotFit, one_line
from keyhole.models.dropout_sites import Record
from keyhole.models.modes import ClientMode, set_mode
from keyhole.seeds import seeded_globally
from keyhole.update import Update


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: ``steps`` of plain SGD on one batch.

    Without ``lr`` the client shares the gradient of one step itself.
    """

    steps: int = 1
    lr: float | None = None
    mode: ClientMode = "train"

    def __post_init__(self) -> None:
        if self.steps < 1 or (self.steps > 1 and self.lr is None):
            raise DoesNotFit("several local steps need a learning rate: pass --lr")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise DoesNotFit(f"a learning rate of {self.lr} teaches nothing: it must be positive")


def defended_update(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    data: ImageSet,
    defense: Defense,
    generator: torch.Generator,
    training: LocalTraining | None = None,
    record: Record | None = None,
) -> tuple[Update, Telemetry]:
    """One client's update through the three doors of ``defense``.

    ``images`` are in [0, 1]; the client normalises them as ``data`` says. ``model`` is the global
    model and is left as it was. ``record`` keeps the dropout masks that the client draws.
    """
    side = ClientSide(generator=generator, model=model, images=images, labels=labels)
    shown = defense.on_images(images, side)
    local = defense.on_model(model, side)
    update = local_update(
        local,
        data.normalise(shown),
        labels,
        training=training or LocalTraining(),
        seed=int(torch.randint(2**62, (), generator=generator)),
        record=record,
    )
    return defense.on_update(update.check(), side), side.telemetry


def local_update(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    training: LocalTraining,
    seed: int,
    record: Record | None = None,
) -> Update:
    """What one client changes in ``model`` by training on one batch of model inputs."""
    record = record or Record()
    local = set_mode(copy.deepcopy(model), training.mode).requires_grad_(True)
    names = [name for name, _ in local.named_parameters()]
    weights = list(local.parameters())
    before = [w.detach().clone() for w in weights]
    with seeded_globally(seed):
        for _ in range(training.steps):
            record.begin()
            with record:
                gradient = _gradient(local, weights, inputs, labels)
            if training.lr is None:
                found = dict(zip(names, gradient, strict=True))
                return Update.from_gradient(found, batch_size=len(inputs))
            with torch.no_grad():
                for weight, g in zip(weights, gradient, strict=True):
                    weight.sub_(g, alpha=training.lr)
    assert training.lr is not None
    change = {n: (w - b).detach() for n, w, b in zip(names, weights, before, strict=True)}
    return Update(
        change,
        steps=training.steps,
        lr=training.lr,
        batch_size=len(inputs),
        examples=len(inputs),
    )


def _gradient(
    model: nn.Module, weights: list[nn.Parameter], inputs: Tensor, labels: Tensor
) -> list[Tensor]:
    """The gradient of the mean cross-entropy; zeros for parameters that take no part."""
    try:
        loss = F.cross_entropy(model(inputs), labels)
    except ValueError as error:
        raise DoesNotFit(
            f"the client cannot train on {len(inputs)} image(s) of {tuple(inputs.shape[1:])} "
            f"({one_line(error)}): use larger images or batches, or --client-mode eval"
        ) from None
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
