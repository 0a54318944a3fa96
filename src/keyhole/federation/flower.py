"""Flower: defenses as client mods, and strategies with the eyes of a curious server.

The only file that imports ``flwr`` (``pip install 'keyhole[flower]'``). On the client::

    app = ClientApp(mods=[as_mod(Gaussian(sigma=1e-3))])

    @app.train()
    def train(message, context):
        model = protected_model(model)          # for defenses that act on the model,
        images = protected_images(images)       # on images, or on every step's gradient
        ...

A defense that calibrates its noise to the training, or looks at the client's own images (``tip``,
``dp``, ``agp``), must be told of them, in the training function as well::

        tell_defense(model, images, labels, steps=32, lr=0.001, batch_size=32, normalise=normalise)

``local_training`` makes all of these calls. And on the server::

    strategy = curious(FedAvg)(capture="captured", fraction_train=1.0)
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise ImportError("Flower is not installed: pip install 'keyhole[flower]'") from error

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import ClientSide, Defense, unpredictable
from keyhole.defenses.calibrated import CalibratedNoise
from keyhole.errors import DoesNotFit
from keyhole.federation.capture import LIMIT_GB, Recorder, Reply
from keyhole.federation.client import Later, local_update
from keyhole.federation.fedavg import client_generator
from keyhole.federation.training import LocalTraining
from keyhole.update import Update

CallNext = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, CallNext], Message]
Tensors = dict[str, Tensor]

MEMORY = "keyhole-memory"
"""Where a node's state keeps what its defense remembers."""
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


_shield: ContextVar[Shield | None] = ContextVar("keyhole shield", default=None)


def protected_images(images: Tensor) -> Tensor:
    """Images ``[n, C, H, W]`` in [0, 1] through the image door of the mod's defense, if any."""
    shield = _shield.get()
    if shield is None:
        return images
    shield.passed.add("on_images")
    shield.side.images = images
    return shield.defense.on_images(images, shield.side)


def protected_model(model: nn.Module) -> nn.Module:
    """The model that the client trains, through the model door of the mod's defense, if any."""
    shield = _shield.get()
    if shield is None:
        return model
    shield.passed.add("on_model")
    shield.side.model = model
    return shield.defense.on_model(model, shield.side)


def protected_step(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor] | None:
    """The defense's own gradient of one local step; None: take the plain one."""
    shield = _shield.get()
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
    shield = _shield.get()
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
    shield = _shield.get()
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


def as_mod(defense: Defense, *, seed: int | None = None) -> Mod:
    """A client mod that applies ``defense`` to every training message.

    With a ``seed`` the draws are those of Keyhole's own loop for the node's ``partition-id`` and
    the server's round; without one nobody can repeat them. A client whose training function passes
    by a door of the defense sends nothing: an undefended update never leaves.
    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        if not is_training(message):
            return call_next(message, context)
        start = weights_of(message)
        side = ClientSide(_generator(message, context, seed), memory=recalled(context))
        shield = Shield(defense, side)
        token = _shield.set(shield)
        try:
            reply = call_next(message, context)
        finally:
            _shield.reset(token)
        if reply.has_error():
            return reply
        check_doors(shield)
        update = as_told(update_of(start, reply), shield, start)
        sent = defense.on_update(update, side)
        if sent is not update:
            put_weights(reply, moved(start, sent))
        remember(context, side.memory)
        return reply

    return mod


def before_upload(check: Callable[[Update, Tensors, Context], str | None]) -> Mod:
    """A client mod that asks ``check`` about every update; a reason it returns holds it back.

    ``check`` gets the update, the global weights and the node's context.
    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        reply = call_next(message, context)
        if not is_training(message) or reply.has_error():
            return reply
        start = weights_of(message)
        reason = check(update_of(start, reply), start, context)
        if reason is not None:
            raise DoesNotFit(f"the update is withheld: {reason}")
        return reply

    return mod


