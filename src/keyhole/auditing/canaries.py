"""Canaries: records whose gradient is one single value, which the server looks for in updates.

A canary that is in has a gradient of ``norm`` in one weight of the model and of zero elsewhere; one
that is out has a gradient of zero. No image has such a gradient: a model around the client's
own computes it, and a defense meets it at the doors where it meets images' gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.auditing.epsilon_plan import EpsilonPlan
from keyhole.data import ImageSet
from keyhole.defenses import Budget, ClientSide, Defense
from keyhole.defenses.base import uses_door
from keyhole.federation.client import compute_local_update
from keyhole.federation.training import LocalTraining
from keyhole.models.modes import find_trained_parameters
from keyhole.progress import Progress
from keyhole.seeds import derive, generator
from keyhole.update import Update

MOST_VALUES = 1 << 26
"""Values of all canaries' gradients that a client holds at once."""
ROOM = (1, 1, 1)
"""The shape of a canary: the number of its weight, from 1; 0: it is out."""


class CanaryModel(nn.Module):
    """A model that takes canaries beside images.

    A canary's first logit is ``scale * (w - constant)`` with the canary's weight w, all others are
    0. The logit is 0 whatever w is, so that cross-entropy for the first class has the gradient
    ``-scale * (1 - 1/classes)`` in w, in every step.

    Args:
        model: The client's model.
        places: Which of all trained weights belongs to each canary, ``[m]``.
        norm: The norm of a canary's gradient.
        classes: How many logits there are.
    """

    places: Tensor

    def __init__(self, model: nn.Module, places: Tensor, norm: float, classes: int) -> None:
        super().__init__()
        self.model = model
        self.trained = tuple(find_trained_parameters(model))
        self.register_buffer("places", places, persistent=False)
        self.classes, self.scale = classes, norm / (1 - 1 / classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of images ``[B, C, H, W]``, or of canaries ``[B, 1, 1, 1]``.

        Args:
            inputs: One or the other.
        """
        if tuple(inputs.shape[1:]) != ROOM:
            logits: Tensor = self.model(inputs)
            return logits
        number = inputs.flatten(1)[:, 0].round().long()
        named = dict(self.model.named_parameters())
        weights = torch.cat([named[name].flatten() for name in self.trained])
        own = weights[self.places[(number - 1).clamp(min=0)]]
        logit = self.scale * (own - own.detach()) * (number > 0)
        return F.pad(logit[:, None], (0, self.classes - 1))


@dataclass(frozen=True)
class PlantedCanaries:
    """What the server saw of all canaries.

    Args:
        scores: The change of each canary's weight; larger if it seems to be in.
        inside: Whether each canary was in.
        budget: What the defense claims to have spent; None: it claims nothing.
    """

    scores: tuple[float, ...]
    inside: tuple[bool, ...]
    budget: Budget | None


def plant_canaries(
    defense: Defense, model: nn.Module, data: ImageSet, plan: EpsilonPlan, progress: Progress
) -> PlantedCanaries:
    """Lets clients train on canaries under a defense, and reads what each canary changed.

    A defense of every single gradient gets as many canaries in one batch as memory has room for.
    Under any other each canary is a client of its own.

    Args:
        defense: The defense.
        model: The model that clients train.
        data: Images that a defense may look at; they are not trained on.
        plan: How many canaries there are, how long they are, and how clients train.
        progress: Told how many canaries are done.
    """
    prepared = defense.prepare_model(model)
    places = choose_places(prepared, plan.canaries, plan.seed)
    planted = CanaryModel(prepared, places, plan.norm, len(data.classes))
    defense.validate(planted)
    coins = torch.rand(plan.canaries, generator=generator(plan.seed, "coins")) < 0.5
    sizes = sum(p.numel() for p in find_trained_parameters(prepared).values())
    own = max(1, MOST_VALUES // sizes) if uses_door(defense, "on_step") else 1
    scores: list[float] = []
    budget: Budget | None = None
    progress.begin(plan.canaries)
    for client, numbers in enumerate(torch.split(torch.arange(plan.canaries), own)):
        codes = (numbers + 1) * coins[numbers]
        update, claimed = train_on_canaries(defense, planted, codes, data, plan, client)
        budget = budget or claimed
        flat = torch.cat([update.change[f"model.{n}"].flatten() for n in planted.trained])
        scores += (flat[places[numbers]] * len(numbers)).tolist()
        progress.advance(len(numbers))
    return PlantedCanaries(tuple(scores), tuple(coins.tolist()), budget)


def choose_places(model: nn.Module, canaries: int, seed: int) -> Tensor:
    """A weight for each canary, all different where there are enough; every tensor gets as many.

    A defense that leaves one tensor out is then seen, however small that tensor is.
    """
    sizes = [p.numel() for p in find_trained_parameters(model).values()]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    draw = generator(seed, "places")
    chosen: list[int] = []
    wanted = -(-canaries // len(sizes))
    for start, size in zip(starts, sizes, strict=True):
        chosen += (start + torch.randperm(size, generator=draw)[:wanted]).tolist()
    rest = canaries - len(chosen)
    if rest > 0:
        taken = torch.zeros(sum(sizes), dtype=torch.bool)
        taken[chosen] = True
        free = (~taken).nonzero().flatten()
        chosen += free[torch.randperm(len(free), generator=draw)[:rest]].tolist()
    order = torch.randperm(len(chosen), generator=draw)
    return torch.tensor(chosen)[order][torch.arange(canaries) % len(chosen)]


def train_on_canaries(
    defense: Defense,
    planted: CanaryModel,
    codes: Tensor,
    data: ImageSet,
    plan: EpsilonPlan,
    client: int,
) -> tuple[Update, Budget | None]:
    """What one client sends of its canaries, and the budget that its defense claims."""
    side = build_side(planted, data, len(codes), generator(plan.seed, "client", client))
    local = defense.on_model(planted, side)
    update = compute_local_update(
        local,
        codes.float().view(-1, *ROOM),
        torch.zeros(len(codes), dtype=torch.long),
        training=LocalTraining(steps=plan.steps, lr=plan.lr, mode=plan.client_mode),
        seed=derive(plan.seed, "batches", client),
        step_gradient=lambda network, x, y: defense.on_step(network, x, y, side),
    )
    sent = defense.on_update(update.check(), side)
    return sent, defense.claimed_budget(sent, side.telemetry)


def build_side(
    planted: CanaryModel, data: ImageSet, count: int, draw: torch.Generator
) -> ClientSide:
    """What the defense gets beside the canaries: as many copies of one image as there are."""
    indices: Sequence[int] = [0]
    return ClientSide(
        draw,
        planted,
        data.images(indices).expand(count, -1, -1, -1),
        data.labels[list(indices)].expand(count),
        normalise=data.normalise,
        weights=planted.state_dict(),
    )
