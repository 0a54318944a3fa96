"""The child module that a puzzle adds to a model: unknown positions and a localiser."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from keyhole.models.anatomy import PatchEmbedding, Shape
from keyhole.models.puzzle import Puzzle, PuzzlePool, PuzzleRules
from keyhole.seeds import derive, generator, seeded_globally

Positions = Literal["unknown", "own", "index", "none"]
Localiser = Literal["nln", "ln", "pca", "none"]

PCA_ITERATIONS = 5


class PuzzleModule(nn.Module):
    """The parameters and state that a puzzle adds to a model.

    ``positions`` says which position embedding a covered patch gets: ``unknown``, one row shared by
    all; ``own``, its slot's; ``index``, its slot's plus one that tells the patch's index; or
    ``none`` at all. ``coordinates [N, 2]`` are the patches' rows and columns.
    """

    coordinates: Tensor

    def __init__(
        self,
        rules: PuzzleRules,
        embedding: PatchEmbedding | None,
        shape: Shape | None,
        table: Tensor | None,
        positions: Positions,
        localiser: Localiser,
    ) -> None:
        super().__init__()
        self.rules = rules
        self.embedding = embedding
        self.positions: Positions = positions
        self.localiser: Localiser = localiser
        self.fixed_puzzle: Puzzle | None = None
        """A puzzle to use instead of a random one."""
        self.pool = PuzzlePool()
        self.in_forward = False
        """Whether a forward pass is running, so that methods inside it draw no other puzzle."""
        self.known_counts: Tensor | None = None
        """How often each position was known in the last training batch, ``[N]``."""
        if embedding is None or table is None or shape is None:
            return
        coordinates = patch_coordinates(shape, rules.patch).to(table.device)
        self.register_buffer("coordinates", coordinates, persistent=False)
        width, spread = table.shape[-1], float(table.detach().float().std())
        draw = generator(0, "unknown position")
        if positions == "unknown":
            self.unknown = nn.Parameter(torch.randn(1, 1, width, generator=draw).to(table) * spread)
        if positions == "index":
            index = torch.randn(1, embedding.input_layer.tokens, width, generator=draw)
            self.index = nn.Parameter(index.to(table) * spread)
        if localiser in ("ln", "nln"):
            with seeded_globally(derive(0, "localiser")):
                self.head = localising_head(localiser, width).to(table)

    def __getstate__(self) -> dict[str, Any]:
        """Copies know nothing of earlier puzzles."""
        return {**self.__dict__, "known_counts": None, "fixed_puzzle": None, "in_forward": False}

    def position_table(self, own: Tensor, puzzle: Puzzle) -> Tensor:
        """Returns a batch's position embeddings ``[B, rows, D]``; ``own`` is the model's table."""
        if self.positions == "none":
            return own - own.detach()  # zero, but it still has a gradient to share
        if self.positions == "own":
            return own
        own = own if own.ndim == 3 else own[None]
        before, patches, after = self.split_rows(own)
        if self.positions == "unknown":
            kept = puzzle.kept[..., None].to(patches.dtype)
            patches = torch.lerp(self.unknown, patches, kept)
        else:
            patches = patches + (
                self.index if puzzle.order is None else self.index[0][puzzle.order]
            )
        around = [t.expand(len(patches), -1, -1) for t in (before, after)]
        return torch.cat([around[0], patches, around[1]], dim=-2)

    def split_rows(self, own: Tensor) -> tuple[Tensor, ...]:
        """Splits a table ``[..., rows, D]`` into the rows before, at and after the patches."""
        assert self.embedding is not None
        first, patches = self.embedding.offset, self.embedding.input_layer.tokens
        return torch.split(own, [first, patches, own.shape[-2] - first - patches], -2)

    def localisation_loss(self, own: Tensor) -> Tensor:
        """Returns DAL: the mean L1 distance of the guessed from the true row and column.

        The mean is over the positions known in the last training batch, weighted by how often they
        were known.
        """
        patches = self.split_rows(own)[1].reshape(-1, own.shape[-1])
        counts = patches.new_ones(len(patches)) if self.known_counts is None else self.known_counts
        if self.localiser == "pca":
            known = patches[counts.to(patches) > 0]
            if len(known) < 3:  # fewer points do not span a plane
                return own.sum() * 0
            _, _, directions = torch.pca_lowrank(known, q=2, niter=PCA_ITERATIONS)
            guessed = (patches - known.mean(0)) @ directions
        else:
            guessed = self.head(patches)
        distance = (guessed - self.coordinates).abs().sum(1)
        counts = counts.to(distance)
        return distance @ (counts / (2 * counts.sum()).clamp(min=2))


def patch_coordinates(shape: Shape, patch: tuple[int, int]) -> Tensor:
    """Returns the row and column of every patch, ``[N, 2]``."""
    rows, columns = (torch.arange(side // of) for side, of in zip(shape[1:], patch, strict=True))
    return torch.cartesian_prod(rows, columns)


def localising_head(kind: Localiser, width: int) -> nn.Module:
    """Returns a network from a position embedding to its row and column."""
    if kind == "ln":
        return nn.Linear(width, 2)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
