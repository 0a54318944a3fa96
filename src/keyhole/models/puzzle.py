"""A masked jigsaw puzzle: which patches of an image are covered, and in which order they lie.

Networks ask for their puzzles through :func:`lay`, which a
:class:`~keyhole.models.dropout_sites.DropoutMode` can answer in place of chance: so that a client's
draws can be recorded, and an attacker can say which patches it believes were covered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from keyhole.errors import DoesNotFit
from keyhole.models.block_masks import Grid, block_masks


@dataclass(frozen=True)
class Rules:
    """How puzzles are drawn: the share of patches that is covered, and their height and width.

    ``alike``: one puzzle for the whole batch. ``pixels``: all patches are shuffled, and the pixels
    inside them as well, by one permutation for all patches of an image (SPP).
    """

    gamma: float
    patch: tuple[int, int] = (16, 16)
    alike: bool = False
    pixels: bool = False
    share: float = 1.0
    """The share of training batches that are made puzzles."""

    @property
    def idle(self) -> bool:
        """Whether nothing is ever moved."""
        return not (self.pixels or self.gamma) or not self.share

    def grid(self, images: Tensor) -> Grid:
        """Rows and columns of patches in ``images [..., H, W]``."""
        (height, width), (tall, wide) = images.shape[-2:], self.patch
        if height % tall or width % wide:
            raise DoesNotFit(
                f"images of {height}x{width} cannot be cut into patches of {tall}x{wide} pixels"
            )
        return height // tall, width // wide


@dataclass(frozen=True)
class Puzzle:
    """Puzzles of a batch.

    ``kept [B, N]`` is 1 where a position is known and 0 where it is covered; slot i of an image
    shows its patch ``order[b, i]`` (None: all lie where they belong).
    """

    kept: Tensor
    order: Tensor | None = None
    pixels: Tensor | None = None
    """The permutation inside patches, ``[B, pixels of a patch]``."""


class Dealer:
    """Deals puzzles from a stack that is drawn at once when it has run out.

    Drawing is a chain of small operations whose time hardly depends on how many are drawn.
    A copy starts without a stack: clients that copy one model do not draw the same puzzles, and
    whoever is given a copy does not see those that are still to come.
    """

    AHEAD = 32
    """Batches that are drawn at once."""

    def __init__(self) -> None:
        self.stack: tuple[Tensor, Tensor] | None = None
        self.kind: tuple[object, ...] = ()

    def __deepcopy__(self, memo: dict[int, object]) -> Dealer:
        return Dealer()

    def deal(self, count: int, grid: Grid, gamma: float, like: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept and the order, each ``[count, N]``, of puzzles never dealt before."""
        stack, kind = self.stack, (grid, gamma, like.device, like.dtype)
        if stack is None or len(stack[0]) < count or kind != self.kind:
            covered = block_masks(self.AHEAD * count, grid, gamma, device=like.device).flatten(1)
            stack = (~covered).to(like.dtype), random_orders(covered)
        self.stack, self.kind = (stack[0][count:], stack[1][count:]), kind
        return stack[0][:count], stack[1][:count]


def lay(
    images: Tensor, rules: Rules, position: str | None = None, dealer: Dealer | None = None
) -> Puzzle:
    """A puzzle for each of ``images [B, C, H, W]``, from torch's global generator.

    ``position`` is the name of the parameter whose rows are not used where a patch is covered.
    """
    if has_torch_function((images,)):
        found: Puzzle = handle_torch_function(lay, (images,), images, rules, position, dealer)
        return found
    return drawn(images, rules, dealer=dealer)


def drawn(
    images: Tensor,
    rules: Rules,
    generator: torch.Generator | None = None,
    *,
    dealer: Dealer | None = None,
) -> Puzzle:
    """What chance lays: from ``generator``, or from the stack of a ``dealer``."""
    if rules.share < 1 and float(torch.rand((), generator=generator)) >= rules.share:
        return solved(images, rules)
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
    elif dealer is not None:
        kept, order = dealer.deal(count, grid, rules.gamma, images)
    else:
        masks = block_masks(count, grid, rules.gamma, generator=generator, device=device)
        kept = (~masks.flatten(1)).to(images.dtype)
        order = random_orders(masks.flatten(1), generator)
    spread = len(images) if rules.alike else -1
    return Puzzle(
        kept.expand(spread, -1),
        order.expand(spread, -1),
        None if inner is None else inner.expand(spread, -1),
    )


def solved(images: Tensor, rules: Rules) -> Puzzle:
    """All positions known, every patch where it belongs."""
    rows, columns = rules.grid(images)
    return Puzzle(images.new_ones(len(images), rows * columns))


def random_orders(moved: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Uniform permutations of the cells that are ``moved [B, N]``; the others stay: ``[B, N]``.

    >>> random_orders(torch.tensor([[False, True, False]]))
    tensor([[0, 1, 2]])
    """
    cells = moved.shape[1]
    place = torch.arange(cells, device=moved.device).expand_as(moved)
    chance = torch.rand(moved.shape, generator=generator, device=moved.device)
    by_place = torch.where(moved, place, cells + place).argsort(1)
    by_chance = torch.where(moved, chance, 1.0 + place).argsort(1)
    return torch.empty_like(by_place).scatter_(1, by_place, by_chance)


def shuffled(images: Tensor, puzzle: Puzzle, rules: Rules) -> Tensor:
    """The images as the network sees them, ``[B, C, H, W]``."""
    if puzzle.order is None:
        return images
    grid = rules.grid(images)
    patches = cut(images, grid)
    order = puzzle.order[:, :, None, None].expand_as(patches)
    patches = patches.gather(1, order)
    if puzzle.pixels is not None:
        inner = puzzle.pixels[:, None, None, :].expand_as(patches)
        patches = patches.gather(3, inner)
    # Written into a tensor of the images' own layout: convolutions differ in speed by it.
    made = torch.empty_like(images)
    places = apart(made, grid)
    places.copy_(patches.view(places.shape))
    return made


def cut(images: Tensor, grid: Grid) -> Tensor:
    """``[B, C, H, W]`` into patches ``[B, N, C, pixels]``, row by row."""
    return apart(images.contiguous(), grid).flatten(4).flatten(1, 2)


def apart(images: Tensor, grid: Grid) -> Tensor:
    """A view of ``[B, C, H, W]`` by patches, ``[B, rows, columns, C, tall, wide]``."""
    (batch, channels, height, width), (rows, columns) = images.shape, grid
    split = images.view(batch, channels, rows, height // rows, columns, width // columns)
    return split.permute(0, 2, 4, 1, 3, 5)


def paste(patches: Tensor, shape: torch.Size, grid: Grid) -> Tensor:
    """Patches ``[B, N, C, pixels]`` put together to ``shape``: the inverse of :func:`cut`."""
    batch, channels, height, width = shape
    (rows, columns), (tall, wide) = grid, (height // grid[0], width // grid[1])
    laid = patches.reshape(batch, rows, columns, channels, tall, wide)
    return laid.permute(0, 3, 1, 4, 2, 5).reshape(shape)
