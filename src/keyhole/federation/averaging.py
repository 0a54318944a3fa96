"""Federated averaging: the mean of the clients' updates, summed as they arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keyhole.update import Update, apply_change


class RunningMean:
    """The mean of the clients' changes, weighted by their numbers of examples.

    It keeps the sum only, no single client's change. Changes are summed in the order of arrival,
    so that the same clients in the same order give the same bits.

    Args:
        sent: The weights that the server sent.
        examples: The number of examples that all clients have together.
    """

    def __init__(self, sent: Mapping[str, Tensor], examples: int) -> None:
        self.sent, self.expected_examples, self.received_examples = sent, examples, 0
        self.total_change = {
            name: torch.zeros_like(start, dtype=torch.promote_types(start.dtype, torch.float32))
            for name, start in sent.items()
        }

    def add(self, update: Update) -> None:
        """Adds one client's change; what it does not report, it has not changed."""
        weight = update.examples / self.expected_examples
        self.received_examples += update.examples
        pairs = [(t, update.change[n]) for n, t in self.total_change.items() if n in update.change]
        if pairs and all(total.is_cuda for total, _ in pairs):  # few launches in place of many
            changes = [change.to(total) for total, change in pairs]
            torch._foreach_add_([total for total, _ in pairs], changes, alpha=weight)
            return
        for total, change in pairs:
            total += change.to(total) * weight

    def new_weights(self) -> dict[str, Tensor]:
        """Returns the sent weights plus the mean change; integers are rounded."""
        after = {}
        for name, start in self.sent.items():
            total = self.total_change[name]
            if self.received_examples != self.expected_examples:  # a defense reported other numbers
                total = total * (self.expected_examples / self.received_examples)
            change = (total if start.is_floating_point() else total.round()).to(start)
            after[name] = apply_change(start, change)
        return after


def average_updates(sent: Mapping[str, Tensor], updates: Sequence[Update]) -> dict[str, Tensor]:
    """Returns the weights plus the clients' mean change, weighted by their examples.

    Args:
        sent: The weights that the server sent.
        updates: What the clients sent back.
    """
    mean = RunningMean(sent, sum(update.examples for update in updates))
    for update in updates:
        mean.add(update)
    return mean.new_weights()
