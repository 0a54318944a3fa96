"""What a puzzle adds to a model: parameters for unknown positions, and where patches belong."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from keyhole.models.anatomy import PatchEmbedding, Shape
from keyhole.models.puzzle import Dealer, Puzzle, Rules
from keyhole.seeds import derive, generator, seeded_globally

Positions = Literal["unknown", "own", "index", "none"]
Localiser = Literal["nln", "ln", "pca", "none"]

PCA_TURNS = 5


class Board(nn.Module):
    """What a puzzle adds to a model: the unknown position, an index table, a localiser.

    ``positions`` of a covered patch are ``unknown`` (one row shared by all), its ``own`` slot's,
    its slot's plus one that tells the patch's ``index``, or there are ``none`` at all.
    ``places [N, 2]`` are the patches' rows and columns.
    """

    places: Tensor

    def __init__(
        self,
        rules: Rules,
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
        self.answer: Puzzle | None = None
        """A puzzle to be laid in place of a drawn one."""
        self.dealer = Dealer()
        self.playing = False
        """Whether a forward pass is under way, so that a method within it lays no other puzzle."""
        self.uncovered: Tensor | None = None
        """How often each position was known in the last training batch, ``[N]``."""
        if embedding is None or table is None or shape is None:
            return
        cells = places(shape, rules.patch).to(table.device)
        self.register_buffer("places", cells, persistent=False)
        width, spread = table.shape[-1], float(table.detach().float().std())
        draw = generator(0, "unknown position")
        if positions == "unknown":
            self.unknown = nn.Parameter(torch.randn(1, 1, width, generator=draw).to(table) * spread)
        if positions == "index":
            index = torch.randn(1, embedding.entrance.tokens, width, generator=draw)
            self.index = nn.Parameter(index.to(table) * spread)
        if localiser in ("ln", "nln"):
            with seeded_globally(derive(0, "localiser")):
                self.head = localising_head(localiser, width).to(table)

    def __getstate__(self) -> dict[str, Any]:
        """A copy knows nothing of the puzzles that were laid."""
        return {**self.__dict__, "uncovered": None, "answer": None, "playing": False}

    def table(self, own: Tensor, puzzle: Puzzle) -> Tensor:
        """The positions of a batch, ``[B, rows, D]``, from the model's own ``[1, rows, D]``."""
        if self.positions == "none":
            return own - own.detach()  # nought, and yet its gradient is shared
        if self.positions == "own":
            return own
        own = own if own.ndim == 3 else own[None]
        before, patches, after = self.rows(own)
        if self.positions == "unknown":
            kept = puzzle.kept[..., None].to(patches.dtype)
            patches = torch.lerp(self.unknown, patches, kept)
        else:
            patches = patches + (
                self.index if puzzle.order is None else self.index[0][puzzle.order]
            )
        around = [t.expand(len(patches), -1, -1) for t in (before, after)]
        return torch.cat([around[0], patches, around[1]], dim=-2)

    def rows(self, own: Tensor) -> tuple[Tensor, ...]:
        """A position table ``[..., rows, D]`` before, at and after the patches."""
        assert self.embedding is not None
        first, patches = self.embedding.offset, self.embedding.entrance.tokens
        return torch.split(own, [first, patches, own.shape[-2] - first - patches], -2)

    def localisation(self, own: Tensor) -> Tensor:
        """DAL: the mean L1 distance of the guessed from the true row and column (scalar).

        Over the positions that were known in the last training batch, as often as they were.
        """
        patches = self.rows(own)[1].reshape(-1, own.shape[-1])
        seen = patches.new_ones(len(patches)) if self.uncovered is None else self.uncovered
        if self.localiser == "pca":
            known = patches[seen.to(patches) > 0]
            if len(known) < 3:  # fewer points make no plane
                return own.sum() * 0
            _, _, directions = torch.pca_lowrank(known, q=2, niter=PCA_TURNS)
            guessed = (patches - known.mean(0)) @ directions
        else:
            guessed = self.head(patches)
        off = (guessed - self.places).abs().sum(1)
        seen = seen.to(off)
        return off @ (seen / (2 * seen.sum()).clamp(min=2))


def places(shape: Shape, patch: tuple[int, int]) -> Tensor:
    """Row and column of every patch, ``[N, 2]``."""
    rows, columns = (torch.arange(side // of) for side, of in zip(shape[1:], patch, strict=True))
    return torch.cartesian_prod(rows, columns)


def localising_head(kind: Localiser, width: int) -> nn.Module:
    """From a position's embedding to its row and column."""
    if kind == "ln":
        return nn.Linear(width, 2)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
