"""Masked jigsaw puzzles: which patches of an image are covered, and in which order they lie.

Networks get their puzzles from :func:`draw_puzzle`, which a
:class:`~keyhole.models.dropout_sites.DropoutMode` can intercept: so that a client's puzzles can be
recorded, and an attacker can choose which patches it believes were covered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from keyhole.errors import DoesNotFit
from keyhole.models.block_masks import Grid, block_masks


@dataclass(frozen=True)
class PuzzleRules:
    """How puzzles are drawn.

    Args:
        gamma: The fraction of patches that is covered.
        patch: Height and width of a patch.
        alike: Whether the whole batch gets the same puzzle.
        pixels: Whether all patches are shuffled, and the pixels inside them as well, by one
            permutation for all patches of an image (SPP).
        share: The fraction of training batches that become puzzles.
    """

    gamma: float
    patch: tuple[int, int] = (16, 16)
    alike: bool = False
    pixels: bool = False
    share: float = 1.0

    @property
    def moves_nothing(self) -> bool:
        """Whether these rules never move a patch."""
        return not (self.pixels or self.gamma) or not self.share

    def grid(self, images: Tensor) -> Grid:
        """Returns the rows and columns of patches in images.

        Args:
            images: ``[..., H, W]``.
        """
        (height, width), (tall, wide) = images.shape[-2:], self.patch
        if height % tall or width % wide:
            raise DoesNotFit(
                f"images of {height}x{width} cannot be cut into patches of {tall}x{wide} pixels"
            )
        return height // tall, width // wide


@dataclass(frozen=True)
class Puzzle:
    """The puzzles of a batch.

    Args:
        kept: ``[B, N]``, 1 where a position is known and 0 where it is covered.
        order: ``[B, N]``; slot i of image b shows its patch ``order[b, i]``. None means that all
            patches are in their own slots.
        pixels: The permutation inside patches, ``[B, pixels per patch]``.
    """

    kept: Tensor
    order: Tensor | None = None
    pixels: Tensor | None = None


class PuzzlePool:
    """A supply of puzzles, drawn many at a time.

    Drawing is a chain of small operations whose time hardly depends on how many puzzles are drawn.
    A copy of a pool is empty: clients that copy one model do not draw the same puzzles, and whoever
    gets a copy does not see those that are still to come.
    """

    BATCHES = 32
    """Batches that are drawn at once."""

    def __init__(self) -> None:
        self.supply: tuple[Tensor, Tensor] | None = None
        self.kind: tuple[object, ...] = ()

    def __deepcopy__(self, memo: dict[int, object]) -> PuzzlePool:
        return PuzzlePool()

    def take(self, count: int, grid: Grid, gamma: float, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ``kept`` and ``order``, each ``[count, N]``, of puzzles never taken before."""
        supply, kind = self.supply, (grid, gamma, like.device, like.dtype)
        if supply is None or len(supply[0]) < count or kind != self.kind:
            covered = block_masks(self.BATCHES * count, grid, gamma, device=like.device).flatten(1)
            supply = (~covered).to(like.dtype), random_orders(covered)
        self.supply, self.kind = (supply[0][count:], supply[1][count:]), kind
        return supply[0][:count], supply[1][:count]


def draw_puzzle(
    images: Tensor, rules: PuzzleRules, position: str | None = None, pool: PuzzlePool | None = None
) -> Puzzle:
    """Draws a puzzle for each of ``images [B, C, H, W]`` from torch's global generator.

    ``position`` is the name of the parameter whose rows are not used where a patch is covered.
    """
    if has_torch_function((images,)):
        found: Puzzle = handle_torch_function(draw_puzzle, (images,), images, rules, position, pool)
        return found
    return draw_random_puzzle(images, rules, pool=pool)


