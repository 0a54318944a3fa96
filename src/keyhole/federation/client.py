"""A client's share of one round: images in, defended update out."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import ClientSide, Defense, Memory, Telemetry
from keyhole.errors import DoesNotFit, one_line
from keyhole.federation.training import LocalTraining, augmented, clipped
from keyhole.models.dropout_sites import Record
from keyhole.models.modes import set_mode
from keyhole.seeds import generator, seeded_globally
from keyhole.update import Update, check_weights, difference

Later = Callable[[int], Tensor]
"""A local epoch after the first (which is 0) to its images."""


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
    memory: Memory | None = None,
    later: Later | None = None,
) -> tuple[Update, Telemetry]:
    """One client's update through the doors of ``defense``.

    ``images`` are in [0, 1]; the client normalises them as ``data`` says; the image door is passed
    anew for every epoch. ``later`` gives other versions of them for epochs after the first.
    ``model`` is the global model and is left as it was. ``record`` keeps the dropout masks that
    the client draws; ``memory`` is what the defense keeps between rounds.
    """
    check_weights(model.state_dict())
    side = ClientSide(
        generator=generator,
        model=model,
        images=images,
        labels=labels,
        memory={} if memory is None else memory,
        normalise=data.normalise,
    )
    epochs = itertools.count(1)

    def again() -> Tensor:
        side.images = images if later is None else later(next(epochs))
        return data.normalise(defense.on_images(side.images, side))

    shown = defense.on_images(images, side)
    local = defense.on_model(model, side)
    update = local_update(
        local,
        data.normalise(shown),
        labels,
        training=training or LocalTraining(),
        seed=int(torch.randint(2**62, (), generator=generator)),
        record=record,
        again=again,
        step=lambda network, x, y: defense.on_step(network, x, y, side),
    )
    return defense.on_update(update.check(), side), side.telemetry


Step = Callable[[nn.Module, Tensor, Tensor], list[Tensor] | None]
"""Model, inputs and labels to the step's gradient; None: the plain one."""


def local_update(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    training: LocalTraining,
    seed: int,
    record: Record | None = None,
    again: Callable[[], Tensor] | None = None,
    step: Step | None = None,
) -> Update:
    """What one client changes in ``model`` by training on model inputs ``[n, C, H, W]``.

    ``again`` gives the inputs of every epoch after the first. A client that shares weights shares
    its buffers as well.
    """
    record = record or Record()
    local = set_mode(copy.deepcopy(model), training.mode).requires_grad_(True)
    before = {name: tensor.clone() for name, tensor in local.state_dict().items()}
    weights = list(local.parameters())
    optimiser = None if training.lr is None else training.optimiser_of(weights)
    draw = generator(seed, "batches")
    epoch = 0
    with seeded_globally(seed):
        for now, batch in training.batches(len(inputs), draw):
            if now > epoch and again is not None:
                inputs = again()
            epoch = now
            whole = len(batch) == len(inputs)
            x, y = (inputs, labels) if whole else (inputs[batch], labels[batch.to(labels.device)])
            record.begin()
            with record:
                x = augmented(x) if training.augment else x
                gradient = (step and step(local, x, y)) or _gradient(local, weights, x, y)
            gradient = clipped(gradient, training.clip)
            if optimiser is None:
                names = [name for name, _ in local.named_parameters()]
                found = dict(zip(names, gradient, strict=True))
                return Update.from_gradient(found, batch_size=len(inputs))
            for weight, g in zip(weights, gradient, strict=True):
                weight.grad = g
            optimiser.step()
    assert training.lr is not None
    return Update(
        {name: difference(end.detach(), before[name]) for name, end in local.state_dict().items()},
        steps=training.steps_of(len(inputs)),
        lr=training.lr,
        batch_size=training.local_batch(len(inputs)),
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
