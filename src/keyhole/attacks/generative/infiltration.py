"""A federation one client of which is malicious: the game that the GAN attack is played in."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from keyhole.attacks.generative.hitaj import Adversary, Generated, Hitaj
from keyhole.attacks.generative.known_defense import Through
from keyhole.errors import BadValue
from keyhole.federation.averaging import averaged
from keyhole.federation.fedavg import Federation
from keyhole.seeds import generator
from keyhole.threat import Knowledge

SAMPLES = 16


@dataclass(frozen=True)
class InfiltratedRound:
    """One round of the federation, and what the adversary's generator draws after it."""

    number: int
    accuracy: float
    loss: float
    """Of the averaged model, on the images kept for that."""
    confidence: float
    """The adversary's own: mean probability of the target class over ``samples``."""
    samples: Tensor
    """``[16, C, H, W]`` in [0, 1], in the order they were drawn."""
    seconds: float


@dataclass
class Infiltration:
    """``client`` of a federation plays ``attack``; the others train as they always do.

    The federation's model needs an output more than its data has classes. The adversary is handed
    its own share, the shared recipe, and every round's global weights: nothing else. ``through``
    is the clients' defense where the adversary knows it.
    """

    federation: Federation
    attack: Hitaj
    client: int
    through: Through | None = None
    adversary: Adversary = field(init=False)

    def __post_init__(self) -> None:
        federation, count = self.federation, len(self.federation.shares)
        if not 0 <= self.client < count or count < 2:
            raise BadValue(f"client {self.client} cannot be malicious among {count} clients")
        data, place = federation.data, next(federation.model.parameters())
        if not 0 <= self.attack.target < len(data.classes):
            raise BadValue(f"class {self.attack.target} is none of the {len(data.classes)}")
        own = list(federation.shares[self.client])
        self.adversary = Adversary(
            self.attack,
            Knowledge(data.shape, len(data.classes), data.mean, data.std),
            federation.model,
            data.images(own).to(place),
            data.labels[own].to(place.device),
            through=self.through,
            seed=federation.seed,
        )

    def rounds(self) -> Iterator[InfiltratedRound]:
        """Trains the federation's model itself, round by round."""
        for number in range(1, self.attack.rounds + 1):
            yield self.round(number)

    def round(self, number: int) -> InfiltratedRound:
        """The adversary takes part in every round, beside the honest clients sampled for it."""
        began = time.perf_counter()
        federation = self.federation
        sent = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
        honest = [client for client in federation.sampled(number) if client != self.client]
        updates = [share.update for share in federation.updates(number, honest)] if honest else []
        updates.append(self.adversary.turn(sent, number, federation.training))
        federation.model.load_state_dict(averaged(sent, updates))
        accuracy, loss = federation.evaluate()
        seen = self.drawn(SAMPLES, number)
        return InfiltratedRound(
            number,
            accuracy,
            loss,
            float(seen.confidence.mean()),
            seen.images,
            time.perf_counter() - began,
        )

    def drawn(self, count: int, number: int) -> Generated:
        return self.adversary.drawings(count, generator(self.federation.seed, "samples", number))

    def generated(self, count: int = 64, *, views: int = 8) -> Generated:
        """What the adversary hands over in the end, its pick first."""
        draw = generator(self.federation.seed, "generated")
        return self.adversary.drawings(count, draw, views=views)


def without_target(
    shares: Sequence[Sequence[int]], labels: Tensor, *, client: int, target: int
) -> list[list[int]]:
    """``shares`` in which ``client`` has no image of class ``target``; nobody else gets them.

    >>> import torch
    >>> without_target([[0, 1], [2, 3]], torch.tensor([0, 1, 0, 1]), client=1, target=1)
    [[0, 1], [2]]
    """
    return [
        [i for i in share if number != client or int(labels[i]) != target]
        for number, share in enumerate(shares)
    ]
