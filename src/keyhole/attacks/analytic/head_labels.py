"""The labels of a batch, searched for until the last layer's equations hold.

A trained network spreads its softmax so unevenly that counts of labels are guessed wrong, and with
a wrong label the equations of :mod:`head_inputs` have no solution. With the right ones they have
one, up to rounding, so that solving them tells which labels are right.

Each class occurs at least as often as the bias' gradient says: its entry is the sum of the class's
chances over the batch, which is not negative, less the number of its images. That leaves few labels
open, which are exchanged one by one while the error falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from keyhole.attacks.analytic.head_inputs import HeadEquations, HeadInputs

ROUNDING = 1e-3
"""What a class's sum may exceed a whole number by, because gradients are rounded."""
STARTS = 4
"""First guesses for each choice of labels."""
HOLDS = 1e-4
"""The greatest error with which labels count as right: wrong ones leave ten times as much."""
SWEEPS = 3
"""How often every open label is exchanged for every class, at most."""
MOST_TRIED = 120
"""Choices of labels that are tried at most."""
MOST_NUMBERS = 100_000
"""Numbers in a table of slopes up to which labels are searched for: each choice takes hundreds."""
MOST_OPEN = 4
"""Open labels at most: beyond, too many wrong ones hide that one is right."""


def solve_with_labels(equations: HeadEquations) -> tuple[HeadInputs, Tensor] | None:
    """The inputs and the labels of each image; None: no choice of labels was found that fits.

    Args:
        equations: The last layer's equations with labels as guessed.
    """
    found = search_labels(equations)
    if found is not None:
        return found
    inputs = equations.solve()
    return None if inputs is None else (inputs, equations.labels)


def search_labels(equations: HeadEquations) -> tuple[HeadInputs, Tensor] | None:
    """The inputs and the labels of each image, by exchanging labels; None: nothing holds.

    Args:
        equations: The last layer's equations with labels as guessed.
    """
    sure = count_sure_labels(equations)
    if sure is None or len(equations.labels) - len(sure) > MOST_OPEN:
        return None
    if equations.count_slopes() > MOST_NUMBERS:
        return None
    chosen = fill_open_labels(sure, equations.labels.tolist())
    tried: dict[tuple[int, ...], HeadInputs | None] = {}

    def error_of(labels: Sequence[int]) -> float:
        key = tuple(sorted(labels))
        if key not in tried:
            tried[key] = replace(equations, labels=torch.tensor(key)).solve_best(STARTS)
        found = tried[key]
        return float("inf") if found is None else found.error

    least = error_of(chosen)
    for _ in range(SWEEPS):
        before = least
        for candidate in exchange_one(sure, chosen, rank_classes(equations)):
            if least < HOLDS or len(tried) >= MOST_TRIED:
                break
            if error_of(candidate) < least:
                least, chosen = error_of(candidate), candidate
        if least < HOLDS or least == before:
            break
    key = tuple(sorted(chosen))
    found = tried[key]
    return None if found is None or least >= HOLDS else (found, torch.tensor(key))


def count_sure_labels(equations: HeadEquations) -> list[int] | None:
    """The labels that the bias' gradient proves; None: there is none, or more than images."""
    if equations.summed_bias is None:
        return None
    least = (-equations.summed_bias - ROUNDING).ceil().clamp(min=0).long()
    sure = torch.arange(len(least)).repeat_interleave(least)
    return sure.tolist() if len(sure) <= len(equations.labels) else None


def fill_open_labels(sure: Sequence[int], guessed: Sequence[int]) -> list[int]:
    """The sure labels, and of those guessed what is left over, to as many as were guessed.

    >>> fill_open_labels([4, 4, 7], [2, 4, 5, 7])
    [4, 4, 7, 2]
    """
    left = list(guessed)
    for label in sure:
        if label in left:
            left.remove(label)
    return [*sure, *left[: len(guessed) - len(sure)]]


def rank_classes(equations: HeadEquations) -> list[int]:
    """The classes, those first of which there may be more images than is sure."""
    assert equations.summed_bias is not None
    ranked: list[int] = equations.summed_bias.argsort().tolist()
    return ranked


def exchange_one(
    sure: Sequence[int], chosen: list[int], classes: Sequence[int]
) -> Iterator[list[int]]:
    """All choices in which one open label is another.

    >>> list(exchange_one([4], [4, 0], classes=[2, 0, 1]))
    [[4, 2], [4, 1]]
    """
    for label in classes:
        for place in range(len(sure), len(chosen)):
            if label != chosen[place]:
                yield [*chosen[:place], label, *chosen[place + 1 :]]
