"""Dropout masks that the update shows as they are.

Where a dropout's output goes straight into a linear layer, and the client saw one sample at one
position, the layer's weight gradient is ``delta (mask * h)^T``: the columns of dropped units are 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.tape import Tape
from keyhole.models.anatomy import patch_embedding
from keyhole.models.puzzle import Dealer, Puzzle, Rules

UNKNOWN = -1.0


class _Follow(Tape):
    """Remembers what each dropout handed on."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__(1, names=names)
        self.handed_on: list[Tensor] = []

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        handed: Tensor = x.clone()
        self.handed_on.append(handed)
        return handed

    def cover(
        self, images: Tensor, rules: Rules, position: str | None, dealer: Dealer | None
    ) -> Puzzle:
        puzzle = super().cover(images, rules, position, dealer)
        self.handed_on.append(puzzle.kept)
        return puzzle


def readable(problem: Problem) -> dict[int, str]:
    """The sites whose masks can be read off, each with the weight that shows it."""
    if problem.masked_samples != 1:
        return {}
    follow = _Follow({id(p): name for name, p in problem.model.named_parameters()})
    problem.probed(follow)
    return {
        site: call.weight
        for site, handed in enumerate(follow.handed_on)
        for call in follow.calls
        if call.kind == "linear" and call.received is handed and call.weight is not None
        if handed.ndim == 2
    }


def known_positions(problem: Problem, gradient: Tensor) -> Tensor:
    """A puzzle's mask ``[N]``: the position rows that were not used have no gradient at all."""
    found = patch_embedding(problem.model, problem.knowledge.shape)
    assert not isinstance(found, str)
    return found.rows(gradient).ne(0).any(1)


def read(problem: Problem, gradient: dict[str, Any]) -> Tensor:
    """All masks of one sample side by side, ``[1, elements]``; -1 where nothing can be read."""
    shown = readable(problem)
    pieces = []
    for number, site in enumerate(problem.sites):
        piece = torch.full((site.size,), UNKNOWN)
        if site.hides in gradient and problem.masked_samples == 1:
            piece = known_positions(problem, gradient[site.hides])
        if shown.get(number) in gradient:
            kept = gradient[shown[number]].abs().amax(0) > 0
            # Noise leaves no column at 0, an empty update all: then nothing can be read.
            if bool(kept.any()) and not bool(kept.all()):
                piece = kept
        pieces.append(piece)
    return torch.cat([piece.to(problem.like) for piece in pieces])[None]
