"""The image that is smooth, of all that share what is known: total variation over a few unknowns.

Each cell's patch is ``rest_i + a_i B``: off the hidden space it is known, and a natural image
runs on from patch to patch, so that its total variation tells the coordinates ``a_i``. It is
minimised as a sequence of weighted least squares (IRLS), each by L-BFGS. Colour differences are
smoother than brightness and weigh more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from keyhole.models.anatomy import InputLayer
from keyhole.threat import Knowledge

COLOUR = 3.0
"""How much more a colour difference weighs than one of brightness."""
EDGE = 0.02
"""Differences of neighbouring pixels below this count as noise (in model inputs)."""
BOX = 1.0
RIDGE = 1e-7


class Smoothness:
    """The weighted roughness of an image; seams to cells that are left out do not count."""

    def __init__(self, knowledge: Knowledge, counted: Tensor) -> None:
        """``counted [C, H, W]`` is 1 for the pixels that take part."""
        self.low, self.high = knowledge.box(counted)
        self.counted = counted
        self.down = counted[:, 1:] * counted[:, :-1]
        self.right = counted[..., 1:] * counted[..., :-1]
        self.mixing = opponent(len(counted)).to(counted)
        self.weights = (torch.ones_like(self.down), torch.ones_like(self.right))

    def differences(self, image: Tensor) -> tuple[Tensor, Tensor]:
        mixed = torch.einsum("oc,chw->ohw", self.mixing, image)
        down = (mixed[:, 1:] - mixed[:, :-1]) * self.down
        return down, (mixed[..., 1:] - mixed[..., :-1]) * self.right

    def __call__(self, image: Tensor) -> Tensor:
        down, right = self.differences(image)
        rough = (down.square() * self.weights[0]).sum() + (right.square() * self.weights[1]).sum()
        beyond = (image - image.clamp(self.low, self.high)) * self.counted
        return rough + BOX * beyond.square().sum() + RIDGE * (image * self.counted).square().sum()

    def reweigh(self, image: Tensor) -> None:
        """From squares to absolute values, at ``image``."""
        down, right = self.differences(image)
        self.weights = (1 / (down.abs() + EDGE), 1 / (right.abs() + EDGE))


def opponent(channels: int) -> Tensor:
    """Brightness and colour differences of RGB ``[3, 3]``; other images stay as they are."""
    if channels != 3:
        return torch.eye(channels)
    axes = torch.tensor([[1.0, 1, 1], [1, -1, 0], [1, 1, -2]])
    axes = axes / axes.norm(dim=1, keepdim=True)
    weighted: Tensor = axes * torch.tensor([1.0, COLOUR, COLOUR])[:, None]
    return weighted


def smoothest(
    patches: Tensor,
    space: Tensor,
    entrance: InputLayer,
    knowledge: Knowledge,
    *,
    moved: Tensor,
    rounds: int,
    turns: int,
) -> Tensor:
    """The patches ``[N, F]``, those ``moved`` (bool ``[N]``) changed within ``space [k, F]``.

    Cells of which nothing is known yet, neither moved nor given, are 0 and do not count.
    """
    counted = (moved | patches.ne(0).any(1)).to(patches)
    shape = knowledge.shape
    whole = counted[:, None].expand_as(patches)
    measure = Smoothness(knowledge, entrance.assemble(whole, shape))
    where = moved.nonzero()[:, 0]

    def image(code: Tensor) -> Tensor:
        return entrance.assemble(patches.index_add(0, where, code @ space), shape)

    code = torch.zeros(len(where), len(space)).to(patches)
    for _ in range(rounds):
        code = descend(lambda c: measure(image(c)), code, turns)
        measure.reweigh(image(code))
    return patches.index_add(0, where, code @ space)


@torch.enable_grad()
def descend(loss: Callable[[Tensor], Tensor], start: Tensor, turns: int) -> Tensor:
    """L-BFGS from ``start``."""
    value = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [value],
        max_iter=turns,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        found = loss(value)
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return value.detach()
