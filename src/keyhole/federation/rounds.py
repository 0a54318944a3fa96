"""Federated averaging in one process: rounds of sampled clients whose updates are averaged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import Defense, Memory, Telemetry
from keyhole.federation.averaging import RunningMean
from keyhole.federation.backends.base import Backend
from keyhole.federation.backends.loop import LoopTrainer
from keyhole.federation.client import RoundClient
from keyhole.federation.precision import multiply_in
from keyhole.federation.training import LocalTraining
from keyhole.seeds import generator
from keyhole.update import Update

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class ClientUpdate:
    """What one client sent in one round, as the server saw it.

    Args:
        client: The client's number.
        update: The defended update.
        telemetry: What the client's defense reported.
    """

    client: int
    update: Update
    telemetry: Telemetry


@dataclass(frozen=True)
class UpdateSummary:
    """What the log of a training says about one client's update."""

    client: int
    examples: int
    norm: float
    telemetry: Telemetry

    @classmethod
    def of(cls, sent: ClientUpdate) -> UpdateSummary:
        return cls(sent.client, sent.update.examples, sent.update.norm(), sent.telemetry)


@dataclass(frozen=True)
class Round:
    """One round: the weights that the server sent, the updates it got, and the new accuracy.

    Args:
        number: The round's number; the first round is 1.
        sent: The weights that the server sent.
        updates: What the clients sent back; empty if updates are not kept.
        summaries: The norm, examples and telemetry of each update.
        accuracy: The accuracy of the averaged model on the test images.
        loss: Its mean cross-entropy on them.
        seconds: How long the round took.
    """

    number: int
    sent: Mapping[str, Tensor]
    updates: tuple[ClientUpdate, ...]
    summaries: tuple[UpdateSummary, ...]
    accuracy: float
    loss: float
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Returns one line of the training's log."""
        return {
            "round": self.number,
            "accuracy": self.accuracy,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "seconds": round(self.seconds, 4),
            "clients": [each.client for each in self.summaries],
            "examples": [each.examples for each in self.summaries],
            "update_norms": [round(each.norm, 6) for each in self.summaries],
            "defense": [each.telemetry for each in self.summaries],
        }


