"""The inputs of the last layer, image by image, from the gradient of a batch.

With cross-entropy ``B dW = D^T H`` and ``B db = D^T 1``, where row i of D is ``softmax(W h_i + b) -
onehot_i``. The gradient's factors of rank B leave a square matrix M unknown, ``D^T = U M`` and ``H
= M^-1 R``. But H determines the softmax, and so D: ``B (C + 1)`` equations for ``B^2`` unknowns,
which are solved by least squares. No activation and no label that occurs once is assumed: images of
one class come apart by what their softmaxes differ in. It ends where the batch has as many images
as there are classes, because rows of D sum to 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from torch import Tensor
from torch.nn import functional as F

from keyhole.models.anatomy import find_logits_layer
from keyhole.seeds import generator
from keyhole.threat import Observation

Values = NDArray[np.float64]

STARTS, FEWEST_STARTS = 24, 6
"""First guesses of the softmax for small and for large batches, at most; the best one counts."""
SMALL = 10_000
"""Numbers in the table of slopes up to which a batch is small."""
SPREADS = (0.1, 1.0, 3.0, 0.3)
"""Standard deviations of the logits of first guesses, in turn."""
EVALUATIONS = 120
"""Evaluations of the equations from each first guess, at most."""
PRECISION = 1e-14
"""Relative changes and slopes at which the solver stops."""
SOLVED = 1e-6
"""A root mean square error of the equations up to which no other guess is tried."""
EXPLAINED = 3e-4
"""The greatest error with which a solution counts."""


@dataclass(frozen=True)
class HeadInputs:
    """What single images added to the last layer's gradient.

    Args:
        inputs: The layer's input of each image, ``[B, F]``.
        chances: The model's softmax of each image, ``[B, C]``.
        error: The root mean square error of the equations.
    """

    inputs: Tensor
    chances: Tensor
    error: float


@dataclass(frozen=True)
class HeadEquations:
    """The last layer's weights, and the sums over a batch that its gradient tells, in float64.

    Args:
        weight: W, ``[C, F]``.
        bias: b, ``[C]``; None: there is none, or its gradient is not known.
        summed: ``D^T H``, ``[C, F]``.
        summed_bias: ``D^T 1``, ``[C]``.
        labels: The images' labels, ``[B]``.
    """

    weight: Tensor
    bias: Tensor | None
    summed: Tensor
    summed_bias: Tensor | None
    labels: Tensor

    def onehot(self) -> Tensor:
        """The labels as rows, ``[B, C]``."""
        return F.one_hot(self.labels, len(self.weight)).double()

    def solve(self) -> HeadInputs | None:
        """The inputs of each image; None: there are too many images, or nothing fits."""
        best = self.solve_best(STARTS if self.count_slopes() <= SMALL else FEWEST_STARTS)
        return best if best is not None and best.error < EXPLAINED else None

    def count_slopes(self) -> int:
        """How many numbers the table of the equations' slopes has: what a solution costs."""
        batch, classes = len(self.labels), len(self.weight)
        return batch**2 * (batch + 1) * classes

    def solve_best(self, starts: int) -> HeadInputs | None:
        """What fits best from so many first guesses; None: there are too many images."""
        batch, classes = len(self.labels), len(self.weight)
        left, strengths, right = torch.linalg.svd(self.summed, full_matrices=False)
        if batch >= classes or not float(strengths[batch - 1]):
            return None
        left, rows = left[:, :batch], strengths[:batch, None] * right[:batch]
        best: HeadInputs | None = None
        for number in range(starts):
            found = self.solve_from(left.T @ self.guess(number).T, left, rows)
            if found is not None and (best is None or found.error < best.error):
                best = found
            if best is not None and best.error < SOLVED:
                break
        return best

    def guess(self, number: int) -> Tensor:
        """A first guess of D, ``[B, C]``: alike for all images but for some noise."""
        onehot = self.onehot()
        mean = torch.full_like(onehot[0], 1 / len(self.weight))
        if self.summed_bias is not None:
            mean = ((self.summed_bias + onehot.sum(0)) / len(onehot)).clamp(min=1e-3)
        noise = torch.randn(onehot.shape, generator=generator(0, "last layer", number)).double()
        return (mean.log() + SPREADS[number % len(SPREADS)] * noise).softmax(1) - onehot

    def solve_from(self, start: Tensor, left: Tensor, rows: Tensor) -> HeadInputs | None:
        """The solution that is reached from a first guess of M; None: M became singular.

        Args:
            start: The first guess, ``[B, B]``.
            left: U, ``[C, B]``.
            rows: R, ``[B, F]``.
        """
        batch, onehot = len(rows), self.onehot()
        logits = rows @ self.weight.T  # M^-1 R W^T: the inputs themselves are not needed

        def errors(flat: Tensor) -> Tensor:
            mixing = flat.view(batch, batch)
            outputs = torch.linalg.solve(mixing, logits)
            if self.bias is not None:
                outputs = outputs + self.bias
            each = (left @ mixing).T
            wrong: Tensor = (each - outputs.softmax(1) + onehot).flatten()
            if self.summed_bias is None:
                return wrong
            return torch.cat([wrong, each.sum(0) - self.summed_bias])

        def evaluate(flat: Values) -> Values:
            return errors(torch.from_numpy(flat)).numpy()

        def differentiate(flat: Values) -> Values:
            slopes: Tensor = torch.func.jacfwd(errors)(torch.from_numpy(flat))
            return slopes.numpy()

        try:
            found = least_squares(
                evaluate,
                start.flatten().numpy(),
                jac=differentiate,
                method="lm",
                max_nfev=EVALUATIONS,
                xtol=PRECISION,
                ftol=PRECISION,
                gtol=PRECISION,
            )
            mixing = torch.from_numpy(found.x).view(batch, batch)
            inputs = torch.linalg.solve(mixing, rows)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None
        error = float((2 * found.cost / len(found.fun)) ** 0.5)
        return HeadInputs(inputs, (left @ mixing).T + onehot, error)


def read_head_equations(observation: Observation, labels: Tensor) -> HeadEquations | None:
    """The equations of one client's batch; None: the model has no linear last layer.

    Args:
        observation: What the server saw of a client of one local step.
        labels: The client's labels, ``[B]``.
    """
    layer = find_logits_layer(observation.model, observation.knowledge.shape)
    gradient = observation.update.gradient()
    if layer is None or f"{layer}.weight" not in gradient:
        return None
    module = observation.model.get_submodule(layer)
    known = {n: p.detach().cpu().double() for n, p in module.named_parameters()}
    found = {
        n: gradient[f"{layer}.{n}"].cpu().double() * len(labels)
        for n in known
        if f"{layer}.{n}" in gradient
    }
    return HeadEquations(
        known["weight"],
        known.get("bias"),
        found["weight"],
        found.get("bias"),
        labels.cpu(),
    )


def read_head_inputs(observation: Observation, labels: Tensor) -> HeadInputs | None:
    """The last layer's input of each image; None: they could not be told apart.

    Args:
        observation: What the server saw of a client of one local step.
        labels: The client's labels, ``[B]``; the inputs come in their order.
    """
    equations = read_head_equations(observation, labels)
    return None if equations is None else equations.solve()
