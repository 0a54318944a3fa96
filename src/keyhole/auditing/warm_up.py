"""Federated training before the attack: the global model as it is after some rounds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from keyhole.auditing.plan import Stage
from keyhole.data import ImageSet
from keyhole.defenses import Defense
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.federation.backends import LoopTrainer
from keyhole.federation.partition import shuffle
from keyhole.federation.rounds import Federation
from keyhole.seeds import generator
from keyhole.settings import ClientMode

CLIENTS = 10
"""Clients of every round."""
IMAGES = 2000
"""Images that they share, at most."""
TESTED = 500
"""Other images on which the model is evaluated, at most."""
LR, BATCH_SIZE = 0.03, 16
"""How these clients train where the stage does not say it."""


@dataclass(frozen=True)
class WarmedUp:
    """A model after some rounds.

    Args:
        model: The model.
        note: How it was trained, in words.
    """

    model: nn.Module
    note: str


def warm_up(
    model: nn.Module,
    stage: Stage,
    data: ImageSet,
    *,
    defense: Defense,
    mode: ClientMode,
    victims: Sequence[Sequence[int]],
    seed: int,
) -> WarmedUp:
    """Trains a copy of a model for the rounds that a stage asks for.

    The clients have none of the victims' images. They train as the stage says, in batches of 16
    and with a learning rate of .03 where it does not.

    Args:
        model: The model as it is at first.
        stage: What is asked for.
        data: The images.
        defense: The defense of these clients.
        mode: The mode in which clients train.
        victims: The images of the clients that are attacked later.
        seed: Seed of all random numbers.
    """
    taken = {index for batch in victims for index in batch}
    free = [i for i in range(len(data)) if i not in taken]
    if len(free) < 2 * CLIENTS:
        raise DoesNotFit(
            f"warm-up: {len(free)} images are left besides the victims', too few for {CLIENTS} "
            "clients: pass fewer --victims, or --weights of a trained model"
        )
    order = shuffle(free, generator(seed, "warm-up"))
    held_out = max(1, min(TESTED, len(order) // 5))
    tested, trained = order[:held_out], order[held_out : held_out + IMAGES]
    federation = Federation(
        model=copy.deepcopy(model),
        data=data,
        shares=[trained[client::CLIENTS] for client in range(CLIENTS)],
        test=(data, tested),
        training=plan_rounds(stage, mode),
        defense=defense,
        seed=seed,
        backend=LoopTrainer(),
    )
    last = [
        federation.run_round(number, keep_updates=False) for number in range(1, stage.warm_up + 1)
    ][-1]
    if not all(torch.isfinite(weight).all() for weight in federation.model.parameters()):
        raise DoesNotFit("warm-up: the weights became infinite: pass a smaller --lr")
    rounds = "1 round" if stage.warm_up == 1 else f"{stage.warm_up} rounds"
    under = "" if defense.name == "none" else f" under {defense.name}"
    note = (
        f"the model was trained for {rounds} first, by {CLIENTS} clients with {len(trained)} other "
        f"images{under}: accuracy {last.accuracy:.1%} on {held_out} more"
    )
    return WarmedUp(federation.model, note)


def plan_rounds(stage: Stage, mode: ClientMode) -> LocalTraining:
    """How clients train in those rounds: one epoch each, where the stage names no epochs."""
    return LocalTraining(
        lr=stage.lr or LR,
        mode=mode,
        epochs=stage.epochs or 1,
        batch_size=stage.local_batch_size or BATCH_SIZE,
        optimiser=stage.optimiser,
    )
