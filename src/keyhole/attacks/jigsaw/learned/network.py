"""A network that has seen many images and corrects what the seams of one image say."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells, join_pieces, quarter_numbers
from keyhole.attacks.jigsaw.regions.thumbnails import build_thumbnail

MIN_CONTRAST = 0.02
"""Regions whose pixels deviate by less than this are not stretched to the contrast of others."""
MIN_LOG_BELIEF = -8.0
"""The log of the least belief that counts: what seams exclude may be true nevertheless."""


class Unscrambler(nn.Module):
    """Corrects what seams say about the pieces of 4x4 cells by what images usually look like.

    A region's sixteen cells and the sixteen pieces that lie somewhere in them are tokens that
    attend to each other. A piece does not know where the shuffle put it, which says nothing, but
    where the seams would put it; a cell knows which pieces the seams would put there. Convolutions
    over the grid of all cells bring in the neighbours. The logit of a piece in a cell is

        trust(cell) log(belief) + query(cell) key(piece) / sqrt(width),

    which before training is the belief alone.

    Args:
        side: The side of a cell, in pixels.
        width: The length of a token.
        depth: The number of layers.
        heads: The number of attention heads.
    """

    def __init__(self, side: int = 2, width: int = 48, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.side, self.width, self.depth, self.heads = side, width, depth, heads
        # Names of layers are names of weights in the shipped file, where pieces are "items".
        self.of_items = nn.Linear(2 * side**2 + 3, width)
        self.of_cells = nn.Linear(side**2 + 4, width)
        self.places = nn.Parameter(torch.randn(CELLS, width) * 0.1)
        self.quarters = nn.Parameter(torch.randn(4, width) * 0.1)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.trust = nn.Linear(width, 1)
        self.asked = nn.Linear(width, width)
        self.offered = nn.Linear(width, width)
        for layer in (self.trust, self.asked):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, cells: Cells, beliefs: Tensor) -> Tensor:
        """Logits of pieces (last axis) in cells, ``[B, R, Q, 16, 16]``; coarse blocks stay whole.

        Args:
            cells: The cells of grey images.
            beliefs: Those of the seams, ``[B, R, Q, 16, 16]``.
        """
        pieces, places = self.build_tokens(cells)
        pieces, places = pieces + beliefs.mT @ self.places, places + beliefs @ pieces
        for layer in self.layers:
            pieces, places = layer(pieces, places)
        places = self.norms[0](places)
        query, key = self.asked(places), self.offered(self.norms[1](pieces))
        from_seams = beliefs.log().clamp_min(MIN_LOG_BELIEF) * (1 + self.trust(places))
        scores = query @ key.mT / self.width**0.5 + from_seams / cells.cells_per_block
        logits: Tensor = cells.sum_over_blocks(scores)
        return logits - cells.forbidden

    def build_tokens(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """Tokens of pieces and of cells before the first layer, ``[B, R, Q, 16, width]`` each.

        A piece's: its pixels less the region's mean, in grey levels and in the region's standard
        deviations. A cell's: its part of the thumbnail, likewise, and whether it is real.

        Args:
            cells: The cells of grey images.
        """
        values = cells.pieces[:, 0].flatten(4)
        real = cells.real.to(values)[..., None]
        count = (real.sum(-2, keepdim=True) * values.shape[-1]).clamp_min(1)
        mean = (values * real).sum((-2, -1), keepdim=True) / count
        deviations = (values - mean) * real
        spread = (deviations.square().sum((-2, -1), keepdim=True) / count).sqrt()
        scale = spread + MIN_CONTRAST
        coarse = cells.coarse[..., None, None].to(values)
        shared = torch.cat([mean, 5 * spread, coarse], -1).expand(*values.shape[:4], 3)
        thumbnail = (self.cut_thumbnail(cells).flatten(4) - mean) / scale * real
        is_real = real.expand(*values.shape[:4], 1)
        pieces = self.of_items(torch.cat([deviations, deviations / scale, shared], -1))
        places = self.of_cells(torch.cat([thumbnail, shared, is_real], -1)) + self.places
        return pieces + coarse * self.quarters[quarter_numbers(pieces.device)], places

    def cut_thumbnail(self, cells: Cells) -> Tensor:
        """The thumbnail of the images as cells ``[B, R, Q, 16, side, side]``.

        Args:
            cells: The cells of grey images.
        """
        rows, columns = cells.coarse.shape[1:]
        real = cells.real.view(rows, columns, 4, 4)
        height = int(real.any(3).any(1).sum()) * self.side
        width = int(real.any(2).any(0).sum()) * self.side
        return cells.cut(build_thumbnail(join_pieces(cells.pieces, height, width)))[:, 0]


class Layer(nn.Module):
    """Attention among the pieces and cells of a region, then convolution over the grid of cells."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.asked = nn.Linear(width, 3 * width)
        self.answered = nn.Linear(width, width)
        self.around = nn.Conv2d(width, width, 3, padding=1)
        self.beside = nn.Linear(width, width)
        self.mixed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, pieces: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """New tokens of pieces and of cells, ``[B, R, Q, 16, width]`` each, as before."""
        tokens = torch.cat([pieces, places], -2)
        tokens = tokens + self.attend(self.norms[0](tokens))
        pieces, places = tokens[..., :CELLS, :], tokens[..., CELLS:, :]
        places = places + self.beside(F.gelu(self.convolve(self.norms[1](places))))
        tokens = torch.cat([pieces, places], -2)
        tokens = tokens + self.mixed(self.norms[2](tokens))
        return tokens[..., :CELLS, :], tokens[..., CELLS:, :]

    def attend(self, tokens: Tensor) -> Tensor:
        """Self-attention among the tokens of each region, ``[B, R, Q, 32, width]``."""
        count, width = tokens.shape[-2:]
        three = self.asked(tokens).view(-1, count, 3, self.heads, width // self.heads)
        query, key, value = three.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value)
        attended: Tensor = self.answered(found.transpose(1, 2).reshape(tokens.shape))
        return attended

    def convolve(self, places: Tensor) -> Tensor:
        """The convolution of ``[B, R, Q, 16, width]`` over the grid of the whole image's cells."""
        batch, rows, columns, _, width = places.shape
        grid = places.reshape(batch, rows, columns, 4, 4, width)
        grid = grid.permute(0, 5, 1, 3, 2, 4).reshape(-1, width, 4 * rows, 4 * columns)
        convolved: Tensor = self.around(grid).view(-1, width, rows, 4, columns, 4)
        return convolved.permute(0, 2, 4, 3, 5, 1).reshape(places.shape)
