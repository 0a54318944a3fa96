"""A network that has seen many images, and corrects what seams say of one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells, paste, quarters
from keyhole.attacks.jigsaw.regions.thumbnails import thumbnail

FLAT = 0.02
"""Regions whose pixels deviate by less than this are not stretched to the contrast of others."""
FAINTEST = -8.0
"""The log of the least belief that counts: what seams exclude may be so nevertheless."""


class Unscrambler(nn.Module):
    """Corrects what seams say of the items of 4x4 cells, ``side`` pixels each, by what is usual.

    A region's sixteen cells and the sixteen items that lie somewhere in them are tokens that attend
    to each other. Items know nothing of where they lie, as the shuffle tells nothing, but where the
    seams would put them; cells know what the seams would put there. Convolutions over the grid of
    all cells bring in the neighbours. The logit of an item in a cell is

        trust(cell) log(belief) + query(cell) key(item) / sqrt(width),

    at first the belief alone.
    """

    def __init__(self, side: int = 2, width: int = 48, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.side, self.width, self.depth, self.heads = side, width, depth, heads
        self.of_items = nn.Linear(2 * side**2 + 3, width)
        self.of_cells = nn.Linear(side**2 + 4, width)
        self.places = nn.Parameter(torch.randn(CELLS, width) * 0.1)
        self.quarters = nn.Parameter(torch.randn(4, width) * 0.1)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.trust = nn.Linear(width, 1)
        self.asked = nn.Linear(width, width)
        self.offered = nn.Linear(width, width)
        for unspoken in (self.trust, self.asked):
            nn.init.zeros_(unspoken.weight)
            nn.init.zeros_(unspoken.bias)

    def forward(self, parts: Cells, belief: Tensor) -> Tensor:
        """Logits of items (last axis) in cells, ``[B, R, Q, 16, 16]``, of grey ``parts``.

        ``belief``: that of the seams, the same shape. In coarse regions whole blocks are judged.
        """
        items, cells = self.tokens(parts)
        items, cells = items + belief.mT @ self.places, cells + belief @ items
        for layer in self.layers:
            items, cells = layer(items, cells)
        cells = self.norms[0](cells)
        query, key = self.asked(cells), self.offered(self.norms[1](items))
        told = belief.log().clamp_min(FAINTEST) * (1 + self.trust(cells))
        made: Tensor = parts.as_blocks(query @ key.mT / self.width**0.5 + told / sizes(parts))
        return made - parts.cannot

    def tokens(self, parts: Cells) -> tuple[Tensor, Tensor]:
        """Items and cells before the first layer, ``[B, R, Q, 16, width]`` each.

        Of an item: its pixels less the region's mean, in grey levels and in the region's standard
        deviations. Of a cell: its part of the thumbnail, likewise, and whether it is real.
        """
        values = parts.items[:, 0].flatten(4)
        real = parts.real.to(values)[..., None]
        count = (real.sum(-2, keepdim=True) * values.shape[-1]).clamp_min(1)
        mean = (values * real).sum((-2, -1), keepdim=True) / count
        shades = (values - mean) * real
        spread = (shades.square().sum((-2, -1), keepdim=True) / count).sqrt()
        scale = spread + FLAT
        coarse = parts.coarse[..., None, None].to(values)
        shared = torch.cat([mean, 5 * spread, coarse], -1).expand(*values.shape[:4], 3)
        small = (self.thumbnail(parts).flatten(4) - mean) / scale * real
        inside = real.expand(*values.shape[:4], 1)
        items = self.of_items(torch.cat([shades, shades / scale, shared], -1))
        cells = self.of_cells(torch.cat([small, shared, inside], -1)) + self.places
        return items + coarse * self.quarters[quarters(items.device)], cells

    def thumbnail(self, parts: Cells) -> Tensor:
        """That of the image that ``parts`` are of, as cells ``[B, R, Q, 16, side, side]``."""
        rows, columns = parts.coarse.shape[1:]
        whole = parts.real.view(rows, columns, 4, 4)
        height = int(whole.any(3).any(1).sum()) * self.side
        width = int(whole.any(2).any(0).sum()) * self.side
        return parts.of(thumbnail(paste(parts.items, height, width)))[:, 0]


def sizes(parts: Cells) -> Tensor:
    """How many cells the blocks of each region have, ``[B, R, Q, 1, 1]``."""
    return torch.where(parts.coarse, 4, 1)[..., None, None]


class Layer(nn.Module):
    """Attention among the items and cells of a region, then convolution over the grid of cells."""

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

    def forward(self, items: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, R, Q, 16, width]`` each, the same again."""
        tokens = torch.cat([items, cells], -2)
        tokens = tokens + self.attended(self.norms[0](tokens))
        items, cells = tokens[..., :CELLS, :], tokens[..., CELLS:, :]
        cells = cells + self.beside(F.gelu(self.near(self.norms[1](cells))))
        tokens = torch.cat([items, cells], -2)
        tokens = tokens + self.mixed(self.norms[2](tokens))
        return tokens[..., :CELLS, :], tokens[..., CELLS:, :]

    def attended(self, tokens: Tensor) -> Tensor:
        """What each of ``[B, R, Q, 32, width]`` finds among its region's."""
        count, width = tokens.shape[-2:]
        three = self.asked(tokens).view(-1, count, 3, self.heads, width // self.heads)
        query, key, value = three.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value)
        made: Tensor = self.answered(found.transpose(1, 2).reshape(tokens.shape))
        return made

    def near(self, cells: Tensor) -> Tensor:
        """The convolution of ``[B, R, Q, 16, width]``, laid out as the image has them."""
        batch, rows, columns, _, width = cells.shape
        grid = cells.reshape(batch, rows, columns, 4, 4, width)
        grid = grid.permute(0, 5, 1, 3, 2, 4).reshape(-1, width, 4 * rows, 4 * columns)
        laid: Tensor = (
            self.around(grid).view(-1, width, rows, 4, columns, 4).permute(0, 2, 4, 3, 5, 1)
        )
        return laid.reshape(cells.shape)
