"""How a captured client trained: as messages or the user say, or as has to be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from keyhole.attacks.matching.problem import MAX_UNROLLED
from keyhole.auditing.claimed_defenses import choose_defense, note_unknown_defense
from keyhole.auditing.plan import Stage
from keyhole.auditing.step_orders import MAX_ORDERS, count_orders, note_orders
from keyhole.defenses import Defense
from keyhole.errors import BadUpdate, KeyholeError
from keyhole.federation import LocalTraining
from keyhole.optimisers import (
    OPTIMISERS,
    PLAIN_SGD,
    LocalOptimiser,
    describe_settings,
    read_optimiser,
)
from keyhole.parameters import parameter_names
from keyhole.settings import ClientMode

LEARNING_RATE = ("lr", "learning-rate", "learning_rate", "client-lr", "local-lr")
BATCH_SIZE = ("batch-size", "batch_size", "local-batch-size")
STEPS = ("local-steps", "local_steps", "steps", "num-steps")
EPOCHS = ("local-epochs", "local_epochs", "epochs", "num-epochs")
EXAMPLES = ("num-examples", "num_examples", "examples")
MAX_IMAGES, MAX_STEPS, MAX_LR = 1_000_000, 10_000_000, 1e6
"""The largest values that are believed of one client."""
MAX_OPTIMISER = 200
"""Characters of the text by which a message names the optimiser."""
MAX_NUMBER = 1e300


@dataclass(frozen=True)
class CapturedTraining:
    """What is believed of one client's training."""

    examples: int
    steps: int
    lr: float
    batch_size: int
    mode: ClientMode
    notes: tuple[str, ...]
    defense: Defense
    """The defense of the update, as far as anybody says."""
    clients_did: str
    """What clients did, in words."""
    optimiser: LocalOptimiser | None = PLAIN_SGD
    """How clients turned gradients into steps; None: unknown."""
    orders: int = 1
    """The number of ways in which the images may have been split among the steps."""
    clients: int = 1
    """How many clients the update is the mean of; ``examples`` and ``batch_size`` are of all."""


def infer_training(messages: Mapping[str, Any], stage: Stage) -> CapturedTraining:
    """Infers a client's training from captured messages; what the user set in ``stage`` wins."""
    notes: list[str] = []
    examples, batch = infer_sizes(messages, stage, notes)
    epochs = check_plausible(read_number(messages, EPOCHS), MAX_STEPS, "epochs")
    local = LocalTraining(lr=1.0, epochs=max(1, int(epochs or 1)), batch_size=batch)
    steps = infer_steps(messages, stage)
    if steps is None:
        steps = local.count_steps(examples)
        check_plausible(steps, MAX_STEPS, "steps")
        if epochs is None:
            notes.append(f"how long clients train is not known: taken as one epoch, {steps} steps")
    lr = infer_lr(messages, stage, notes)
    batch = local.batch_size_for(examples)
    optimiser = infer_optimiser(messages, stage)
    orders = count_orders(examples, batch, steps)
    notes += [
        *note_optimiser(messages, optimiser, steps),
        *note_unknown_defense(messages, stage),
        *(note_orders(orders, steps) if optimiser is not None else ()),
        *note_many_steps(steps, orders),
    ]
    if "steps" in stage.model_fields_set:
        epochs = None
    return CapturedTraining(
        examples=examples,
        steps=steps,
        lr=lr,
        batch_size=batch,
        mode=read_mode(messages, stage),
        notes=tuple(notes),
        defense=choose_defense(messages, stage),
        clients_did=describe_training(
            messages, steps, batch, optimiser=optimiser, lr=stage.lr, epochs=epochs
        ),
        optimiser=optimiser,
        orders=orders,
    )


