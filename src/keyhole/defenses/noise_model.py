"""The noise in a parameter's gradient, as an attacker who knows the defense models it.

A defense's parameters are public; which rows it chose and what it drew are not. Where noise is far
above the signal, the rows that have it stand out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.defenses.spectra import build_bin_filter
from keyhole.update import Update


@dataclass(frozen=True)
class Noise:
    """Zero-mean noise believed to be in one parameter's gradient (:meth:`Update.gradient`).

    Args:
        variance: That of each value of a row, ``[K]`` for K rows (an output channel's filter, a
            class's weights), in the gradient's squared units; 0 where a row has no noise.
        bins: Projects a kernel onto the frequencies that have the noise, ``[H * W, H * W]``;
            None: all have.
        sigma: The standard deviation, where it is the same for every value; None: it is not.
        share: The share of the parameter's rows that have noise, as the defense's settings say.
    """

    variance: Tensor
    bins: Tensor | None = None
    sigma: float | None = None
    share: float = 1.0

    def energy(self, gradient: Tensor) -> Tensor:
        """The mean square of each row's values, ``[K]``; with ``bins``, of the noisy frequencies.

        Args:
            gradient: The parameter's gradient, ``[K, ...]``.
        """
        rows = gradient.double()
        if self.bins is None:
            return rows.flatten(1).square().mean(1) if rows.dim() > 1 else rows.square()
        noisy = rows.flatten(2) @ self.bins.to(rows)
        return noisy.square().sum((1, 2)) / (rows.shape[1] * self.bins.trace().to(rows))

    def signal(self, gradient: Tensor) -> Tensor:
        """The variance of a value without noise, estimated from the rows with the least noise.

        Args:
            gradient: The parameter's gradient, ``[K, ...]``.
        """
        quiet = self.variance == self.variance.min()
        return (self.energy(gradient) - self.variance)[quiet].mean().clamp(min=0)

    def trust(self, gradient: Tensor) -> Tensor:
        """Wiener's weight of each row, ``s^2 / (s^2 + sigma^2)`` with :meth:`signal` s^2: ``[K]``.

        Args:
            gradient: The parameter's gradient, ``[K, ...]``.
        """
        signal = self.signal(gradient)
        return torch.where(self.variance > 0, signal / (signal + self.variance), 1.0)


def uniform_noise(update: Update, model: nn.Module, sigma: float) -> dict[str, Noise]:
    """The same noise in every value of every parameter.

    Args:
        update: What the client sent.
        model: The global model, which tells parameters from buffers.
        sigma: The noise's standard deviation in the units of ``update.gradient()``.
    """
    own = {name for name, _ in model.named_parameters()}
    return {
        name: Noise(torch.full((len(g),), sigma**2).to(g.device, torch.double), sigma=sigma)
        for name, g in update.gradient().items()
        if name in own and g.dim()
    }


def build_projection(bins: Tensor) -> Tensor:
    """The symmetric projection ``[HW, HW]`` of flattened kernels onto frequencies ``bins [H, W]``.

    A frequency and its conjugate are one, as kernels are real.

    >>> build_projection(torch.tensor([[False, True], [True, True]])).sum(0).abs().max() < 1e-12
    tensor(True)
    """
    return build_bin_filter(bins | bins.flip(0, 1).roll((1, 1), (0, 1)))
