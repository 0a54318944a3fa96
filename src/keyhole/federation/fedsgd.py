"""Clients that take one step a round, trained as one network: FedSGD (McMahan et al. 2017).

The mean of what clients change in one step is one step by their mean gradient. One network computes
it on all their batches at once, if batch norm keeps the clients apart; the server's optimiser takes
the step (Reddi et al. 2021). Deep networks train so at a tenth of the cost of many small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from keyhole.defenses.base import Defense
from keyhole.errors import DoesNotFit
from keyhole.federation.graphed import Stage
from keyhole.federation.together import Member
from keyhole.federation.training import LocalTraining, augmented
from keyhole.seeds import derive, generator


class ClientsApart(TorchFunctionMode):
    """Batch norm by each client's own statistics, within the block.

    A batch holds the first image of every client, then the second of every client, and so on. The
    running statistics become the mean of what the clients' would be.
    """

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.clients = clients

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        called = self.batch_norm if func is F.batch_norm else func
        return called(*args, **(kwargs or {}))

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        channels, *size = x.shape[1:]
        apart = x.contiguous().view(-1, self.clients * channels, *size)
        mean, var, scale, shift = (
            None if tensor is None else tensor.repeat(self.clients)
            for tensor in (running_mean, running_var, weight, bias)
        )
        normed = F.batch_norm(apart, mean, var, scale, shift, training, momentum, eps)
        with torch.no_grad():
            for tensor, own in ((running_mean, mean), (running_var, var)):
                if training and tensor is not None and own is not None:
                    tensor.copy_(own.view(self.clients, channels).mean(0))
        return normed.view(x.shape)


class FedSgd:
    """Trains ``model`` itself: every round one step by the mean gradient of all members.

    ``recipe`` is the server's optimiser and the size of a client's batch; ``rate`` gives its
    learning rate by round, from 1. ``half``: activations in bfloat16, on a GPU.

    Defenses on images act in each client, on all of its images anew every epoch. Others, and
    members with different numbers of images, are refused: here no client has an update of its own.
    """

    def __init__(
        self,
        model: nn.Module,
        members: Sequence[Member],
        recipe: LocalTraining,
        *,
        defense: Defense,
        rate: Callable[[int], float],
        seed: int = 0,
        half: bool = False,
    ) -> None:
        check(members, recipe, defense)
        self.model, self.members, self.recipe, self.defense = model, members, recipe, defense
        self.rate, self.seed = rate, seed
        self.images = len(members[0].images)
        self.device = members[0].images.device
        self.labels = torch.stack([member.labels for member in members], 1)
        self.sides = [member.side(model) for member in members]
        self.stage = Stage.of(model, recipe, half, torch.contiguous_format)
        self.stage.begin(model, recipe)
        self.drawing = torch.Generator(self.device).manual_seed(derive(seed, "augmentation"))
        self.number = 0
        """Rounds so far."""

    def rounds(self, last: int) -> Iterator[int]:
        """Trains up to round ``last`` and yields the number of each; the model has it all when the
        iteration ends, or is left.

        Every client goes through its images in an order of its own, anew every epoch; those that
        fill no batch are left out of it.
        """
        clients = torch.arange(len(self.members), device=self.device)
        size = self.recipe.local_batch(self.images)
        known = -1
        try:
            while self.number < last:
                epoch, place = divmod(self.number, self.images // size)
                if epoch != known:
                    known, inputs, order = epoch, self.inputs(epoch), self.order(epoch)
                batch = order[size * place : size * (place + 1)]
                self.number += 1
                x = inputs[batch, clients].flatten(0, 1)
                x = augmented(x, self.drawing) if self.recipe.augment else x
                self.stage.lr.fill_(self.rate(self.number))
                with ClientsApart(len(clients)):
                    self.step(x, self.labels[batch, clients].flatten())
                yield self.number
        finally:
            self.model.load_state_dict(self.stage.local.state_dict())

    def inputs(self, epoch: int) -> Tensor:
        """What the clients train on in an epoch: ``[images, clients, C, H, W]``."""
        shown = []
        for member, side in zip(self.members, self.sides, strict=True):
            side.images = member.images_of(epoch)
            shown.append(member.data.normalise(self.defense.on_images(side.images, side)))
        return torch.stack(shown, 1)

    def order(self, epoch: int) -> Tensor:
        """Every client's images in the order of this epoch: ``[images, clients]``."""
        draw = generator(self.seed, "order", epoch)
        orders = [torch.randperm(self.images, generator=draw) for _ in self.members]
        return torch.stack(orders, 1).to(self.device)

    def step(self, x: Tensor, y: Tensor) -> None:
        if x.is_cuda:
            self.stage.step(x, y)
        else:
            self.stage.advance(x, y)


def check(members: Sequence[Member], recipe: LocalTraining, defense: Defense) -> None:
    """Raises where one network cannot stand for these clients."""
    if recipe.lr is None:
        raise DoesNotFit("the server steps by a learning rate: give the recipe one")
    if recipe.steps != 1 or recipe.epochs is not None:
        raise DoesNotFit("FedSGD's clients take one step a round: leave out steps and epochs")
    if len({len(member.images) for member in members}) != 1:
        raise DoesNotFit("FedSGD as one network needs clients, with as many images each")
    for door, place in (("on_model", "models"), ("on_step", "steps"), ("on_update", "updates")):
        if getattr(type(defense), door) is not getattr(Defense, door):
            raise DoesNotFit(
                f"{defense.name} acts on clients' {place}, of which FedSGD as one network has none"
            )
