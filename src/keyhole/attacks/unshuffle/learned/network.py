"""A network that guesses an image from its shuffled blocks, one colour plane at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.unshuffle.regions.cells import CELLS, Cells, cells, paste
from keyhole.attacks.unshuffle.regions.thumbnails import thumbnail
from keyhole.defenses.regions import sensitive


class Unscrambler(nn.Module):
    """Guesses originals of images whose cells (S/4) have ``side`` pixels.

    A region's sixteen cells are tokens that attend to each other, so that a place can look for the
    block that belongs there; convolutions over the grid of cells bring in the neighbours. What is
    guessed is the difference from the thumbnail, which is certain.
    """

    def __init__(self, side: int = 2, width: int = 64, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.side = side
        self.entrance = nn.Linear(2 * side**2 + 2, width)
        self.places = nn.Parameter(torch.randn(CELLS, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.exit = nn.Linear(width, side**2)
        nn.init.zeros_(self.exit.weight)

    def forward(self, shuffled: Tensor) -> Tensor:
        """A guess of the originals of ``shuffled [B, C, H, W]`` in [0, 1]."""
        height, width = shuffled.shape[-2:]
        coarse = thumbnail(shuffled)
        parts = cells(shuffled, sensitive(shuffled))
        tokens = self.entrance(self.seen(parts, coarse)) + self.places
        for layer in self.layers:
            tokens = layer(tokens)
        guessed = self.exit(self.norm(tokens)).unflatten(-1, (self.side, self.side))
        made: Tensor = coarse + paste(guessed, height, width)
        return made

    def seen(self, parts: Cells, coarse: Tensor) -> Tensor:
        """What is known of each cell ``[B, C, R, Q, 16, 2 * side^2 + 2]``: the block that lies
        there and the thumbnail, both less the region's mean, and whether blocks are coarse."""
        items, small = parts.items.flatten(5), parts.of(coarse).flatten(5)
        real = parts.real.to(items)[..., None]
        count = real.sum((-2, -1), keepdim=True).clamp(min=1) * items.shape[-1]
        mean = (items * real).sum((-2, -1), keepdim=True) / count
        flag = parts.coarse[:, None, :, :, None, None].to(items).expand(*items.shape[:5], 1)
        inside = real.expand(*items.shape[:5], 1)
        return torch.cat([(items - mean) * real, (small - mean) * real, flag, inside], -1)


class Layer(nn.Module):
    """Attention among the cells of a region, then a convolution over the grid of all cells."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width)
        self.answered = nn.Linear(width, width)
        self.around = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.mixed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, C, R, Q, 16, width]``, the same again."""
        batch, planes, rows, columns, _, width = tokens.shape
        three = self.asked(self.first(tokens)).view(-1, CELLS, 3, self.heads, width // self.heads)
        query, key, value = three.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.answered(found.transpose(1, 2).reshape(tokens.shape))
        grid = self.second(tokens).view(batch * planes, rows, columns, 4, 4, width)
        grid = grid.permute(0, 5, 1, 3, 2, 4).reshape(-1, width, 4 * rows, 4 * columns)
        near = self.around(grid).view(-1, width, rows, 4, columns, 4).permute(0, 2, 4, 3, 5, 1)
        made: Tensor = tokens + self.mixed(near.reshape(tokens.shape))
        return made