@dataclass
class Federation:
    """A server and its clients, who train one model under one defense.

    Every random number comes from ``seed``, the round and the client, so that a single round can
    be repeated.

    Args:
        model: The global model; rounds train it in place.
        data: The images of all clients.
        shares: The indices into ``data`` that each client holds.
        test: A data set, and the indices into it on which the model is evaluated.
        training: How each client trains.
        defense: The defense of every client.
        fraction: The fraction of clients sampled in each round.
        seed: The seed of all random numbers.
        backend: How the sampled clients are trained. Where it does not support them, they are
            trained one after another.
        memory: What each client's defense remembers between rounds.
    """

    model: nn.Module
    data: ImageSet
    shares: Sequence[Sequence[int]]
    test: tuple[ImageSet, Sequence[int]]
    training: LocalTraining
    defense: Defense
    fraction: float = 1.0
    seed: int = 0
    backend: Backend = field(default_factory=LoopTrainer)
    memory: dict[int, Memory] = field(default_factory=dict)

    def run_rounds(self, first: int, last: int) -> Iterator[Round]:
        """Trains ``model`` for several rounds, and yields each.

        Args:
            first: The number of the first round.
            last: The number of the last round.
        """
        for number in range(first, last + 1):
            yield self.run_round(number)

    def run_round(
        self,
        number: int,
        *,
        keep_updates: bool = True,
        watcher: Callable[[ClientUpdate], None] | None = None,
    ) -> Round:
        """Trains ``model`` for one round.

        Args:
            number: The round's number; the first round is 1.
            keep_updates: Whether the result holds all updates. Without them, memory does not grow
                with the number of clients.
            watcher: Called with each update as it arrives.
        """
        began = time.perf_counter()
        sent = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        clients = self.sample_clients(number)
        mean = RunningMean(sent, sum(len(self.shares[client]) for client in clients))
        kept, summaries = [], []
        for arrived in self.iterate_updates(number, clients):
            mean.add(arrived.update)
            summaries.append(UpdateSummary.of(arrived))
            if watcher is not None:
                watcher(arrived)
            if keep_updates:
                kept.append(arrived)
        self.model.load_state_dict(mean.new_weights())
        accuracy, loss = self.evaluate()
        seconds = time.perf_counter() - began
        return Round(number, sent, tuple(kept), tuple(summaries), accuracy, loss, seconds)

    def sample_clients(self, number: int) -> list[int]:
        """Returns the clients that take part in a round.

        Args:
            number: The round's number.
        """
        count = max(1, round(self.fraction * len(self.shares)))
        order = torch.randperm(len(self.shares), generator=generator(self.seed, "sample", number))
        return sorted(order[:count].tolist())

    def collect_updates(self, number: int, clients: Sequence[int]) -> list[ClientUpdate]:
        """Trains the clients and returns what they send.

        Args:
            number: The round's number.
            clients: The clients' numbers.
        """
        return list(self.iterate_updates(number, clients))

    def iterate_updates(self, number: int, clients: Sequence[int]) -> Iterator[ClientUpdate]:
        """Trains the clients and yields what they send, as many at a time as train at once.

        Args:
            number: The round's number.
            clients: The clients' numbers.
        """
        sizes = [len(self.shares[client]) for client in clients]
        backend: Backend = self.backend
        if not backend.supports(self.model, sizes, self.training, self.defense):
            backend = LoopTrainer()
        width = backend.clients_at_once(self.model)
        for start in range(0, len(clients), width):
            chunk = clients[start : start + width]
            prepared = [self.make_client(number, client) for client in chunk]
            with multiply_in(self.training.precision):
                updates = backend.train(self.model, prepared, defense=self.defense)
            while updates:  # an update that was yielded is not kept in memory here
                yield ClientUpdate(chunk[-len(updates)], *updates.pop(0))

    def make_client(self, number: int, client: int) -> RoundClient:
        """Returns a client with its images, as it enters a round.

        Args:
            number: The round's number.
            client: The client's number.
        """
        like = next(self.model.parameters())
        indices = list(self.shares[client])
        first = (number - 1) * epochs_per_round(self.training, len(indices))

        def images_by_epoch(epoch: int) -> Tensor:
            return self.data.images(indices, first + epoch).to(like)

        return RoundClient(
            images=images_by_epoch(0),
            labels=self.data.labels[indices].to(like.device),
            generator=client_generator(self.seed, client, number),
            memory=self.memory.setdefault(client, {}),
            data=self.data,
            training=self.training,
            images_by_epoch=images_by_epoch if self.data.versions else None,
        )

    def evaluate(self) -> tuple[float, float]:
        """Returns accuracy and mean loss on the test images."""
        data, indices = self.test
        like = next(self.model.parameters())
        was_training = self.model.training
        self.model.eval()
        correct = torch.zeros((), device=like.device, dtype=torch.long)
        loss = torch.zeros((), device=like.device, dtype=torch.double)
        with torch.no_grad(), multiply_in(self.training.precision):
            for start in range(0, len(indices), EVALUATION_BATCH):
                batch = list(indices[start : start + EVALUATION_BATCH])
                logits = self.model(data.normalise(data.images(batch).to(like)))
                labels = data.labels[batch].to(like.device)
                correct += (logits.argmax(1) == labels).sum()
                loss += F.cross_entropy(logits, labels, reduction="sum")
        self.model.train(was_training)
        return int(correct) / len(indices), float(loss) / len(indices)


def epochs_per_round(training: LocalTraining, images: int) -> int:
    """Returns the local epochs of a client with ``images`` images, counting an incomplete one.

    >>> epochs_per_round(LocalTraining(lr=0.1, steps=5, batch_size=4), images=8)
    3
    """
    return -(-training.count_steps(images) // training.batches_per_epoch(images))


def client_generator(seed: int, client: int, number: int) -> torch.Generator:
    """Returns the generator of all that a client draws in one round, here and on Flower.

    Args:
        seed: The training's seed.
        client: The client's number.
        number: The round's number.
    """
    return generator(seed, "client", client, "round", number)
