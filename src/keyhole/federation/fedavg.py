"""Federated averaging in process: rounds of sampled clients, their updates averaged by examples."""

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
from keyhole.federation.client import defended_update
from keyhole.federation.graphed import Graphed
from keyhole.federation.together import Member, Together
from keyhole.federation.training import LocalTraining
from keyhole.seeds import generator
from keyhole.update import Update

EVALUATED_AT_ONCE = 512


@dataclass(frozen=True)
class Share:
    """What one client sent in one round, as the server saw it."""

    client: int
    update: Update
    telemetry: Telemetry


@dataclass(frozen=True)
class Account:
    """What is noted of one client's update in the run's record."""

    client: int
    examples: int
    norm: float
    telemetry: Telemetry

    @classmethod
    def of(cls, share: Share) -> Account:
        return cls(share.client, share.update.examples, share.update.norm(), share.telemetry)


@dataclass(frozen=True)
class Round:
    """One round: the weights that were sent, what came back, how good the average is."""

    number: int
    sent: Mapping[str, Tensor]
    shares: tuple[Share, ...]
    """Empty where updates are not kept."""
    accounts: tuple[Account, ...]
    accuracy: float
    loss: float
    seconds: float

    def telemetry(self) -> dict[str, object]:
        """One line of the run's record."""
        return {
            "round": self.number,
            "accuracy": self.accuracy,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "seconds": round(self.seconds, 4),
            "clients": [each.client for each in self.accounts],
            "examples": [each.examples for each in self.accounts],
            "update_norms": [round(each.norm, 6) for each in self.accounts],
            "defense": [each.telemetry for each in self.accounts],
        }


@dataclass
class Federation:
    """Clients that hold ``shares`` of ``data`` and train ``model`` under one defense.

    ``memory`` is what each client's defense keeps between rounds. Every draw comes from ``seed``,
    the round and the client, so that a round can be repeated alone.
    """

    model: nn.Module
    data: ImageSet
    shares: Sequence[Sequence[int]]
    test: tuple[ImageSet, Sequence[int]]
    training: LocalTraining
    defense: Defense
    fraction: float = 1.0
    seed: int = 0
    together: Together | Graphed | None = None
    """How sampled clients are trained side by side; None: one after another."""
    memory: dict[int, Memory] = field(default_factory=dict)

    def rounds(self, first: int, last: int) -> Iterator[Round]:
        """Trains ``model`` itself, round by round."""
        for number in range(first, last + 1):
            yield self.round(number)

    def round(
        self,
        number: int,
        *,
        keep_updates: bool = True,
        watch: Callable[[Share], None] | None = None,
    ) -> Round:
        """One round; ``watch`` sees every share as it arrives.

        Without ``keep_updates`` each is let go then: memory does not grow with clients.
        """
        began = time.perf_counter()
        sent = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        clients = self.sampled(number)
        mean = RunningMean(sent, sum(len(self.shares[client]) for client in clients))
        kept, accounts = [], []
        for share in self.arrive(number, clients):
            mean.add(share.update)
            accounts.append(Account.of(share))
            if watch is not None:
                watch(share)
            if keep_updates:
                kept.append(share)
        self.model.load_state_dict(mean.weights())
        accuracy, loss = self.evaluate()
        seconds = time.perf_counter() - began
        return Round(number, sent, tuple(kept), tuple(accounts), accuracy, loss, seconds)

    def sampled(self, number: int) -> list[int]:
        """The clients that take part in a round."""
        count = max(1, round(self.fraction * len(self.shares)))
        order = torch.randperm(len(self.shares), generator=generator(self.seed, "sample", number))
        return sorted(order[:count].tolist())

    def updates(self, number: int, clients: Sequence[int]) -> list[Share]:
        """What the clients send, one after another or side by side."""
        return list(self.arrive(number, clients))

    def arrive(self, number: int, clients: Sequence[int]) -> Iterator[Share]:
        """What the clients send, as it comes: one by one, or so many as train side by side."""
        sizes = [len(self.shares[client]) for client in clients]
        way = self.together
        if way is not None and not way.fits(self.model, sizes, self.training, self.defense):
            way = None
        width = 1 if way is None else way.room(self.model)
        for start in range(0, len(clients), width):
            some = clients[start : start + width]
            members = [self.member(number, client) for client in some]
            if way is None:
                found = [self.alone(member) for member in members]
            else:
                found = way(self.model, members, defense=self.defense)
            while found:  # what has been handed on is held here no longer
                yield Share(some[-len(found)], *found.pop(0))

    def member(self, number: int, client: int) -> Member:
        """A client on the morning of a round."""
        place = next(self.model.parameters())
        indices = list(self.shares[client])
        first = (number - 1) * epochs_a_round(self.training, len(indices))

        def images_of(epoch: int) -> Tensor:
            return self.data.images(indices, first + epoch).to(place)

        return Member(
            images=images_of(0),
            labels=self.data.labels[indices].to(place.device),
            generator=client_generator(self.seed, client, number),
            memory=self.memory.setdefault(client, {}),
            data=self.data,
            training=self.training,
            later=images_of if self.data.versions else None,
        )

    def alone(self, member: Member) -> tuple[Update, Telemetry]:
        return defended_update(
            self.model,
            member.images,
            member.labels,
            data=self.data,
            defense=self.defense,
            generator=member.generator,
            training=self.training,
            memory=member.memory,
            later=member.later,
        )

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and mean loss on the images kept for that."""
        data, indices = self.test
        place = next(self.model.parameters())
        was_training = self.model.training
        self.model.eval()
        right, loss = 0, 0.0
        with torch.no_grad():
            for start in range(0, len(indices), EVALUATED_AT_ONCE):
                some = list(indices[start : start + EVALUATED_AT_ONCE])
                logits = self.model(data.normalise(data.images(some).to(place)))
                labels = data.labels[some].to(place.device)
                right += int((logits.argmax(1) == labels).sum())
                loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        self.model.train(was_training)
        return right / len(indices), loss / len(indices)


def epochs_a_round(training: LocalTraining, images: int) -> int:
    """Local epochs of a client with so many images; one that is begun counts.

    >>> epochs_a_round(LocalTraining(lr=0.1, steps=5, batch_size=4), images=8)
    3
    """
    return -(-training.steps_of(images) // training.batches_an_epoch(images))


def client_generator(seed: int, client: int, number: int) -> torch.Generator:
    """All that a client draws in one round comes from here: in process and on Flower alike."""
    return generator(seed, "client", client, "round", number)
