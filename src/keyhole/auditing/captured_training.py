"""How a captured update came about: told by the server's messages, given by the user, or assumed.

Whatever had to be assumed is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from torch import nn

from keyhole.auditing.plan import Stage
from keyhole.defenses import DEFENSES, Defense, NoDefense
from keyhole.errors import BadUpdate, KeyholeError
from keyhole.federation import LocalTraining
from keyhole.settings import ClientMode
from keyhole.untrusted import printable

LEARNING_RATE = ("lr", "learning-rate", "learning_rate", "client-lr", "local-lr")
BATCH_SIZE = ("batch-size", "batch_size", "local-batch-size")
STEPS = ("local-steps", "local_steps", "steps", "num-steps")
EPOCHS = ("local-epochs", "local_epochs", "epochs", "num-epochs")
MOST_ORDERS = 24
"""Orders of images in steps that an attack tries, each as a trial of its own."""
LONGEST_CLAIM = 300
"""Characters of what a client may say of its defense."""
MOST_IMAGES, MOST_STEPS, MOST_LR = 1_000_000, 10_000_000, 1e6
"""What is believed of one client, at most."""
MOST_UNROLLED = 1000
"""Steps that an attack takes one by one."""
LARGEST = 1e300
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
    defense: Defense
    """What its update went through, as far as anybody says."""
    clients_did: str = ""
    """In words, what clients did as far as it was told, whatever attacks take it for."""


def recipe_of(told: Mapping[str, Any], stage: Stage) -> CapturedRecipe:
    """From what was ``told`` in the captured messages; what the user set in ``stage`` wins."""
    given, notes = stage.model_fields_set, []
    batch = stage.batch_size if "batch_size" in given else number(told, BATCH_SIZE)
    batch = None if batch is None or batch < 1 else batch
    examples = believed(number(told, EXAMPLES), MOST_IMAGES, "images")
    if examples is None or examples < 1:
        examples = believed(batch, MOST_IMAGES, "images in a batch") or 1
        notes.append(f"how many images a client has is not known: taken as {examples:g}")
    if batch is None:
        batch = examples
        notes.append("the batch size is not known: taken as all of a client's images")
    epochs = believed(number(told, EPOCHS), MOST_STEPS, "epochs")
    training = LocalTraining(lr=1.0, epochs=max(1, int(epochs or 1)), batch_size=max(1, int(batch)))
    steps = stage.steps if "steps" in given else believed(number(told, STEPS), MOST_STEPS, "steps")
    if steps is None:
        steps = training.count_steps(max(1, int(examples)))
        if epochs is None:
            notes.append(f"how long clients train is not known: taken as one epoch, {steps} steps")
    lr = stage.lr
    if lr is None:
        lr = believed(number(told, LEARNING_RATE), MOST_LR, "as learning rate")
    if lr is None or lr <= 0:
        lr = 1.0
        notes.append("the learning rate is not known: taken as 1, which scales all alike")
    examples, steps = max(1, int(examples)), max(1, int(steps))
    believed(steps, MOST_STEPS, "steps")
    notes += [*not_plain(told, steps), *unknown_defense(told, stage)]
    local = training.batch_size_for(examples)
    epochs = None if "steps" in given else number(told, EPOCHS)
    clients_did = describe_training(told, steps, local, lr=stage.lr, epochs=epochs)
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
    elif steps > MOST_UNROLLED:
        notes.append(f"{steps} steps are more than attacks unroll: they are taken for one large")
        steps, lr = 1, lr * steps
    return CapturedRecipe(
        examples=examples,
        steps=steps,
        lr=float(lr),
        batch_size=local,
        orders=orders if steps > 1 and local < examples else 1,
        mode=mode_of(told, stage),
        notes=tuple(notes),
        defense=defense_of(told, stage),
        clients_did=clients_did,
    )


def believed(value: float | None, most: float, what: str) -> float | None:
    """A number that a client told; raises where no client can have that many."""
    if value is not None and value > most:
        raise BadUpdate(f"it tells {value:g} {what}, more than {most:g}, which is not believed")
    return value


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
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return next((float(v) for v in numbers if -LARGEST < v < LARGEST), None)


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


def describe_training(
    told: Mapping[str, Any], steps: int, batch: int, *, lr: float | None, epochs: float | None
) -> str:
    """What a client did: its steps, epochs, batches and optimiser, as far as they are known.

    >>> told = {"lr": 0.01, "momentum": 0.9, "optimiser": "sgd"}
    >>> describe_training(told, 19, 32, lr=None, epochs=1)
    '19 steps of sgd, lr 0.01, momentum 0.9 (1 epoch in batches of 32)'
    """
    optimiser = str(told.get("optimiser", told.get("optimizer", "sgd"))).lower()
    known = len(optimiser) < 20 and optimiser.isidentifier()
    rate = lr if lr is not None else number(told, LEARNING_RATE)
    words = [f"{steps} {'step' if steps == 1 else 'steps'} of {optimiser if known else 'unknown'}"]
    words.append("unknown lr" if rate is None else f"lr {rate:g}")
    for name in ("momentum", "weight-decay", "proximal-mu"):
        value = number(told, (name, name.replace("-", "_")))
        if value:
            words.append(f"{name.replace('-', ' ')} {value:g}")
    length = "" if epochs is None else f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'} in "
    return f"{', '.join(words)} ({length}batches of {batch})"


def unknown_defense(told: Mapping[str, Any], stage: Stage) -> list[str]:
    """Says that a defense is none of ours."""
    if "defenses" in stage.model_fields_set or parse_claim(told.get("defense", "none")):
        return []
    said = printable(told["defense"], LONGEST_CLAIM)
    return [
        f"the clients' defense {said!r} is not known here: attackers do without it; name the one "
        "they should know with --defense"
    ]


def defense_of(told: Mapping[str, Any], stage: Stage) -> Defense:
    """The defense the clients used: as the user says, else as the messages do, else none known."""
    if "defenses" in stage.model_fields_set:
        return DEFENSES.parse(stage.defenses[0])
    return parse_claim(told.get("defense", "none")) or NoDefense()


def parse_claim(said: object) -> Defense | None:
    """The defense that a stranger's words name; None where they name none of Keyhole's own.

    >>> str(parse_claim("gaussian(sigma=0.5)")), parse_claim("pruning + gaussian")
    ('gaussian(sigma=0.5)', None)
    """
    text = str(said)
    name = text.partition("(")[0].strip()
    if len(text) > LONGEST_CLAIM or name not in DEFENSES.names():
        return None
    try:
        return DEFENSES.parse_builtin(text)
    except KeyholeError:
        return None


def believe_claims(
    told: Mapping[str, Any], client: Mapping[str, Any], stage: Stage, model: nn.Module
) -> tuple[dict[str, Any], list[str]]:
    """What is ``told`` with the defense that a client claims, and what a reader should know of it.

    A client may claim what it likes: a defense that this model cannot have is not believed.
    """
    said = client.get("defense")
    if said is None or "defenses" in stage.model_fields_set:
        return dict(told), []
    claim = parse_claim(said)
    if claim is None:
        return {**told, "defense": said}, []  # unknown_defense() says so
    if claim.incompatibilities(model) or claim.prepare_model(model) is not model:
        words = f"its clients claim {claim}, which does not fit the model: attackers do without it"
        return {**told, "defense": "none"}, [words]
    return {**told, "defense": said}, [
        f"the defense is {claim}, as its clients claim: nobody can check that; --defense overrides"
    ]
