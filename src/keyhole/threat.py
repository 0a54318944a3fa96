"""What the attacker is given. The truth cannot be reached from here.

An :class:`Observation` is what the server saw: the model it sent out and the update it got back.
Its :class:`Knowledge` is what else the attacker is assumed to know. Both consist of plain values
and detached copies: no autograd graph, no hook, no generator leads back to the client.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.defenses.base import Defense
from keyhole.defenses.capabilities import Capability
from keyhole.models.modes import find_trained_parameters
from keyhole.optimisers import PLAIN_SGD, LocalOptimiser
from keyhole.settings import ClientMode
from keyhole.update import Update, check_type


class Attacker(StrEnum):
    """Who attacks: the verdict on a defense is the worst of the three."""

    NAIVE = "naive"
    """does not know that there is a defense"""
    PAPER = "paper"
    """attacks as the defense's or the attack's paper did"""
    ADAPTIVE = "adaptive"
    """knows the defense and its parameters, and uses that"""


@dataclass(frozen=True)
class Knowledge:
    """What the attacker knows besides what the server saw.

    Args:
        shape: Shape of one model input, ``(channels, height, width)``.
        classes: Number of classes.
        mean: Mean of each channel by which pixels in [0, 1] are normalised. Mean and deviation
            belong to the training recipe, which server and clients share.
        std: Standard deviation of each channel by which pixels are normalised.
        batch_size: Images in one batch of the client; under secure aggregation, of all clients.
        clients: How many clients the update is the mean of.
        labels: The client's labels ``[n]``; None: unknown.
        masks: The client's own dropout masks, one bool tensor ``[steps * batch, ...]`` per
            dropout layer; None: unknown.
        intercepted: The images as they were seen on their way to the client, one tensor
            ``[n, C, H, W]`` per version; None: none was seen.
        client_mode: Whether the clients' layers drop and use batch statistics (``"train"``).
        optimiser: How clients turn gradients into steps; None: unknown.
        orders: In how many ways the client may have divided its images among its local steps; 1:
            one batch after the other, in the order of ``labels``.
        trained: The parameters that clients train, whether they report them or not; None: all.
        defense: The clients' defense; None: the attacker does not know it.
        adaptive: Whether the attacker uses what the defense declares; False: it attacks as in
            the paper.
        checkpoint_epoch: Epochs for which the global model had been trained.
        rounds: How often the server saw an update of the client on the same images.
        altered_model: What a malicious server changed in the model before it sent it out, in
            words; None: the server is honest.
    """

    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int = 1
    clients: int = 1
    labels: Tensor | None = None
    masks: tuple[Tensor, ...] | None = None
    intercepted: tuple[Tensor, ...] | None = None
    client_mode: ClientMode = "train"
    optimiser: LocalOptimiser | None = PLAIN_SGD
    orders: int = 1
    trained: frozenset[str] | None = None
    defense: Defense | None = None
    adaptive: bool = True
    checkpoint_epoch: int = 0
    rounds: int = 1
    altered_model: str | None = None

    def box(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The least and greatest model input a pixel can have, each ``[C, 1, 1]``.

        Args:
            like: A tensor of the type and on the device that the bounds shall have.
        """
        mean = torch.tensor(self.mean).to(like).view(-1, 1, 1)
        std = torch.tensor(self.std).to(like).view(-1, 1, 1)
        return (0 - mean) / std, (1 - mean) / std

    def defense_with(self, capability: Capability) -> Defense | None:
        """The known defense if it declares ``capability`` and the attacker adapts to it.

        Args:
            capability: What the attack wants to know about the defense.
        """
        if self.defense is None or not self.adaptive or capability not in self.defense.declares:
            return None
        return self.defense

    def summary(self) -> dict[str, Any]:
        """What was known, in plain words and values, for the record of a finding."""
        return {
            "labels": self.labels is not None,
            "masks": self.masks is not None,
            "intercepted": self.intercepted is not None,
            "client_mode": self.client_mode,
            "batch_size": self.batch_size,
            "input": list(self.shape),
            "normalisation": True,
            "defense": None if self.defense is None else str(self.defense),
            "checkpoint_epoch": self.checkpoint_epoch,
            "rounds": self.rounds,
            "server": "honest but curious" if self.altered_model is None else "malicious",
            "altered_model": self.altered_model,
        }


