"""Federated averaging of what clients send, added up as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keyhole.update import Update, sum_of


class RunningMean:
    """The mean of the clients' changes, weighted by their examples; holds no client's own.

    ``examples`` is how many all clients have together. Sums are formed in the order of arrival,
    so that the same clients in the same order give the same bits.
    """

    def __init__(self, sent: Mapping[str, Tensor], examples: int) -> None:
        self.sent, self.expected, self.arrived = sent, examples, 0
        self.moved = {
            name: torch.zeros_like(start, dtype=torch.promote_types(start.dtype, torch.float32))
            for name, start in sent.items()
        }

    def add(self, update: Update) -> None:
        weight = update.examples / self.expected
        for name, moved in self.moved.items():
            moved += update.change[name].to(moved) * weight
        self.arrived += update.examples

    def weights(self) -> dict[str, Tensor]:
        """The weights plus the mean change; integers as they mostly are: the rounded mean."""
        after = {}
        for name, start in self.sent.items():
            moved = self.moved[name]
            if self.arrived != self.expected:  # a defense has told other numbers
                moved = moved * (self.expected / self.arrived)
            change = (moved if start.is_floating_point() else moved.round()).to(start)
            after[name] = sum_of(start, change)
        return after


def averaged(sent: Mapping[str, Tensor], updates: Sequence[Update]) -> dict[str, Tensor]:
    """The weights plus the clients' changes, weighted by their examples."""
    mean = RunningMean(sent, sum(update.examples for update in updates))
    for update in updates:
        mean.add(update)
    return mean.weights()
