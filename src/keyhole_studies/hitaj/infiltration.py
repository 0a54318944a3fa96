"""A federation of which one client is malicious and trains a GAN."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from keyhole.errors import BadValue
from keyhole.federation import Federation, average_updates
from keyhole.seeds import generator
from keyhole.threat import Knowledge
from keyhole_studies.hitaj.adversary import Adversary, Generated
from keyhole_studies.hitaj.attack import Hitaj
from keyhole_studies.hitaj.known_defense import DifferentiableDefense

SAMPLES = 16


@dataclass(frozen=True)
class InfiltratedRound:
    """One round of the federation, and what the adversary's generator draws after it.

    Args:
        number: Of the round, from 1.
        accuracy: Of the averaged model, on the images kept for that.
        loss: Likewise.
        confidence: The adversary's own: mean probability of the target class over ``samples``.
        samples: ``[16, C, H, W]`` in [0, 1], in the order they were drawn.
        seconds: How long the round took.
    """

    number: int
    accuracy: float
    loss: float
    confidence: float
    samples: Tensor
    seconds: float


@dataclass
class Infiltration:
    """A federation in which one client attacks; the others train as they always do.

    The adversary is handed its own share, how clients train, and every round's global weights:
    nothing else.

    Args:
        federation: Its model needs one output more than its data has classes.
        attack: What the adversary does.
        client: Which client it is.
        known_defense: The clients' defense where the adversary knows it.
    """

    federation: Federation
    attack: Hitaj
    client: int
    known_defense: DifferentiableDefense | None = None
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
            known_defense=self.known_defense,
            seed=federation.seed,
        )

    def run_rounds(self) -> Iterator[InfiltratedRound]:
        """Trains the federation's model itself, round by round."""
        for number in range(1, self.attack.rounds + 1):
            yield self.run_round(number)

    def run_round(self, number: int) -> InfiltratedRound:
        """Runs one round; the adversary takes part in all of them, beside honest clients."""
        began = time.perf_counter()
        federation = self.federation
        sent = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
        honest = [client for client in federation.sample_clients(number) if client != self.client]
        sent_back = federation.collect_updates(number, honest) if honest else []
        updates = [reply.update for reply in sent_back]
        updates.append(self.adversary.take_turn(sent, number, federation.training))
        federation.model.load_state_dict(average_updates(sent, updates))
        accuracy, loss = federation.evaluate()
        seen = self.draw_samples(SAMPLES, number)
        return InfiltratedRound(
            number,
            accuracy,
            loss,
            float(seen.confidence.mean()),
            seen.images,
            time.perf_counter() - began,
        )

    def draw_samples(self, count: int, number: int) -> Generated:
        return self.adversary.draw_images(count, generator(self.federation.seed, "samples", number))

    def draw_final(self, count: int = 64, *, views: int = 8) -> Generated:
        """What the adversary hands over in the end, the drawings it is surest of first.

        Args:
            count: How many drawings.
            views: Passes of a random defense over which its confidence is averaged.
        """
        draw = generator(self.federation.seed, "generated")
        return self.adversary.draw_images(count, draw, views=views)