@dataclass(frozen=True)
class PublicKnowledge:
    """What a server knows before any update has come back: a malicious one lays its trap by it.

    Args:
        shape: The images' shape, ``(C, H, W)``.
        classes: How many classes there are.
        images: Public images as model inputs, ``[n, C, H, W]``: none of them is a client's.
        batch_size: How many images each client trains on.
        steps: How many local steps clients take.
        clients: How many clients' updates the server gets as one sum.
        lr: The learning rate that it tells clients; None: it does not know theirs.
        step_images: How many images each local step takes; None: all of a client's.
    """

    shape: tuple[int, int, int]
    classes: int
    images: Tensor
    batch_size: int = 1
    steps: int = 1
    clients: int = 1
    lr: float | None = None
    step_images: int | None = None


@dataclass(frozen=True)
class SeenRound:
    """An earlier round of a client on the same images, with the global weights of that round.

    Args:
        number: The round's number.
        weights: The parameters and buffers of the global model that the server sent.
        update: The update that the client sent back.
    """

    number: int
    weights: Mapping[str, Tensor]
    update: Update


@dataclass(frozen=True)
class Observation:
    """What the server saw of one client: the global model it sent, the update it received.

    :meth:`Server.receive` makes observations and strips everything else off them.

    Args:
        model: The global model that the server sent out.
        update: The update that the client sent back.
        knowledge: What else the attacker knows.
        earlier: Other updates of the client, on the same images and from the same model.
        client: The server's number for the client; it seeds an attack's first guesses.
        rounds: Earlier rounds of the client, on the same images and each from its own global model.
    """

    model: nn.Module
    update: Update
    knowledge: Knowledge
    earlier: tuple[Update, ...] = ()
    client: int = 0
    rounds: tuple[SeenRound, ...] = ()

    def in_round(self, number: int) -> Observation:
        """Returns what the server observed of the client in an earlier round.

        Args:
            number: The number of one of ``rounds``.
        """
        seen = next(each for each in self.rounds if each.number == number)
        model = copy.deepcopy(self.model)
        state = {**model.state_dict(), **seen.weights}
        model.load_state_dict(state)
        return replace(self, model=model, update=seen.update, earlier=(), rounds=())


class Server:
    """The curious server: sends one global model out and looks at the updates that come back.

    All its observations share one copy of the model: weights only, evaluation mode, no gradients.

    Args:
        model: The global model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.reported = frozenset(find_trained_parameters(model))
        """The parameters that clients train and report."""
        self.sent = copy.deepcopy(model).eval().requires_grad_(False)
        for parameter in self.sent.parameters():
            parameter.grad = None
        for module in self.sent.modules():
            drop_hooks(module)

    def receive(
        self,
        update: Update,
        knowledge: Knowledge,
        *,
        client: int = 0,
        earlier: Sequence[Update] = (),
        rounds: Sequence[SeenRound] = (),
    ) -> Observation:
        """Observes an update, detached from the client's computation.

        Args:
            update: The update that the client sent.
            knowledge: What else the attacker knows.
            client: The server's number for the client.
            earlier: Other updates of the client, on the same images and from the same model.
            rounds: Earlier rounds of the client, on the same images.
        """
        before = tuple(self._detach(each) for each in earlier)
        seen = tuple(replace(each, update=self._detach(each.update)) for each in rounds)
        return Observation(self.sent, self._detach(update), knowledge, before, client, seen)

    def _detach(self, update: Update) -> Update:
        check_type(Update, update)
        update.check().check_against(self.sent.state_dict())
        change = {name: tensor.detach().clone() for name, tensor in update.change.items()}
        return replace(update, change=change)


def drop_hooks(module: nn.Module) -> None:
    """Removes hooks that may hold the client's data; torch's own, which a layer needs, stay."""
    for kind in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
        hooks = getattr(module, kind)
        for number, hook in list(hooks.items()):
            if not type(hook).__module__.startswith("torch."):
                del hooks[number]
