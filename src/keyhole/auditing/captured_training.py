"""How a captured client trained: as messages or the user say, or as has to be assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from keyhole.auditing.claimed_defenses import choose_defense, note_unknown_defense
from keyhole.auditing.plan import Stage
from keyhole.defenses import Defense
from keyhole.errors import BadUpdate
from keyhole.federation import LocalTraining
from keyhole.settings import ClientMode

LEARNING_RATE = ("lr", "learning-rate", "learning_rate", "client-lr", "local-lr")
BATCH_SIZE = ("batch-size", "batch_size", "local-batch-size")
STEPS = ("local-steps", "local_steps", "steps", "num-steps")
EPOCHS = ("local-epochs", "local_epochs", "epochs", "num-epochs")
EXAMPLES = ("num-examples", "num_examples", "examples")
MAX_ORDERS = 24
"""Orders of a client's images that an attack tries, each as a trial."""
MAX_IMAGES, MAX_STEPS, MAX_LR = 1_000_000, 10_000_000, 1e6
"""The largest values that are believed of one client."""
MAX_UNROLLED = 1000
"""Steps that an attack unrolls one by one."""
MAX_NUMBER = 1e300


@dataclass(frozen=True)
class CapturedTraining:
    """What is believed of one client's training, as attacks unroll it.

    An attack that unrolls several steps must know which image was in which step. If there are only
    a few ways, it tries all of them; otherwise the steps are taken for one step on all images,
    which is a good guess if steps are small.
    """

    examples: int
    steps: int
    lr: float
    batch_size: int
    mode: ClientMode
    notes: tuple[str, ...]
    defense: Defense
    """The defense of the update, as far as anybody says."""
    clients_did: str
    """What clients did, in words, before any simplification."""
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
    notes += [*note_optimiser(messages, steps), *note_unknown_defense(messages, stage)]
    if "steps" in stage.model_fields_set:
        epochs = None
    training = CapturedTraining(
        examples=examples,
        steps=steps,
        lr=lr,
        batch_size=batch,
        mode=read_mode(messages, stage),
        notes=tuple(notes),
        defense=choose_defense(messages, stage),
        clients_did=describe_training(messages, steps, batch, lr=stage.lr, epochs=epochs),
    )
    return simplify_steps(training)


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


def simplify_steps(training: CapturedTraining) -> CapturedTraining:
    """The training as attacks can unroll it, with a note on what was simplified."""
    steps, batch, examples = training.steps, training.batch_size, training.examples
    one_step = replace(training, steps=1, lr=training.lr * steps)
    if batch < examples and steps > 1:
        orders = count_orders(examples, batch)
        note = f"which image was in which of the {steps} steps is not known: "
        if steps * batch == examples and orders <= MAX_ORDERS:
            note += f"iterative attacks try all {orders} orders"
            return replace(training, orders=orders, notes=(*training.notes, note))
        note += "they are taken for one large step on all images"
        return replace(one_step, batch_size=examples, notes=(*training.notes, note))
    if steps > MAX_UNROLLED:
        note = f"{steps} steps are more than attacks unroll: they are taken for one large step"
        return replace(one_step, notes=(*training.notes, note))
    return training


def is_known_exactly(training: CapturedTraining) -> bool:
    """Whether a client trained exactly as ``training`` says: plain SGD, nothing simplified."""
    steps = "1 step" if training.steps == 1 else f"{training.steps} steps"
    return training.clients_did.startswith(f"{steps} of sgd, lr {training.lr:g} (")


def check_plausible(value: float | None, most: float, what: str) -> float | None:
    """Returns a number that a client gave; raises if no client can have that many."""
    if value is not None and value > most:
        raise BadUpdate(f"it claims {value:g} {what}, more than {most:g}, which is not believed")
    return value


def count_orders(images: int, batch: int) -> int:
    """The ways to split images into consecutive batches; of many images, a lower bound.

    >>> count_orders(4, 2), count_orders(10**6, 16) > MAX_ORDERS
    (6, True)
    """
    if images > MAX_ORDERS:
        return images
    ways: int = math.factorial(images) // math.factorial(batch) ** (images // batch)
    return ways


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


def read_optimiser(messages: Mapping[str, Any]) -> str:
    return str(messages.get("optimiser", messages.get("optimizer", "sgd"))).lower()


def note_optimiser(messages: Mapping[str, Any], steps: int) -> list[str]:
    """Says where clients did not train by plain SGD, which attacks unroll."""
    optimiser = read_optimiser(messages)
    if optimiser != "sgd":
        return [f"clients trained by {optimiser}; attacks take their updates for plain SGD's"]
    if steps > 1 and (read_number(messages, ("momentum",)) or 0) > 0:
        return ["clients trained with momentum; attacks unroll plain SGD"]
    return []


def describe_training(
    messages: Mapping[str, Any], steps: int, batch: int, *, lr: float | None, epochs: float | None
) -> str:
    """What a client did: its steps, epochs, batches and optimiser, as far as they are known.

    >>> messages = {"lr": 0.01, "momentum": 0.9, "optimiser": "sgd"}
    >>> describe_training(messages, 19, 32, lr=None, epochs=1)
    '19 steps of sgd, lr 0.01, momentum 0.9 (1 epoch in batches of 32)'
    """
    optimiser = read_optimiser(messages)
    known = len(optimiser) < 20 and optimiser.isidentifier()
    rate = lr if lr is not None else read_number(messages, LEARNING_RATE)
    words = [f"{steps} {'step' if steps == 1 else 'steps'} of {optimiser if known else 'unknown'}"]
    words.append("unknown lr" if rate is None else f"lr {rate:g}")
    for name in ("momentum", "weight-decay", "proximal-mu"):
        value = read_number(messages, (name, name.replace("-", "_")))
        if value:
            words.append(f"{name.replace('-', ' ')} {value:g}")
    length = "" if epochs is None else f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'} in "
    return f"{', '.join(words)} ({length}batches of {batch})"
