"""A defense at work around one training message, and the doors that a training function opens."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.calibrated import CalibratedNoise
from keyhole.errors import DoesNotFit
from keyhole.federation.client import Later, local_update
from keyhole.federation.flower.messages import Tensors
from keyhole.federation.training import LocalTraining
from keyhole.update import Update

DOORS = {
    "on_images": "images = protected_images(images)",
    "on_model": "model = protected_model(model)",
    "on_step": "gradient = protected_step(model, inputs, labels)",
}
"""What a training function must call so that a mod's defense can do its work there."""
TELL = "tell_defense(model, images, labels, steps=..., lr=..., batch_size=...)"


@dataclass(frozen=True)
class Told:
    """How a client says that it trains: so many steps in all, of this rate, on such batches."""

    steps: int
    lr: float
    batch_size: int


@dataclass
class Shield:
    """A defense at work around one training message."""

    defense: Defense
    side: ClientSide
    passed: set[str] = field(default_factory=set)
    told: Told | None = None


SHIELD: ContextVar[Shield | None] = ContextVar("keyhole shield", default=None)


def protected_images(images: Tensor) -> Tensor:
    """Images ``[n, C, H, W]`` in [0, 1] through the image door of the mod's defense, if any."""
    shield = SHIELD.get()
    if shield is None:
        return images
    shield.passed.add("on_images")
    shield.side.images = images
    return shield.defense.on_images(images, shield.side)


def protected_model(model: nn.Module) -> nn.Module:
    """The model that the client trains, through the model door of the mod's defense, if any."""
    shield = SHIELD.get()
    if shield is None:
        return model
    shield.passed.add("on_model")
    shield.side.model = model
    return shield.defense.on_model(model, shield.side)


def protected_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor] | None:
    """The defense's own gradient of one local step; None: take the plain one."""
    shield = SHIELD.get()
    if shield is None:
        return None
    shield.passed.add("on_step")
    return shield.defense.on_step(model, inputs, labels, shield.side)


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
    """Tells the mod's defense, if any, of the client and how it trains.

    ``images [n, C, H, W]`` in [0, 1] and their ``labels`` are the client's own; ``normalise`` makes
    the model's inputs of them. ``steps`` counts all local steps of a round. The model may be
    trained in place before or after: a defense sees it with the weights that the server sent.
    """
    shield = SHIELD.get()
    if shield is None:
        return
    side, shield.told = shield.side, Told(steps, lr, batch_size)
    side.model, side.images, side.labels = model, images, labels
    if normalise is not None:
        side.normalise = normalise


def local_training(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    data: ImageSet,
    training: LocalTraining,
    generator: torch.Generator,
    later: Later | None = None,
) -> Update:
    """A client's training by Keyhole's own loop, through all doors of the mod's defense.

    ``images`` are in [0, 1]; ``later`` gives other versions of them for epochs after the first. The
    seeded mod's draws take the place of ``generator``.
    """
    shield = SHIELD.get()
    draw = generator
    if shield is not None:
        draw = shield.side.generator
        shield.side.model, shield.side.images, shield.side.labels = model, images, labels
        shield.side.normalise = data.normalise
    epochs = itertools.count(1)

    def again() -> Tensor:
        shown = images if later is None else later(next(epochs))
        return data.normalise(protected_images(shown))

    first = data.normalise(protected_images(images))
    update = local_update(
        protected_model(model),
        first,
        labels,
        training=training,
        seed=int(torch.randint(2**62, (), generator=draw)),
        again=again,
        step=protected_step,
    )
    if shield is not None:
        shield.told = Told(update.steps, update.lr, update.batch_size)
    return update


def check_doors(shield: Shield) -> None:
    """Raises where the training function passed by a door that the defense stands in."""
    for door, call in DOORS.items():
        stands = getattr(type(shield.defense), door) is not getattr(Defense, door)
        if stands and door not in shield.passed:
            raise DoesNotFit(
                f"defense {shield.defense.name!r} was not let at its work: the training function "
                f"must call `{call}` from keyhole.federation.flower"
            )


def as_told(update: Update, shield: Shield, start: Tensors) -> Update:
    """The update with how it came about; a defense that goes by it then has the global model too.

    Raises where such a defense was told nothing: it would take the update for a bare gradient, and
    add noise that fits nothing.
    """
    defense, side, told = shield.defense, shield.side, shield.told
    if isinstance(defense, CalibratedNoise):
        if told is None or side.model is None:
            raise DoesNotFit(
                f"defense {defense.name!r} knows neither the client's images nor how it trained: "
                f"the training function must call `{TELL}` from keyhole.federation.flower"
            )
        side.model = as_received(side.model, start)
    if told is None:
        return update
    return replace(update, steps=told.steps, lr=told.lr, batch_size=told.batch_size)


def as_received(model: nn.Module, start: Tensors) -> nn.Module:
    """A copy of a client's model with the weights that the server sent."""
    own = model.state_dict()
    strangers = [n for n, t in start.items() if n not in own or t.shape != own[n].shape]
    if strangers:
        raise DoesNotFit(
            f"the message carries {strangers[0]!r}, which is no tensor of the client's model: send "
            "its state_dict, or tell_defense() the model that is trained"
        )
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(start, strict=False)
    return fresh
