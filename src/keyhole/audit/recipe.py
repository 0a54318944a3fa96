"""How a captured update came about: told by the server's messages, given by the user, or assumed.

Whatever had to be assumed is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from keyhole.audit.plan import Stage
from keyhole.defenses import DEFENSES, Defense, NoDefense
from keyhole.errors import KeyholeError
from keyhole.federation import LocalTraining
from keyhole.models.modes import ClientMode

LEARNING_RATE = ("lr", "learning-rate", "learning_rate", "client-lr", "local-lr")
BATCH_SIZE = ("batch-size", "batch_size", "local-batch-size")
STEPS = ("local-steps", "local_steps", "steps", "num-steps")
EPOCHS = ("local-epochs", "local_epochs", "epochs", "num-epochs")
MOST_ORDERS = 24
"""Orders of images in steps that an attack tries, each as a trial of its own."""
EXAMPLES = ("num-examples", "num_examples", "examples")


@dataclass(frozen=True)
class CapturedRecipe:
    """What is believed of one client's training.

    An attack that unrolls several steps must know which image was in which. Where there are few
    ways it tries them all; else one step of all images is as good a guess as the steps are small.
    """

    examples: int
    steps: int
    lr: float
    batch_size: int
    orders: int
    """In how many ways its images may have been shared out among its steps."""
    mode: ClientMode
    notes: tuple[str, ...]


def recipe_of(told: Mapping[str, Any], stage: Stage) -> CapturedRecipe:
    """From what was ``told`` in the captured messages; what the user set in ``stage`` wins."""
    given, notes = stage.model_fields_set, []
    batch = stage.batch_size if "batch_size" in given else number(told, BATCH_SIZE)
    examples = number(told, EXAMPLES)
    if examples is None:
        examples = batch or 1
        notes.append(f"how many images a client has is not known: taken as {examples:g}")
    if batch is None:
        batch = examples
        notes.append("the batch size is not known: taken as all of a client's images")
    training = LocalTraining(
        lr=1.0, epochs=int(number(told, EPOCHS) or 1), batch_size=max(1, int(batch))
    )
    steps = stage.steps if "steps" in given else number(told, STEPS)
    if steps is None:
        steps = training.steps_of(max(1, int(examples)))
        if number(told, EPOCHS) is None:
            notes.append(f"how long clients train is not known: taken as one epoch, {steps} steps")
    lr = stage.lr if stage.lr is not None else number(told, LEARNING_RATE)
    if lr is None or lr <= 0:
        lr = 1.0
        notes.append("the learning rate is not known: taken as 1, which scales all alike")
    examples, steps = max(1, int(examples)), max(1, int(steps))
    notes += [*not_plain(told, steps), *unknown_defense(told, stage)]
    local = training.local_batch(examples)
    orders = how_many_orders(examples, local)
    once = steps * local == examples and orders <= MOST_ORDERS
    if local < examples and steps > 1 and once:
        notes.append(
            f"which image was in which of the {steps} steps is not known: iterative attacks try "
            f"all {orders} orders"
        )
    elif local < examples and steps > 1:
        notes.append(
            f"which image was in which of the {steps} steps is not known: they are taken for one "
            "large step on all images"
        )
        steps, lr, local = 1, lr * steps, examples
    return CapturedRecipe(
        examples=examples,
        steps=steps,
        lr=float(lr),
        batch_size=local,
        orders=orders if steps > 1 and local < examples else 1,
        mode=mode_of(told, stage),
        notes=tuple(notes),
    )


def how_many_orders(images: int, batch: int) -> int:
    """The ways to share images out among consecutive batches; too many are not counted.

    >>> how_many_orders(4, 2), how_many_orders(10**6, 16) > MOST_ORDERS
    (6, True)
    """
    if images > MOST_ORDERS:
        return images
    ways: int = math.factorial(images) // math.factorial(batch) ** (images // batch)
    return ways


def number(told: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of these that is told and is a number.

    >>> number({"learning-rate": 0.1}, LEARNING_RATE)
    0.1
    """
    values = [told[name] for name in names if name in told]
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    return next((v for v in numbers if math.isfinite(v)), None)


def mode_of(told: Mapping[str, Any], stage: Stage) -> ClientMode:
    said = told.get("client-mode")
    known = said in get_args(ClientMode)
    return stage.client_mode or (cast(ClientMode, said) if known else "train")


def not_plain(told: Mapping[str, Any], steps: int) -> list[str]:
    """Where attacks, which unroll plain SGD, take the clients for something they are not."""
    optimiser = str(told.get("optimiser", told.get("optimizer", "sgd"))).lower()
    if optimiser != "sgd":
        return [f"clients trained by {optimiser}; attacks take their updates for plain SGD's"]
    if steps > 1 and (number(told, ("momentum",)) or 0) > 0:
        return ["clients trained with momentum; attacks unroll plain SGD"]
    return []


def unknown_defense(told: Mapping[str, Any], stage: Stage) -> list[str]:
    """Says that a defense is none of ours."""
    said = str(told.get("defense", "none"))
    if "defenses" in stage.model_fields_set:
        return []
    try:
        DEFENSES.parse(said)
    except KeyholeError:
        return [f"the clients' defense {said!r} is not known here: attackers do without it"]
    return []


def defense_of(told: Mapping[str, Any], stage: Stage) -> Defense:
    """The defense the clients used: as the user says, else as the messages do, else none known."""
    if "defenses" in stage.model_fields_set:
        return DEFENSES.parse(stage.defenses[0])
    try:
        return DEFENSES.parse(str(told.get("defense", "none")))
    except KeyholeError:
        return NoDefense()