def draw_random_puzzle(
    images: Tensor,
    rules: PuzzleRules,
    generator: torch.Generator | None = None,
    *,
    pool: PuzzlePool | None = None,
) -> Puzzle:
    """Draws a random puzzle for each image.

    Args:
        images: ``[B, C, H, W]``.
        rules: How puzzles are drawn.
        generator: Draws them; None means torch's global generator.
        pool: Where they are taken from instead of being drawn.
    """
    if rules.share < 1 and float(torch.rand((), generator=generator)) >= rules.share:
        return solved_puzzle(images, rules)
    grid = rules.grid(images)
    cells = grid[0] * grid[1]
    count = 1 if rules.alike else len(images)
    device = images.device
    inner = None
    if rules.pixels:
        size = images.shape[2] * images.shape[3] // cells
        inner = random_orders(torch.ones(count, size, dtype=torch.bool, device=device), generator)
        kept = images.new_ones(count, cells)
        order = random_orders(kept > 0, generator)
    elif pool is not None:
        kept, order = pool.take(count, grid, rules.gamma, images)
    else:
        masks = block_masks(count, grid, rules.gamma, generator=generator, device=device)
        kept = (~masks.flatten(1)).to(images.dtype)
        order = random_orders(masks.flatten(1), generator)
    copies = len(images) if rules.alike else -1
    return Puzzle(
        kept.expand(copies, -1),
        order.expand(copies, -1),
        None if inner is None else inner.expand(copies, -1),
    )


def solved_puzzle(images: Tensor, rules: PuzzleRules) -> Puzzle:
    """Returns a puzzle in which all positions are known and every patch is in its own slot."""
    rows, columns = rules.grid(images)
    return Puzzle(images.new_ones(len(images), rows * columns))


def random_orders(moved: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns uniform permutations ``[B, N]`` of the cells in ``moved [B, N]``; others stay.

    >>> random_orders(torch.tensor([[False, True, False]]))
    tensor([[0, 1, 2]])
    """
    cells = moved.shape[1]
    place = torch.arange(cells, device=moved.device).expand_as(moved)
    chance = torch.rand(moved.shape, generator=generator, device=moved.device)
    by_place = torch.where(moved, place, cells + place).argsort(1)
    by_chance = torch.where(moved, chance, 1.0 + place).argsort(1)
    return torch.empty_like(by_place).scatter_(1, by_place, by_chance)


def apply_puzzle(images: Tensor, puzzle: Puzzle, rules: PuzzleRules) -> Tensor:
    """Returns the shuffled images ``[B, C, H, W]`` that the network sees.

    Args:
        images: ``[B, C, H, W]``.
        puzzle: The puzzle of each image.
        rules: The rules by which it was drawn.
    """
    if puzzle.order is None:
        return images
    grid = rules.grid(images)
    patches = cut_patches(images, grid)
    order = puzzle.order[:, :, None, None].expand_as(patches)
    patches = patches.gather(1, order)
    if puzzle.pixels is not None:
        inner = puzzle.pixels[:, None, None, :].expand_as(patches)
        patches = patches.gather(3, inner)
    # Written into a tensor of the images' own layout: the speed of convolutions depends on it.
    result = torch.empty_like(images)
    slots = view_patches(result, grid)
    slots.copy_(patches.view(slots.shape))
    return result


def cut_patches(images: Tensor, grid: Grid) -> Tensor:
    """Cuts ``[B, C, H, W]`` into patches ``[B, N, C, pixels]``, row by row."""
    return view_patches(images.contiguous(), grid).flatten(4).flatten(1, 2)


def view_patches(images: Tensor, grid: Grid) -> Tensor:
    """Returns a view of ``[B, C, H, W]`` by patches, ``[B, rows, columns, C, tall, wide]``."""
    (batch, channels, height, width), (rows, columns) = images.shape, grid
    split = images.view(batch, channels, rows, height // rows, columns, width // columns)
    return split.permute(0, 2, 4, 1, 3, 5)


def join_patches(patches: Tensor, shape: torch.Size, grid: Grid) -> Tensor:
    """Joins patches ``[B, N, C, pixels]`` to ``shape``: the inverse of :func:`cut_patches`."""
    batch, channels, height, width = shape
    (rows, columns), (tall, wide) = grid, (height // grid[0], width // grid[1])
    grid_of_patches = patches.reshape(batch, rows, columns, channels, tall, wide)
    return grid_of_patches.permute(0, 3, 1, 4, 2, 5).reshape(shape)
