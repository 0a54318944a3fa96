"""FedSGD (McMahan et al. 2017): clients that take one step per round, trained as one network.

The mean of what clients change in one step is one step by their mean gradient. One network computes
it on all their batches at once, if batch norm keeps the clients apart; the server's optimiser takes
the step (Reddi et al. 2021). Deep networks train so at a tenth of the cost of many small batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from keyhole.defenses import Defense, uses_door
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, RoundClient, augment_images
from keyhole.federation.backends import GraphedModel
from keyhole.seeds import derive, generator


class SeparateBatchNorm(TorchFunctionMode):
    """Batch norm by each client's own statistics, within the block.

    A batch holds the first image of every client, then the second of every client, and so on. The
    running statistics become the mean of what the clients' would be.

    Args:
        clients: How many there are.
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
    """Every round is one step of the server by the mean gradient of all clients.

    Defenses on images act in each client, on all of its images in every epoch. Other defenses,
    and clients with different numbers of images, are refused: here no client has an update of its
    own.

    Args:
        model: Trained itself.
        clients: All of them take part in every round.
        training: The server's optimiser, and the size of a client's batch.
        defense: What clients do to their images.
        rate: The server's learning rate by round, from 1.
        seed: Of orders and augmentation.
        half: Activations are in bfloat16, on a GPU.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[RoundClient],
        training: LocalTraining,
        *,
        defense: Defense,
        rate: Callable[[int], float],
        seed: int = 0,
        half: bool = False,
    ) -> None:
        check_clients(clients, training, defense)
        self.model, self.clients, self.training, self.defense = model, clients, training, defense
        self.rate, self.seed = rate, seed
        self.images = len(clients[0].images)
        self.device = clients[0].images.device
        self.labels = torch.stack([client.labels for client in clients], 1)
        self.sides = [client.side(model) for client in clients]
        precise = replace(training, precision="bf16") if half else training
        self.graphed = GraphedModel(model, precise)
        self.graphed.reset(model, training)
        self.drawing = torch.Generator(self.device).manual_seed(derive(seed, "augmentation"))
        self.number = 0
        """Rounds so far."""

    def run_rounds(self, last: int) -> Iterator[int]:
        """Trains up to a round, and yields the number of each.

        The model gets its weights when the iteration ends, or is left. Every client goes through
        its images in a new order of its own in every epoch; those that fill no batch are left out.

        Args:
            last: The round, from 1.
        """
        clients = torch.arange(len(self.clients), device=self.device)
        size = self.training.batch_size_for(self.images)
        known = -1
        try:
            while self.number < last:
                epoch, place = divmod(self.number, self.images // size)
                if epoch != known:
                    known, inputs, order = epoch, self.make_inputs(epoch), self.draw_order(epoch)
                batch = order[size * place : size * (place + 1)]
                self.number += 1
                x = inputs[batch, clients].flatten(0, 1)
                x = augment_images(x, self.drawing) if self.training.augment else x
                self.graphed.lr.fill_(self.rate(self.number))
                with SeparateBatchNorm(len(clients)):
                    self.take_step(x, self.labels[batch, clients].flatten())
                yield self.number
        finally:
            self.model.load_state_dict(self.graphed.tensors())

    def make_inputs(self, epoch: int) -> Tensor:
        """What the clients train on in an epoch: ``[images, clients, C, H, W]``."""
        shown = []
        for client, side in zip(self.clients, self.sides, strict=True):
            side.images = client.images_for(epoch)
            shown.append(client.data.normalise(self.defense.on_images(side.images, side)))
        return torch.stack(shown, 1)

    def draw_order(self, epoch: int) -> Tensor:
        """Every client's images in the order of this epoch: ``[images, clients]``."""
        draw = generator(self.seed, "order", epoch)
        orders = [torch.randperm(self.images, generator=draw) for _ in self.clients]
        return torch.stack(orders, 1).to(self.device)

    def take_step(self, x: Tensor, y: Tensor) -> None:
        """One step of the server's optimiser, recorded on a GPU."""
        if x.is_cuda:
            self.graphed.step(x, y)
        else:
            self.graphed.run_step(x, y)


def check_clients(
    clients: Sequence[RoundClient], training: LocalTraining, defense: Defense
) -> None:
    """Raises :class:`DoesNotFit` where one network cannot stand for these clients."""
    if training.lr is None:
        raise DoesNotFit("the server needs a learning rate: give the training one")
    if training.steps != 1 or training.epochs is not None:
        raise DoesNotFit("FedSGD's clients take one step per round: leave out steps and epochs")
    if len({len(client.images) for client in clients}) != 1:
        raise DoesNotFit("FedSGD as one network needs clients with equally many images")
    for door, place in (("on_model", "models"), ("on_step", "steps"), ("on_update", "updates")):
        if uses_door(defense, door):
            raise DoesNotFit(
                f"{defense.name} acts on clients' {place}, of which FedSGD as one network has none"
            )