def curious(strategy: type[Any]) -> type[Any]:
    """The strategy class, with eyes: it writes down every round and is otherwise as it was.

    The class takes two or three keywords more: ``capture``, the folder; ``limit_gb``, the disk it
    may use; ``about``, what a reader should know of the run. Wrap the outermost strategy: inside a
    server-side differential privacy wrapper only clipped updates are seen.
    """
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise DoesNotFit("curious() takes a class of flwr.serverapp.strategy, such as FedAvg")

    class Curious(strategy):  # type: ignore[misc]
        def __init__(
            self,
            *args: Any,
            capture: str | Path,
            limit_gb: float = LIMIT_GB,
            about: dict[str, Any] | None = None,
            **keywords: Any,
        ) -> None:
            super().__init__(*args, **keywords)
            self.recorder = Recorder(Path(capture), limit_gb=limit_gb, about=about)
            self.sent: Tensors = {}
            self.told: dict[str, Any] = {}

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            self.sent = arrays.to_torch_state_dict()
            messages = super().configure_train(server_round, arrays, config, grid)
            self.told = dict(config)  # with what the strategy has added to it
            return messages  # type: ignore[no-any-return]

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            seen = list(replies)
            self.recorder.round(
                server_round,
                self.sent,
                [reply_of(self.sent, message) for message in seen if not message.has_error()],
                config=self.told,
                lost={
                    str(message.metadata.src_node_id): str(message.error.reason)
                    for message in seen
                    if message.has_error()
                },
            )
            return super().aggregate_train(server_round, seen)

    Curious.__name__ = Curious.__qualname__ = f"Curious{strategy.__name__}"
    return Curious


def reply_of(sent: Tensors, message: Message) -> Reply:
    """One client's answer as the server saw it."""
    said: dict[str, Any] = {}
    for record in message.content.metric_records.values():
        said.update(record)
    examples = said.get("num-examples")
    return Reply(
        node=str(message.metadata.src_node_id),
        change=update_of(sent, message).change,
        examples=None if examples is None else int(examples),
        metrics=said,
    )


def is_training(message: Message) -> bool:
    kind = str(message.metadata.message_type)
    return kind.split(".")[0] == MessageType.TRAIN and bool(message.content.array_records)


def weights_of(message: Message) -> Tensors:
    """The tensors of a message that carries one set of them."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise DoesNotFit(f"a training message carries one ArrayRecord; this one has {len(records)}")
    return dict(records[0].to_torch_state_dict())


def put_weights(message: Message, weights: Tensors) -> None:
    (key,) = message.content.array_records
    message.content[key] = ArrayRecord(weights)


def update_of(start: Tensors, message: Message) -> Update:
    """What a reply changes; integers, which no defense touches, and strangers as they are."""
    end = weights_of(message)
    change = {
        name: tensor - start[name].to(tensor) if name in start else tensor
        for name, tensor in end.items()
    }
    said = {k: v for r in message.content.metric_records.values() for k, v in r.items()}
    examples = said.get("num-examples", 1)
    return Update(change, examples=int(examples) if isinstance(examples, int | float) else 1)


def moved(start: Tensors, update: Update) -> Tensors:
    """The weights that an update leads to, of the types that the client sent."""
    return {
        name: start[name].to(change) + change if name in start else change
        for name, change in update.change.items()
    }


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


def recalled(context: Context) -> dict[str, Any]:
    """What this node's defense kept in earlier rounds."""
    kept = context.state.config_records.get(MEMORY)
    return {} if kept is None else dict(json.loads(str(kept["json"])))


def remember(context: Context, memory: dict[str, Any]) -> None:
    context.state[MEMORY] = ConfigRecord({"json": json.dumps(memory)})


def _generator(message: Message, context: Context, seed: int | None) -> torch.Generator:
    if seed is None:
        return unpredictable()
    told = {k: v for r in message.content.config_records.values() for k, v in r.items()}
    partition = context.node_config.get("partition-id")
    if partition is None or "server-round" not in told:
        raise DoesNotFit(
            "a seeded mod needs the node's partition-id and the server's round: leave out the seed"
        )
    return client_generator(seed, int(partition), int(str(told["server-round"])))
