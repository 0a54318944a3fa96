"""What the victims of one attack have in common: the model, the recipe, the shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice

import torch
from torch import Tensor, nn

from keyhole.defenses.noise_model import Noise
from keyhole.models.dropout_sites import DropoutMode, Site, SiteFinder
from keyhole.models.modes import set_mode
from keyhole.threat import Knowledge, Observation


@dataclass(frozen=True)
class MatchingProblem:
    """One model attacked through updates of one kind.

    ``model`` is the attacker's own copy, in the mode the clients train in, with the dropout rates
    it believes the clients used.
    """

    model: nn.Module
    knowledge: Knowledge
    steps: int
    lr: float
    local_batch: int
    noise: Mapping[str, Noise] = field(default_factory=dict)
    """What a known defense declares of the noise in the first victim's update."""

    @classmethod
    def from_observation(cls, observation: Observation) -> MatchingProblem:
        """From what was observed of one of the victims."""
        knowledge, update = observation.knowledge, observation.update
        model = copy.deepcopy(observation.model)
        noise: Mapping[str, Noise] = {}
        if knowledge.defense is not None:
            model = knowledge.defense.on_model(model)
            noise = knowledge.defense.noise_model(update, observation.model)
        model = set_mode(model, knowledge.client_mode).requires_grad_(False)
        local = min(update.batch_size, knowledge.batch_size)
        return cls(model, knowledge, update.steps, update.lr, local, noise)

    @property
    def like(self) -> Tensor:
        """A tensor of the model's type, where the model is."""
        return next(self.model.parameters())

    @cached_property
    def box(self) -> tuple[Tensor, Tensor]:
        """The least and greatest model input a pixel can have, each ``[C, 1, 1]``."""
        return self.knowledge.box(self.like)

    @cached_property
    def outputs(self) -> int:
        """How many logits the model has: at least one a class."""
        return int(self.probe(SiteFinder()).shape[1])

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The model's dropouts with a rate above 0, in the order they are reached."""
        survey = SiteFinder()
        self.probe(survey)
        return tuple(survey.sites)

    def probe(self, mode: DropoutMode) -> Tensor:
        """The logits of two black images under ``mode``; a copy runs, so that no buffer changes.

        The copy shares the parameters: a mode finds them as the model's own.
        """
        shared: dict[int, object] = {id(p): p for p in self.model.parameters()}
        with torch.no_grad(), mode:
            logits: Tensor = copy.deepcopy(self.model, shared)(
                torch.zeros(2, *self.knowledge.shape).to(self.like)
            )
        return logits

    @property
    def masked_samples(self) -> int:
        """Samples that draw masks: each step draws its own."""
        return self.steps * self.local_batch

    @property
    def batches(self) -> int:
        """How many batches the client's images make."""
        return max(1, self.knowledge.batch_size // self.local_batch)

    def batch_slice(self, step: int) -> slice:
        """The images that the client is assumed to have used in a step: in order, then again."""
        start = (step % self.batches) * self.local_batch
        return slice(start, start + self.local_batch)

    @property
    def label_orders_matter(self) -> bool:
        """Whether it matters whose label stands where: images differ in the steps they are in."""
        return self.steps > 1 and self.batches > 1


def enumerate_label_orders(labels: Sequence[int], batch: int) -> list[tuple[int, ...]]:
    """The different ways to share labels out among consecutive batches, the given one first.

    Within a batch the order is of no account.

    >>> enumerate_label_orders([3, 5, 3], 1)
    [(3, 5, 3), (3, 3, 5), (5, 3, 3)]
    """
    given = [tuple(sorted(labels[i : i + batch])) for i in range(0, len(labels), batch)]
    found = [tuple(label for part in given for label in part)]

    def share(left: tuple[int, ...], done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield done
            return
        for part in sorted(set(combinations(left, min(batch, len(left))))):
            rest = list(left)
            for label in part:
                rest.remove(label)
            yield from share(tuple(rest), done + part)

    ways = share(tuple(sorted(labels)), ())
    return found + [way for way in islice(ways, MAX_LABEL_ORDERS) if way != found[0]]


MAX_LABEL_ORDERS = 1000
"""Ways to share labels out that are looked at."""
