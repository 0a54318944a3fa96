"""The defense of a client mod during one training message, and the doors that a training uses.

A mod cannot reach into the training function that it wraps. So it puts its defense into a context
variable, and the training function passes images, model and gradients through it by the functions
here. Without a mod they return what they are given.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import ClientSide, Defense, uses_door
from keyhole.defenses.calibrated import CalibratedNoise
from keyhole.errors import DoesNotFit
from keyhole.federation.client import ImagesByEpoch, compute_local_update
from keyhole.federation.flower.messages import Tensors
from keyhole.federation.training import LocalTraining
from keyhole.update import Update

DOOR_CALLS = {
    "on_images": "images = protect_images(images)",
    "on_model": "model = protect_model(model)",
    "on_step": "gradient = protect_step(model, inputs, labels)",
}
"""What a training function must call for each door of a defense."""
TELL_CALL = "tell_defense(model, images, labels, steps=..., lr=..., batch_size=...)"


@dataclass(frozen=True)
class ReportedTraining:
    """How a client says that it trains: the steps in all, the learning rate, images per step."""

    steps: int
    lr: float
    batch_size: int


@dataclass
class ActiveDefense:
    """A mod's defense during one training message, and what the training function did with it."""

    defense: Defense
    side: ClientSide
    doors_used: set[str] = field(default_factory=set)
    training: ReportedTraining | None = None


ACTIVE_DEFENSE: ContextVar[ActiveDefense | None] = ContextVar("keyhole defense", default=None)


def protect_images(images: Tensor) -> Tensor:
    """Returns the images as the mod's defense lets the client train on them.

    Args:
        images: The client's images ``[n, C, H, W]`` in [0, 1].
    """
    active = ACTIVE_DEFENSE.get()
    if active is None:
        return images
    active.doors_used.add("on_images")
    active.side.images = images
    return active.defense.on_images(images, active.side)


def protect_model(model: nn.Module) -> nn.Module:
    """Returns the model as the mod's defense lets the client train it.

    Args:
        model: The model that the client is about to train.
    """
    active = ACTIVE_DEFENSE.get()
    if active is None:
        return model
    active.doors_used.add("on_model")
    active.side.model = model
    return active.defense.on_model(model, active.side)


def protect_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor] | None:
    """Returns the defense's own gradient of one local step; None means the plain gradient.

    Args:
        model: The model that the client trains.
        inputs: The step's inputs ``[n, C, H, W]``.
        labels: Their classes ``[n]``.
    """
    active = ACTIVE_DEFENSE.get()
    if active is None:
        return None
    active.doors_used.add("on_step")
    return active.defense.on_step(model, inputs, labels, active.side)


def tell_defense(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int,
    lr: float,
    batch_size: int,
    normalise: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Tells the mod's defense about the client and how it trains.

    The model may be trained in place before or after this call: the defense sees it with the
    weights that the server sent.

    Args:
        model: The model that the client trains.
        images: The client's images ``[n, C, H, W]`` in [0, 1].
        labels: Their classes ``[n]``.
        steps: The number of all local steps of a round.
        lr: The learning rate.
        batch_size: Images per step.
        normalise: Turns images into the model's inputs; None means that they are the same.
    """
    active = ACTIVE_DEFENSE.get()
    if active is None:
        return
    side, active.training = active.side, ReportedTraining(steps, lr, batch_size)
    side.model, side.images, side.labels = model, images, labels
    if normalise is not None:
        side.normalise = normalise


def train_locally(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    data: ImageSet,
    training: LocalTraining,
    generator: torch.Generator,
    images_by_epoch: ImagesByEpoch | None = None,
) -> Update:
    """Trains a client by Keyhole's own loop, through all doors of the mod's defense.

    Args:
        model: The global model, which is not changed.
        images: The client's images ``[n, C, H, W]`` in [0, 1].
        labels: Their classes ``[n]``.
        data: The data set that says how images are normalised.
        training: How the client trains.
        generator: The source of random numbers, unless the mod has a defense with its own.
        images_by_epoch: Returns other versions of the images for epochs after the first.
    """
    active = ACTIVE_DEFENSE.get()
    draw = generator
    if active is not None:
        draw = active.side.generator
        active.side.model, active.side.images, active.side.labels = model, images, labels
        active.side.normalise = data.normalise
    epochs = itertools.count(1)

    def next_inputs() -> Tensor:
        version = images if images_by_epoch is None else images_by_epoch(next(epochs))
        return data.normalise(protect_images(version))

    first = data.normalise(protect_images(images))
    update = compute_local_update(
        protect_model(model),
        first,
        labels,
        training=training,
        seed=int(torch.randint(2**62, (), generator=draw)),
        next_inputs=next_inputs,
        step_gradient=protect_step,
    )
    if active is not None:
        active.training = ReportedTraining(update.steps, update.lr, update.batch_size)
    return update


def check_doors(active: ActiveDefense) -> None:
    """Raises if the training function skipped a door that the defense uses."""
    for door, call in DOOR_CALLS.items():
        if uses_door(active.defense, door) and door not in active.doors_used:
            raise DoesNotFit(
                f"defense {active.defense.name!r} was not applied: the training function must call "
                f"`{call}` from keyhole.federation.flower"
            )


def add_reported_training(update: Update, active: ActiveDefense, start: Tensors) -> Update:
    """Returns the update with the steps, rate and batch size that the client reported.

    A defense that calibrates its noise also gets the global model. It raises if the client reported
    nothing: the defense would take the update for a bare gradient, and add noise that is too small
    or too large.
    """
    defense, side, training = active.defense, active.side, active.training
    if any(isinstance(part, CalibratedNoise) for part in defense.each_part()):
        if training is None or side.model is None:
            raise DoesNotFit(
                f"defense {defense.name!r} knows neither the client's images nor how it trained: "
                f"the training function must call `{TELL_CALL}` from keyhole.federation.flower"
            )
        side.model = copy_with_weights(side.model, start)
    if training is None:
        return update
    return replace(update, steps=training.steps, lr=training.lr, batch_size=training.batch_size)


def copy_with_weights(model: nn.Module, start: Tensors) -> nn.Module:
    """Returns a copy of a client's model with the weights that the server sent."""
    own = model.state_dict()
    unknown = [n for n, t in start.items() if n not in own or t.shape != own[n].shape]
    if unknown:
        raise DoesNotFit(
            f"the message carries {unknown[0]!r}, which is no tensor of the client's model: send "
            "its state_dict, or pass the model that is trained to tell_defense()"
        )
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(start, strict=False)
    return fresh
