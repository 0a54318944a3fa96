"""What one client does in one round: it trains on its images and returns a defended update."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import ClientSide, Defense, Memory, Telemetry
from keyhole.errors import DoesNotFit, one_line
from keyhole.federation.augmentation import augment_images
from keyhole.federation.precision import autocast
from keyhole.federation.training import LocalTraining, clip_gradient
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.models.modes import find_trained_parameters, set_mode
from keyhole.seeds import generator, seeded_globally
from keyhole.settings import Precision
from keyhole.update import Update, check_weights, subtract

ImagesByEpoch = Callable[[int], Tensor]
"""Returns the images of a local epoch; the first epoch is 0."""

StepGradient = Callable[[nn.Module, Tensor, Tensor], list[Tensor] | None]
"""Maps model, inputs and labels to the gradient of one step, with an entry per parameter.

None means the plain gradient."""

TrainLocally = Callable[..., Update]
"""Computes a client's update before its defense changes it, as ``compute_local_update`` does."""


@dataclass(frozen=True)
class RoundClient:
    """A client in one round.

    Args:
        images: The client's images ``[n, C, H, W]`` in [0, 1].
        labels: Their classes ``[n]``.
        generator: The source of all random numbers that the client draws in this round.
        memory: What the client's defense remembers from earlier rounds.
        data: The data set that says how images are normalised.
        training: How the client trains.
        images_by_epoch: Returns the version of the images for a local epoch; None if the images
            have only one version.
    """

    images: Tensor
    labels: Tensor
    generator: torch.Generator
    memory: Memory
    data: ImageSet
    training: LocalTraining
    images_by_epoch: ImagesByEpoch | None = None

    def images_for(self, epoch: int) -> Tensor:
        """Returns the images of a local epoch.

        Args:
            epoch: The epoch's number; the first epoch is 0.
        """
        if epoch == 0 or self.images_by_epoch is None:
            return self.images
        return self.images_by_epoch(epoch)

    def side(self, model: nn.Module) -> ClientSide:
        """Returns what this client gives a defense to work with.

        Args:
            model: The global model.
        """
        return ClientSide(
            self.generator,
            model,
            self.images,
            self.labels,
            memory=self.memory,
            normalise=self.data.normalise,
        )


def train_client(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    data: ImageSet,
    defense: Defense,
    generator: torch.Generator,
    training: LocalTraining | None = None,
    mask_recorder: MaskRecorder | None = None,
    memory: Memory | None = None,
    images_by_epoch: ImagesByEpoch | None = None,
    train_locally: TrainLocally | None = None,
) -> tuple[Update, Telemetry]:
    """Trains one client under a defense; returns its update and what the defense reports.

    Args:
        model: The global model, which is not changed.
        images: The client's images ``[n, C, H, W]`` in [0, 1]. They pass through
            ``defense.on_images`` again in every local epoch.
        labels: Their classes ``[n]``.
        data: The data set that says how images are normalised.
        defense: The defense; all its doors are used.
        generator: The source of all random numbers that the client draws.
        training: How the client trains; None means one gradient step.
        mask_recorder: Records the dropout masks that the client draws.
        memory: What the defense remembers from earlier rounds; it is updated in place.
        images_by_epoch: Returns other versions of the images for epochs after the first.
        train_locally: Stands in the place of ``compute_local_update``, with its arguments.
    """
    check_weights(model.state_dict())
    training = training or LocalTraining()
    memory = {} if memory is None else memory
    client = RoundClient(images, labels, generator, memory, data, training, images_by_epoch)
    side = client.side(model)
    epochs = itertools.count(1)

    def next_inputs() -> Tensor:
        side.images = client.images_for(next(epochs))
        return data.normalise(defense.on_images(side.images, side))

    defended_images = defense.on_images(images, side)
    local = defense.on_model(model, side)
    update = (train_locally or compute_local_update)(
        local,
        data.normalise(defended_images),
        labels,
        training=training,
        seed=int(torch.randint(2**62, (), generator=generator)),
        mask_recorder=mask_recorder,
        next_inputs=next_inputs,
        step_gradient=lambda network, x, y: defense.on_step(network, x, y, side),
    )
    return defense.on_update(update.check(), side), side.telemetry


