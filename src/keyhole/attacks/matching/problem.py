"""What the victims of one attack have in common: the model, the local training, the shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations, islice

import torch
from torch import Tensor, nn

from keyhole.attacks.matching.uploaded_statistics import (
    NormLayer,
    drop_statistics,
    find_shared_norms,
)
from keyhole.defenses.noise_model import Noise
from keyhole.federation.training import cut_batches
from keyhole.models.dropout_sites import DropoutMode, Site, SiteFinder
from keyhole.models.modes import set_mode
from keyhole.optimisers import PLAIN_SGD, LocalOptimiser
from keyhole.threat import Knowledge, Observation

MAX_UNROLLED = 1000
"""Steps that are unrolled one by one."""
MAX_LABEL_ORDERS = 1000
"""Orders of a client's labels that are enumerated at most."""


@dataclass(frozen=True)
class MatchingProblem:
    """A model and the local training of its clients, as the attacker knows them.

    Args:
        model: The attacker's own copy, in the mode in which clients train, with the dropout rates
            that the attacker assumes.
        knowledge: What the attacker knows about the first victim.
        steps: The number of local steps.
        lr: The clients' learning rate.
        local_batch: The number of images in one local step.
        optimiser: How clients turn gradients into steps.
        trained: The parameters that clients train; None: all.
        noise: The noise that a known defense declares in the first victim's update, by parameter.
        reported: The parameters that the first victim's update has; None: all.
        norms: The BatchNorms whose batch statistics the first victim's update tells.
    """

    model: nn.Module
    knowledge: Knowledge
    steps: int
    lr: float
    local_batch: int
    noise: Mapping[str, Noise] = field(default_factory=dict)
    reported: frozenset[str] | None = None
    optimiser: LocalOptimiser = PLAIN_SGD
    trained: frozenset[str] | None = None
    norms: tuple[NormLayer, ...] = ()

    @classmethod
    def from_observation(cls, observation: Observation) -> MatchingProblem:
        """Builds the problem from what the server observed of one of the victims."""
        knowledge, update = observation.knowledge, observation.update
        model = copy.deepcopy(observation.model)
        noise: Mapping[str, Noise] = {}
        if knowledge.defense is not None:
            model = knowledge.defense.on_model(model)
            noise = knowledge.defense.noise_model(update, observation.model)
        model = set_mode(model, knowledge.client_mode).requires_grad_(False)
        local = min(update.batch_size, knowledge.batch_size)
        return cls(
            model,
            knowledge,
            update.steps,
            update.lr,
            local,
            noise,
            frozenset(update.change),
            knowledge.optimiser or PLAIN_SGD,
            knowledge.trained,
            find_shared_norms(model, update, knowledge, local),
        )

    @property
    def like(self) -> Tensor:
        """A tensor of the model's type, on its device."""
        return next(self.model.parameters())

    @cached_property
    def box(self) -> tuple[Tensor, Tensor]:
        """The least and greatest model input a pixel can have, each ``[C, 1, 1]``."""
        return self.knowledge.box(self.like)

    @cached_property
    def outputs(self) -> int:
        """The number of logits: at least one per class."""
        return int(self.probe(SiteFinder()).shape[1])

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The model's dropouts with a rate above 0, in the order of the forward pass."""
        finder = SiteFinder()
        self.probe(finder)
        return tuple(finder.sites)

    def probe(self, mode: DropoutMode) -> Tensor:
        """Runs the model on two images of zeros under ``mode``, and returns the logits.

        A copy of the model runs, so that no buffer changes. It shares the model's parameters, so
        that ``mode`` recognises them.
        """
        shared: dict[int, object] = {id(p): p for p in self.model.parameters()}
        with torch.no_grad(), mode:
            logits: Tensor = copy.deepcopy(self.model, shared)(
                torch.zeros(2, *self.knowledge.shape).to(self.like)
            )
        return logits

    @property
    def masked_samples(self) -> int:
        """The number of samples, over all steps, for which the client drew dropout masks."""
        return self.first_sample(self.steps)

    @cached_property
    def cuts(self) -> list[slice]:
        """The local batches into which the client's images are divided; the last may be smaller."""
        return cut_batches(self.knowledge.batch_size, self.local_batch)

    @property
    def batches(self) -> int:
        """The number of local batches."""
        return len(self.cuts)

    def batch_slice(self, step: int) -> slice:
        """The images that a step is assumed to use: batch after batch, then from the start."""
        return self.cuts[step % self.batches]

    def first_sample(self, step: int) -> int:
        """The number of samples of all steps before this one."""
        epochs, rest = divmod(step, self.batches)
        return epochs * self.knowledge.batch_size + (self.cuts[rest].start if rest else 0)

    @property
    def label_orders_matter(self) -> bool:
        """Whether the order of the labels matters, because the steps used different images."""
        return self.steps > 1 and self.batches > 1


def enumerate_label_orders(labels: Sequence[int], batch: int) -> list[tuple[int, ...]]:
    """The different ways to divide labels into consecutive batches, the given one first.

    Within a batch the labels are sorted, because their order does not matter.

    >>> enumerate_label_orders([3, 5, 3], 1)
    [(3, 5, 3), (3, 3, 5), (5, 3, 3)]
    """
    batches = [sorted(labels[i : i + batch]) for i in range(0, len(labels), batch)]
    given = tuple(chain.from_iterable(batches))
    orders = islice(divide_labels(tuple(sorted(labels)), batch), MAX_LABEL_ORDERS)
    return [given, *(order for order in orders if order != given)]


def take_as_one_step(observation: Observation) -> Observation:
    """Returns the same update, taken for one step on all the client's images.

    Batch statistics are left out, because those of several steps are no single batch's.

    Args:
        observation: What the server observed of a client of several steps.
    """
    update, knowledge = observation.update, observation.knowledge
    optimiser = knowledge.optimiser or PLAIN_SGD
    one = replace(
        update,
        change=drop_statistics(observation.model, update.change),
        steps=1,
        lr=update.lr * optimiser.count_gradients(update.steps),
        batch_size=knowledge.batch_size,
    )
    known = replace(knowledge, optimiser=PLAIN_SGD, orders=1)
    return replace(observation, update=one, knowledge=known)


def simplify_steps(observation: Observation, trials: int) -> Observation:
    """Returns the observation as an attack that unrolls local steps can use it.

    Steps are taken for one large step on all images where there are too many of them, where the
    optimiser is not known, and where nobody knows which image was in which step and there are more
    ways than trials.

    Args:
        observation: What the server observed of a client.
        trials: The orders of the client's images that are tried.
    """
    update, knowledge = observation.update, observation.knowledge
    if update.steps == 1:
        return observation
    unknown = knowledge.optimiser is None or knowledge.orders > trials
    return take_as_one_step(observation) if unknown or update.steps > MAX_UNROLLED else observation


def divide_labels(labels: tuple[int, ...], batch: int) -> Iterator[tuple[int, ...]]:
    """Yields sorted labels in every order that is sorted within each batch."""
    if not labels:
        yield ()
        return
    for first in sorted(set(combinations(labels, min(batch, len(labels))))):
        rest = list(labels)
        for label in first:
            rest.remove(label)
        for others in divide_labels(tuple(rest), batch):
            yield first + others
