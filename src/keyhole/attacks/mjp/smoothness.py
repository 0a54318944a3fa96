"""The smoothest image of all that agree with what is known: total variation over a few unknowns.

Each cell's patch is ``rest_i + a_i B``: it is known except within the hidden space B, and a natural
image continues from patch to patch, so that its total variation determines the coordinates
``a_i``. It is minimised as a sequence of weighted least squares (IRLS), each by L-BFGS. Colour
differences are smoother than brightness and weigh more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from keyhole.models.anatomy import InputLayer
from keyhole.threat import Knowledge

COLOUR_WEIGHT = 3.0
"""How much more a colour difference weighs than one of brightness."""
NOISE_LEVEL = 0.02
"""Differences of neighbouring pixels below this count as noise (in model inputs)."""
RANGE_WEIGHT = 1.0
"""Weight of squared excesses beyond black and white."""
RIDGE_WEIGHT = 1e-7


class Roughness:
    """The weighted roughness of an image; seams to cells that are left out do not count.

    ``counted [C, H, W]`` is 1 for the pixels that take part.
    """

    def __init__(self, knowledge: Knowledge, counted: Tensor) -> None:
        self.low, self.high = knowledge.box(counted)
        self.counted = counted
        self.down = counted[:, 1:] * counted[:, :-1]
        self.right = counted[..., 1:] * counted[..., :-1]
        self.colour_axes = build_opponent_axes(len(counted)).to(counted)
        self.weights = (torch.ones_like(self.down), torch.ones_like(self.right))

    def differences(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted differences between neighbouring pixels, downwards and to the right."""
        turned = torch.einsum("oc,chw->ohw", self.colour_axes, image)
        down = (turned[:, 1:] - turned[:, :-1]) * self.down
        return down, (turned[..., 1:] - turned[..., :-1]) * self.right

    def __call__(self, image: Tensor) -> Tensor:
        down, right = self.differences(image)
        rough = (down.square() * self.weights[0]).sum() + (right.square() * self.weights[1]).sum()
        beyond = (image - image.clamp(self.low, self.high)) * self.counted
        ridge = (image * self.counted).square().sum()
        return rough + RANGE_WEIGHT * beyond.square().sum() + RIDGE_WEIGHT * ridge

    def reweigh(self, image: Tensor) -> None:
        """Sets the weights so that squares act as absolute values at ``image``."""
        down, right = self.differences(image)
        self.weights = (1 / (down.abs() + NOISE_LEVEL), 1 / (right.abs() + NOISE_LEVEL))


def build_opponent_axes(channels: int) -> Tensor:
    """Brightness and colour differences of RGB ``[3, 3]``; other images stay as they are."""
    if channels != 3:
        return torch.eye(channels)
    axes = torch.tensor([[1.0, 1, 1], [1, -1, 0], [1, 1, -2]])
    axes = axes / axes.norm(dim=1, keepdim=True)
    weighted: Tensor = axes * torch.tensor([1.0, COLOUR_WEIGHT, COLOUR_WEIGHT])[:, None]
    return weighted


def find_smoothest(
    patches: Tensor,
    space: Tensor,
    input_layer: InputLayer,
    knowledge: Knowledge,
    *,
    moved: Tensor,
    rounds: int,
    turns: int,
) -> Tensor:
    """The patches ``[N, F]``, those ``moved`` (bool ``[N]``) changed within ``space [k, F]``.

    Patches that are neither moved nor known yet are 0 and do not count. ``rounds``: of reweighted
    least squares; ``turns``: of L-BFGS in each.
    """
    counted = (moved | patches.ne(0).any(1)).to(patches)
    shape = knowledge.shape
    whole = counted[:, None].expand_as(patches)
    roughness = Roughness(knowledge, input_layer.assemble(whole, shape))
    where = moved.nonzero()[:, 0]

    def move(coordinates: Tensor) -> Tensor:
        return patches.index_add(0, where, coordinates @ space)

    def assemble(coordinates: Tensor) -> Tensor:
        return input_layer.assemble(move(coordinates), shape)

    coordinates = torch.zeros(len(where), len(space)).to(patches)
    for _ in range(rounds):
        coordinates = minimise(lambda c: roughness(assemble(c)), coordinates, turns)
        roughness.reweigh(assemble(coordinates))
    return move(coordinates)


@torch.enable_grad()
def minimise(loss: Callable[[Tensor], Tensor], start: Tensor, turns: int) -> Tensor:
    """Minimises a loss by L-BFGS from ``start``."""
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
        current = loss(value)
        current.backward()  # type: ignore[no-untyped-call]
        return current

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return value.detach()