def compute_local_update(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    training: LocalTraining,
    seed: int,
    mask_recorder: MaskRecorder | None = None,
    next_inputs: Callable[[], Tensor] | None = None,
    step_gradient: StepGradient | None = None,
) -> Update:
    """Trains a copy of ``model`` on one client's inputs and returns what changed.

    A client that shares weights shares its buffers as well. Parameters that are frozen
    (``requires_grad=False``) while others are not are neither trained nor reported.

    Args:
        model: The global model, which is not changed.
        inputs: The model's inputs ``[n, C, H, W]``, already normalised.
        labels: Their classes ``[n]``.
        training: How the client trains.
        seed: Seeds the batches, dropout and augmentation.
        mask_recorder: Records the dropout masks that the client draws.
        next_inputs: Returns the inputs of every epoch after the first; None means that they stay
            the same.
        step_gradient: Replaces the gradient of a step where it returns one.
    """
    mask_recorder = mask_recorder or MaskRecorder()
    local = set_mode(copy.deepcopy(model), training.mode)
    trained = find_trained_parameters(local)
    weights = list(trained.values())
    for weight in weights:
        weight.requires_grad_(True)
    identities = {id(weight) for weight in weights}
    every = local.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in every if id(parameter) not in identities}
    before = {name: tensor.clone() for name, tensor in local.state_dict().items()}
    optimiser = None if training.lr is None else training.make_optimiser(weights)
    draw = generator(seed, "batches")
    last_epoch = 0
    with seeded_globally(seed):
        for epoch, batch in training.batches(len(inputs), draw):
            if epoch > last_epoch and next_inputs is not None:
                inputs = next_inputs()
            last_epoch = epoch
            whole = len(batch) == len(inputs)
            x, y = (inputs, labels) if whole else (inputs[batch], labels[batch.to(labels.device)])
            mask_recorder.begin()
            with mask_recorder:
                x = augment_images(x) if training.augment else x
                own = step_gradient(local, x, y) if step_gradient else None
                if own:
                    names = (name for name, _ in local.named_parameters())
                    gradient = [g for name, g in zip(names, own, strict=True) if name in trained]
                else:
                    gradient = _loss_gradient(local, weights, x, y, training.precision)
            gradient = clip_gradient(gradient, training.clip)
            if optimiser is None:
                named = dict(zip(trained, gradient, strict=True))
                return Update.from_gradient(named, batch_size=len(inputs))
            for weight, g in zip(weights, gradient, strict=True):
                weight.grad = g
            optimiser.step()
    after = {name: end for name, end in local.state_dict().items() if name not in frozen}
    change = {name: subtract(end.detach(), before[name]) for name, end in after.items()}
    return update_from_change(change, training, len(inputs))


def update_from_change(change: dict[str, Tensor], training: LocalTraining, images: int) -> Update:
    """Returns the update of a client that trained on ``images`` images and changed its weights."""
    assert training.lr is not None
    return Update(
        change,
        steps=training.count_steps(images),
        lr=training.lr,
        batch_size=training.batch_size_for(images),
        examples=images,
    )


def _loss_gradient(
    model: nn.Module,
    weights: list[nn.Parameter],
    inputs: Tensor,
    labels: Tensor,
    precision: Precision | None,
) -> list[Tensor]:
    """Returns the gradient of the mean cross-entropy; zeros for parameters that are not used."""
    try:
        with autocast(precision, inputs.device):
            logits = model(inputs)
        loss = F.cross_entropy(logits.float() if precision == "bf16" else logits, labels)
    except ValueError as error:
        raise DoesNotFit(
            f"the client cannot train on {len(inputs)} image(s) of {tuple(inputs.shape[1:])} "
            f"({one_line(error)}): use larger images or batches, or --client-mode eval"
        ) from None
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