def infer_sum_training(messages: Mapping[str, Any], stage: Stage, clients: int) -> CapturedTraining:
    """Infers the training behind the mean of several clients' updates, as of one client."""
    examples = read_number(messages, EXAMPLES) or 0
    if clients < 2 or examples < clients or examples % clients:
        training = infer_training(messages, stage)
        note = f"the {examples:g} images of {clients} clients are not divided equally: they are "
        note += "taken for one client's"
        return training if clients < 2 else replace(training, notes=(*training.notes, note))
    own = {name: value for name, value in messages.items() if name not in EXAMPLES}
    training = infer_training({**own, EXAMPLES[0]: examples // clients}, stage)
    return replace(
        training,
        examples=training.examples * clients,
        batch_size=training.batch_size * clients,
        orders=1 if training.orders == 1 else max(training.orders**2, MAX_ORDERS + 1),
        clients=clients,
    )


def infer_sizes(messages: Mapping[str, Any], stage: Stage, notes: list[str]) -> tuple[int, int]:
    """A client's number of images, and the images of one batch."""
    given = "batch_size" in stage.model_fields_set
    batch = stage.batch_size if given else read_number(messages, BATCH_SIZE)
    batch = None if batch is None or batch < 1 else batch
    examples = check_plausible(read_number(messages, EXAMPLES), MAX_IMAGES, "images")
    if examples is None or examples < 1:
        examples = check_plausible(batch, MAX_IMAGES, "images in a batch") or 1
        notes.append(f"how many images a client has is not known: taken as {examples:g}")
    if batch is None:
        batch = examples
        notes.append("the batch size is not known: taken as all of a client's images")
    return int(examples), int(batch)


def infer_steps(messages: Mapping[str, Any], stage: Stage) -> int | None:
    """A client's number of local steps; None if neither the user nor a message gives it."""
    given = "steps" in stage.model_fields_set
    steps = stage.steps if given else read_number(messages, STEPS)
    steps = check_plausible(steps, MAX_STEPS, "steps")
    return None if steps is None else max(1, int(steps))


def infer_lr(messages: Mapping[str, Any], stage: Stage, notes: list[str]) -> float:
    lr = stage.lr
    if lr is None:
        lr = check_plausible(read_number(messages, LEARNING_RATE), MAX_LR, "as learning rate")
    if lr is None or lr <= 0:
        lr = 1.0
        notes.append("the learning rate is not known: taken as 1, which scales all alike")
    return float(lr)


def note_many_steps(steps: int, orders: int) -> list[str]:
    """Says so where steps are too many to be unrolled, and no other note does."""
    if orders > 1 or steps <= MAX_UNROLLED:
        return []
    return [f"{steps} steps are more than attacks unroll: they are taken for one large step"]


def is_known_exactly(training: CapturedTraining) -> bool:
    """Whether a client trained by plain SGD, with a learning rate that it gave."""
    steps = "1 step" if training.steps == 1 else f"{training.steps} steps"
    return training.clients_did.startswith(f"{steps} of sgd, lr {training.lr:g} (")


def check_plausible(value: float | None, most: float, what: str) -> float | None:
    """Returns a number that a client gave; raises if no client can have that many."""
    if value is not None and value > most:
        raise BadUpdate(f"it claims {value:g} {what}, more than {most:g}, which is not believed")
    return value


def read_number(messages: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of ``names`` whose value is a number.

    >>> read_number({"learning-rate": 0.1}, LEARNING_RATE)
    0.1
    """
    values = [messages[name] for name in names if name in messages]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return next((float(v) for v in numbers if -MAX_NUMBER < v < MAX_NUMBER), None)


def read_mode(messages: Mapping[str, Any], stage: Stage) -> ClientMode:
    """The client mode that the user or a message gives; ``train`` otherwise."""
    claimed = messages.get("client-mode")
    known = claimed in get_args(ClientMode)
    return stage.client_mode or (cast(ClientMode, claimed) if known else "train")


def name_optimiser(messages: Mapping[str, Any]) -> str:
    """The name that messages give the optimiser, in small letters."""
    return str(messages.get("optimiser", messages.get("optimizer", "sgd"))).lower()


def infer_optimiser(messages: Mapping[str, Any], stage: Stage) -> LocalOptimiser | None:
    """The clients' optimiser: as the user says, or as messages say; None if it is not known.

    >>> str(infer_optimiser({"optimizer": "SGD", "momentum": 0.5, "nesterov": True}, Stage()))
    'sgd(momentum=0.5, nesterov=True)'
    """
    if "optimiser" in stage.model_fields_set:
        return read_optimiser(stage.optimiser)
    text = name_optimiser(messages)
    if len(text) > MAX_OPTIMISER:
        return None
    try:
        if not text.isidentifier():
            return OPTIMISERS.parse(text)
        kind = OPTIMISERS[text]
        found = {name: read_setting(messages, name) for name in parameter_names(kind)}
        given = {name: value for name, value in found.items() if value is not None}
        return OPTIMISERS.make(kind, text, given)
    except KeyholeError:
        return None


def read_setting(messages: Mapping[str, Any], name: str) -> float | bool | None:
    """A number or a truth value of this name, with a line below or between its words."""
    value = messages.get(name.replace("_", "-"), messages.get(name))
    if isinstance(value, bool):
        return value
    return read_number(messages, (name.replace("_", "-"), name))


def note_optimiser(
    messages: Mapping[str, Any], optimiser: LocalOptimiser | None, steps: int
) -> list[str]:
    """Says where attacks cannot know how gradients became steps."""
    if optimiser is not None:
        return []
    name = name_optimiser(messages)
    shown = name if len(name) < 20 and name.isidentifier() else "an unknown optimiser"
    taken = "one large step of plain SGD" if steps > 1 else "plain SGD's"
    return [f"clients trained by {shown}; attacks take their updates for {taken}"]


def describe_training(
    messages: Mapping[str, Any],
    steps: int,
    batch: int,
    *,
    optimiser: LocalOptimiser | None,
    lr: float | None,
    epochs: float | None,
) -> str:
    """What a client did: its steps, epochs, batches and optimiser, as far as they are known.

    >>> messages, sgd = {"lr": 0.01}, read_optimiser("sgd(momentum=0.9)")
    >>> describe_training(messages, 19, 32, optimiser=sgd, lr=None, epochs=1)
    '19 steps of sgd, lr 0.01, momentum 0.9 (1 epoch in batches of 32)'
    """
    name = name_optimiser(messages)
    if optimiser is not None:
        name = optimiser.name
    elif len(name) >= 20 or not name.isidentifier():
        name = "unknown"
    rate = lr if lr is not None else read_number(messages, LEARNING_RATE)
    words = [f"{steps} {'step' if steps == 1 else 'steps'} of {name}"]
    words.append("unknown lr" if rate is None else f"lr {rate:g}")
    words += describe_settings(optimiser)
    proximal = read_number(messages, ("proximal-mu", "proximal_mu"))
    words += [f"proximal mu {proximal:g}"] if proximal else []
    length = "" if epochs is None else f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'} in "
    return f"{', '.join(words)} ({length}batches of {batch})"
