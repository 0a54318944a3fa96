"""A batch's gradient at a fully connected layer, taken apart into its images.

``dW = D X``: one column of D and one row of X for each image, and ``db = D 1``. What is known up to
the length of each row of X gets its length from the bias' gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.analytic.sparse_directions import LowRank
from keyhole.update import Update


@dataclass(frozen=True)
class Parts:
    """What single images added to a gradient.

    Args:
        inputs: The layer's input of each image, ``X [b, inputs]``.
        gradients: The gradient at the layer's output of each image, ``D^T [b, units]``.
    """

    inputs: Tensor
    gradients: Tensor


def factor(update: Update, weight: str, limit: int) -> LowRank | None:
    """The factors of a weight's gradient, in float64 and up to a common factor; None: it is zero.

    Args:
        update: What the client sent.
        weight: The weight's name.
        limit: The most images that there can be.
    """
    gradient = read_gradient(update, weight)
    norms = gradient.norm(dim=1)
    kept = norms > 1e-9 * norms.max()
    if not bool(kept.any()):
        return None
    gradient = gradient[kept]
    left, strengths, right = torch.linalg.svd(gradient, full_matrices=False)
    units, inputs = gradient.shape
    precision = torch.finfo(update.change[weight].dtype).eps
    rank = min(limit, int((strengths > 2 * precision * strengths[0]).sum()))
    rest = strengths[rank:].square().sum() / max(1, (units - rank) * (inputs - rank))
    typical = gradient.square().mean().sqrt()
    rounding = max(float(rest.sqrt()), precision * float(typical) / 4)
    return LowRank(
        left[:, :rank], strengths[:rank, None] * right[:rank], strengths[:rank], rounding
    )


def read_gradient(update: Update, name: str) -> Tensor:
    """A parameter's gradient on the CPU in float64, flattened to rows, or a vector: its own size.

    It is divided by the update's largest entry, which keeps extreme factors away from the limits.
    """
    scale = max(float(t.abs().max()) for t in update.change.values() if t.is_floating_point())
    tensor = -update.change[name].detach().cpu().double() / (scale or 1.0)
    return tensor.flatten(1) if tensor.ndim > 1 else tensor


def take_apart(
    directions: Tensor, factors: LowRank, gradient: Tensor, bias: Tensor | None
) -> Parts:
    """The images of a complete set of directions.

    Args:
        directions: The columns of Q, ``[b, b]``: one row for each image.
        factors: The gradient's factors.
        gradient: The weight's gradient, ``[units, inputs]``.
        bias: The bias' gradient ``[units]``; None: every row of X stays of length 1.
    """
    rows, singular = torch.linalg.solve_ex(directions.T, factors.right)
    if bool(singular):  # two directions are the same, and the images are mixtures at best
        rows = torch.linalg.pinv(directions.T) @ factors.right
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    columns = torch.linalg.lstsq(rows.T, gradient.T).solution.T  # D up to the rows' lengths
    if bias is None:
        return Parts(rows, columns.T)
    lengths = torch.linalg.lstsq(columns, bias[:, None]).solution[:, 0]
    usable = torch.where(lengths.abs() > 1e-300, lengths, torch.ones_like(lengths))
    return Parts(rows / usable[:, None], (columns * lengths).T)


def rectified_share(parts: Parts, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The share of units that are on or have no gradient, as it is behind a ReLU, ``[b]``.

    Args:
        parts: What was read.
        weight: The layer's weight ``[units, inputs]``.
        bias: The layer's bias ``[units]``; None: it has none.
    """
    outputs = parts.inputs @ weight.T
    on = (outputs if bias is None else outputs + bias) > 0
    sizes = parts.gradients.abs()
    return (on | (sizes <= 1e-4 * sizes.amax(1, keepdim=True))).double().mean(1)


def turn(parts: Parts, weight: Tensor) -> Parts:
    """The parts with the signs that agree best with the ReLU of a layer without bias."""
    against = Parts(-parts.inputs, -parts.gradients)
    worse = rectified_share(against, weight, None) > rectified_share(parts, weight, None)
    signs = torch.where(worse, -1.0, 1.0).to(parts.inputs)[:, None]
    return Parts(parts.inputs * signs, parts.gradients * signs)
