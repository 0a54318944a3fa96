"""Dropout masks that can be read directly from the update.

Where a dropout's output is the input of a linear layer, and the client used one sample at one
position, the layer's weight gradient is ``delta (mask * h)^T``: the columns of dropped units are 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.models.anatomy import require_patch_embedding
from keyhole.models.puzzle import Puzzle, PuzzlePool, PuzzleRules

UNKNOWN = -1.0


class _DropoutRecorder(LayerRecorder):
    """Records the output of each dropout besides the layers' calls."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__(1, names=names)
        self.dropout_outputs: list[Tensor] = []

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        output: Tensor = x.clone()
        self.dropout_outputs.append(output)
        return output

    def make_puzzle(
        self, images: Tensor, rules: PuzzleRules, position: str | None, pool: PuzzlePool | None
    ) -> Puzzle:
        puzzle = super().make_puzzle(images, rules, position, pool)
        self.dropout_outputs.append(puzzle.kept)
        return puzzle

    def make_noise(self, like: Tensor) -> Tensor:
        noise = super().make_noise(like)
        self.dropout_outputs.append(noise)
        return noise


def find_readable_sites(problem: MatchingProblem) -> dict[int, str]:
    """The numbers of the sites whose masks can be read, and for each the weight that shows it."""
    if problem.masked_samples != 1:
        return {}
    recorder = _DropoutRecorder({id(p): name for name, p in problem.model.named_parameters()})
    problem.probe(recorder)
    return {
        site: call.weight
        for site, output in enumerate(recorder.dropout_outputs)
        for call in recorder.calls
        if call.kind == "linear" and call.layer_input is output and call.weight is not None
        if output.ndim == 2
    }


def read_used_positions(problem: MatchingProblem, gradient: Tensor) -> Tensor:
    """Which position rows a puzzle used, ``[N]``: rows that were not used have gradient 0."""
    embedding = require_patch_embedding(problem.model, problem.knowledge.shape)
    return embedding.patch_rows(gradient).ne(0).any(1)


def read_masks(problem: MatchingProblem, gradient: dict[str, Any]) -> Tensor:
    """All masks of one sample concatenated, ``[1, elements]``; -1 where nothing can be read."""
    weights = find_readable_sites(problem)
    masks = []
    for number, site in enumerate(problem.sites):
        mask = torch.full((site.size,), UNKNOWN)
        if site.hides in gradient and problem.masked_samples == 1:
            mask = read_used_positions(problem, gradient[site.hides])
        if weights.get(number) in gradient:
            nonzero = gradient[weights[number]].abs().amax(0) > 0
            # Noise leaves no column at 0, an empty update leaves all: nothing can be read then.
            if bool(nonzero.any()) and not bool(nonzero.all()):
                mask = nonzero
        masks.append(mask)
    return torch.cat([mask.to(problem.like) for mask in masks])[None]
