"""What a defense is: doors between a client's images and what the server sees."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from keyhole.defenses.budget import Budget, read_budget
from keyhole.defenses.capabilities import (
    BatchChange,
    Capability,
    HiddenPositions,
    ImageChange,
    Interval,
)
from keyhole.defenses.noise_model import Noise
from keyhole.defenses.traces import Trace
from keyhole.errors import BadUpdate, DoesNotFit
from keyhole.parameters import read_parameters
from keyhole.registry import name_class, part_name, spell_part
from keyhole.spelling import spell
from keyhole.update import Update

Telemetry = dict[str, float | int | str]
Memory = dict[str, Any]
"""What a defense keeps of one client from round to round: plain values that JSON can hold."""


@dataclass(frozen=True)
class DefenseSpec:
    """A defense by name and parameters: what a report prints, and what an attacker may know.

    Args:
        name: The defense's name, or ``package.module:Class``.
        parameters: Its hyperparameters by name.
    """

    name: str
    parameters: dict[str, Any]

    def __str__(self) -> str:
        return spell(self.name, self.parameters)


@dataclass
class ClientSide:
    """What a defense may use: it runs on the client and is trusted with everything there.

    Args:
        generator: The source of every random draw; unpredictable where none is given.
        model: The global model that the client was sent.
        images: The client's images ``[n, C, H, W]`` in [0, 1].
        labels: Their labels ``[n]``.
        telemetry: What the defense reports about its own work in this round.
        memory: What the defense keeps of this client from round to round.
        normalise: Turns images in [0, 1] into the model's inputs.
        weights: The global weights as the server sent them; None: those of ``model``.
    """

    generator: torch.Generator = field(default_factory=lambda: make_unpredictable_generator())
    model: nn.Module | None = None
    images: Tensor | None = None
    labels: Tensor | None = None
    telemetry: Telemetry = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    normalise: Callable[[Tensor], Tensor] = field(default_factory=nn.Identity)
    weights: Mapping[str, Tensor] | None = None

    def generator_at(self, place: Tensor) -> torch.Generator:
        """The client's own generator, or one on another device that is seeded by it.

        Args:
            place: A tensor on the device where numbers are to be drawn.
        """
        own = self.generator
        if place.device.type == own.device.type:
            return own
        seed = int(torch.randint(2**62, (), generator=own, device=own.device))
        return torch.Generator(place.device).manual_seed(seed)

    def global_weight(self, name: str) -> Tensor | None:
        """The global weight that the update reports a change of; None where it is unknown.

        Args:
            name: The tensor's name in the update.
        """
        return None if self.weights is None else self.weights.get(name)

    def record(self, **values: float | int | str) -> None:
        """Adds to the telemetry.

        Args:
            values: Figures and texts by name; a name that is there already is overwritten.
        """
        self.telemetry.update(values)


def make_unpredictable_generator() -> torch.Generator:
    """A generator that no one can repeat: two uploads never share their noise."""
    generator = torch.Generator()
    generator.seed()
    return generator


class Defense(ABC):
    """A defense uses one or two of its doors and leaves the others open.

    Subclasses are frozen dataclasses of hyperparameters. They hold no random state: every draw
    comes from ``side.generator``. The same object works in any training loop::

        model = defense.prepare_model(model)        # once, where the server makes its model
        images = defense.on_images(images, side)    # before training
        model = defense.on_model(model, side)       # the model the client trains
        defense.on_step(model, x, y, side)          # a gradient of its own, if it has one
        update = defense.on_update(update, side)    # before the upload
    """

    name: ClassVar[str]
    """For a class that declares none: where it is defined, ``package.module:Class``."""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    headline: ClassVar[tuple[str, ...]] = ()
    """The parameters that tables always show (all numbers, if empty); others if not default."""
    paper_attacks: ClassVar[tuple[str, ...]] = ()
    """The attacks that this defense's paper measured it with."""
    images_travel: ClassVar[bool] = False
    """Whether it is also meant for images on their way to the client, where they can be seen."""
    hides_masks: ClassVar[bool] = False
    """Whether clients drop units by masks that the server does not see, as dropout does; the rates
    are those of :meth:`on_model`. Noise that the model draws inside is hidden in the same way."""
    keeps_norms: ClassVar[bool] = False
    """Whether each tensor keeps its norm while an orthogonal direction replaces its own."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        name_class(cls)
        if "on_update" in cls.__dict__:
            cls.on_update = refuse_undefended(cls.on_update)  # type: ignore[method-assign]

    def incompatibilities(self, model: nn.Module) -> list[str]:
        """Why this defense cannot protect ``model``; empty where it can.

        Args:
            model: The model that clients are to train.
        """
        return []

    def validate(self, model: nn.Module) -> None:
        """Raises :class:`DoesNotFit` with every reason why the model does not fit.

        Args:
            model: The model that clients are to train.
        """
        reasons = self.incompatibilities(model)
        if reasons:
            raise DoesNotFit(f"defense {self.name!r} does not fit the model: {'; '.join(reasons)}")

    def caveats(self, model: nn.Module) -> list[str]:
        """What a user should know about this defense on ``model``, though it fits.

        Args:
            model: The model that clients are to train.
        """
        return []

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """The global model with the parameters that this defense adds; unchanged if it adds none.

        Args:
            model: The server's model, before the first round.
        """
        return model

    def unshared(self, model: nn.Module) -> frozenset[str]:
        """The names of the tensors that clients keep to themselves; empty: they share all.

        Args:
            model: The global model.
        """
        return frozenset()

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        """The images that the client trains on.

        Args:
            images: The client's own images, ``[n, C, H, W]`` in [0, 1].
            side: What the client gives the defense to work with; None: a fresh generator only.
        """
        return images

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        """The model that the client trains; the one passed in is never changed.

        Args:
            model: The global model.
            side: What the client gives the defense to work with; None: a fresh generator only.
        """
        return model

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        """The gradient of one local step, parameter by parameter; None: the plain one.

        For defenses that need the gradient of every single image, or a loss of their own.

        Args:
            model: The model that :meth:`on_model` returned.
            inputs: One batch of model inputs, ``[B, C, H, W]``.
            labels: Their labels ``[B]``.
            side: What the client gives the defense to work with; None: a fresh generator only.
        """
        return None

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        """The update as the server will see it.

        A subclass is never handed an update that it could pass on undefended, and what it returns
        is checked to be finite: see :func:`refuse_undefended`.

        Args:
            update: The client's update.
            side: What the client gives the defense to work with; None: a fresh generator only.
        """
        return update.check()

    def noise_model(self, update: Update, model: nn.Module) -> Mapping[str, Noise]:
        """Where an attacker who knows this defense expects noise in an update, and how strong.

        By parameter name; a parameter that is missing has no noise that is known.

        Args:
            update: What the server got: it may show which rows are noisy.
            model: The global model that the update is a change of.
        """
        return {}

    def possible_values(self, update: Update) -> Mapping[str, Interval]:
        """What the gradient's values can have been where the update does not show them.

        By parameter name; the values of a parameter that is missing are shown as they were.

        Args:
            update: What the server got; intervals are in the units of ``update.gradient()``.
        """
        return {}

    def misleading_values(self, update: Update, model: nn.Module) -> Mapping[str, Tensor]:
        """Which values of the gradient are not, or not only, the images' own, bool.

        By parameter name; the values of a parameter that is missing are the images' own. An
        attacker does well to leave the others out.

        Args:
            update: What the server got: it may show which values were withheld.
            model: The global model that the update is a change of.
        """
        return {}

    def batch_change(self) -> BatchChange | None:
        """How a step's batch is made of the client's images; None: it consists of them."""
        return None

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """What an update must show if this defense acted as declared.

        By default, the noise that :meth:`noise_model` declares.

        Args:
            update: What the server got.
            model: The global model that the update is a change of.
        """
        return trace_noise(self.noise_model(update, model), of_training=uses_door(self, "on_step"))

    def keeps_trace(self, trace: Trace) -> bool:
        """Whether a trace of an earlier defense still holds after this one changed the update.

        Args:
            trace: What the earlier defense expects of its own update.
        """
        return False

    def image_change(self) -> ImageChange | None:
        """What was done to the images before training; None: nothing that could be undone."""
        return None

    def hidden_positions(self) -> HiddenPositions | None:
        """How the positions of patches are hidden; None: they are not."""
        return None

    def each_part(self) -> tuple[Defense, ...]:
        """The defenses that it applies in order: itself, if it is not composed of others."""
        return (self,)

    def claimed_budget(self, update: Update, telemetry: Telemetry) -> Budget | None:
        """The privacy budget that a client's update is said to have spent; None: none is claimed.

        By default, ``epsilon`` and ``delta`` of the telemetry.

        Args:
            update: What the client sent, which tells how it trained.
            telemetry: What the defense reported of it.
        """
        return read_budget(telemetry)

    @property
    def declares(self) -> frozenset[Capability]:
        """What an attacker who knows this defense may assume: what its class overrides."""
        own, plain = type(self), Defense
        return frozenset(c for c in Capability if getattr(own, c) != getattr(plain, c))

    @property
    def spec(self) -> DefenseSpec:
        """Name and parameters."""
        return DefenseSpec(part_name(self), read_parameters(self))

    def __str__(self) -> str:
        return spell_part(self)


def caveats_of_buffers(model: nn.Module) -> list[str]:
    """The caveat of a defense that acts on parameters alone, where the model has float buffers."""
    if not any(buffer.is_floating_point() for buffer in model.buffers()):
        return []
    return ["where clients share weights, running statistics leave unclipped and without noise"]


def trace_noise(noise: Mapping[str, Noise], *, of_training: bool) -> list[Trace]:
    """The trace of noise; none where it has the strength zero."""
    from keyhole.defenses.noise_trace import NoiseTrace  # needs scipy, which defenses do not

    strong = {name: each for name, each in noise.items() if bool((each.variance > 0).any())}
    return [NoiseTrace(strong, of_training)] if strong else []


def uses_door(defense: Defense, door: str) -> bool:
    """Returns whether a defense, or a part of it, does something at one of its doors.

    Args:
        defense: The defense.
        door: ``on_images``, ``on_model``, ``on_step`` or ``on_update``.
    """
    own = [type(part) for part in defense.each_part()]
    return any(getattr(kind, door) is not getattr(Defense, door) for kind in own)


OnUpdate = Callable[..., Update]


def refuse_undefended(on_update: OnUpdate) -> OnUpdate:
    """A defense's ``on_update`` that raises :class:`BadUpdate` before it can fail open.

    It refuses NaN and infinite values, which no clip and no noise holds back, tensors on which no
    defense acts (:meth:`Update.check_defended`), and tensors that the model does not have.
    """

    @functools.wraps(on_update)
    def checked(self: Defense, update: Update, side: ClientSide | None = None) -> Update:
        weights = find_global_weights(self, side)
        update.check().check_defended(weights)
        if weights is not None:
            update.check_against(weights)
        return check_returned(self, on_update(self, update, side), update)

    return checked


def check_returned(defense: Defense, returned: object, update: Update) -> Update:
    """What a defense returned; raises where it is no update, or has tensors of other shapes.

    Args:
        defense: The defense.
        returned: What its ``on_update`` returned.
        update: What it was given.
    """
    if not isinstance(returned, Update):
        found = type(returned).__name__
        raise BadUpdate(
            f"defense {defense.name!r} returned a {found} from on_update, not an Update"
        )
    for name, tensor in returned.change.items():
        given = update.change.get(name)
        if given is not None and tensor.shape != given.shape:
            raise BadUpdate(
                f"defense {defense.name!r} returned {name!r} with shape {tuple(tensor.shape)}: it "
                f"has to be {tuple(given.shape)}"
            )
    return returned.check()


def find_global_weights(defense: Defense, side: ClientSide | None) -> Mapping[str, Tensor] | None:
    """The tensors of the global model; None where the client's side does not have it."""
    if side is None or side.weights is not None:
        return None if side is None else side.weights
    return None if side.model is None else defense.prepare_model(side.model).state_dict()
