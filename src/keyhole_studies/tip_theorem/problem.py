"""A strongly convex problem that clients share: logistic regression, which one convolution is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.seeds import generator

SIDE = 8
"""Pixels per side."""
SHARDS = 2
"""Runs of images, sorted by class, that each client gets."""
TOLERANCE = 1e-10
"""The gradient's norm at an optimum: F is then within ``TOLERANCE^2 / (2 mu)`` of its least."""


@dataclass(frozen=True)
class Problem:
    """J clients of n images each, and one W ``[K, D]`` for all:

        F_j(W) = mean_i [log sum exp(W x_i) - (W x_i)_{y_i}] + mu / 2 |W|^2,   F = mean_j F_j.

    Args:
        inputs: ``[J, n, D]``, float64 with ``|x| <= 1``.
        labels: ``[J, n]``.
        mu: The weight of the regulariser.
        classes: K.
    """

    inputs: Tensor
    labels: Tensor
    mu: float
    classes: int = 10
    answers: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", F.one_hot(self.labels, self.classes).double())

    @property
    def clients(self) -> int:
        return len(self.inputs)

    @property
    def smoothness(self) -> float:
        """L: a softmax's covariance has no eigenvalue over 1/2 (Boehning 1992).

        Of every single image's loss and so of every batch's and every client's, as the proof's
        Eq. 21 needs.
        """
        return 0.5 * float(self.inputs.square().sum(-1).max()) + self.mu

    def value(self, weights: Tensor) -> Tensor:
        """F at weights ``[K, D]``."""
        return value(weights, self.inputs.flatten(0, 1), self.labels.flatten(), self.mu)

    def gradients(self, weights: Tensor, picks: Tensor) -> Tensor:
        """Every client's gradient at its own weights ``[J, K, D]`` on images ``picks [J, b]``."""
        which = torch.arange(self.clients)[:, None]
        x, answers = self.inputs[which, picks], self.answers[which, picks]
        errors = (x @ weights.mT).softmax(-1) - answers
        return errors.mT @ x / picks.shape[1] + self.mu * weights

    def moments(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """At every client's weights ``[J, K, D]``: the variance of one image's gradient, and the
        squared norm of the mean one, ``[J]`` each."""
        logits = self.inputs @ weights.mT
        errors = logits.softmax(-1) - self.answers
        mean = errors.mT @ self.inputs / self.inputs.shape[1] + self.mu * weights
        each = (
            errors.square().sum(-1) * self.inputs.square().sum(-1)
            + 2 * self.mu * (errors * logits).sum(-1)
        ).mean(1) + self.mu**2 * weights.square().sum((1, 2))
        norm = mean.square().sum((1, 2))
        return (each - norm).clamp(min=0), norm

    def find_optima(self) -> tuple[Tensor, float, list[float]]:
        """W*, F* and every client's own F_j*."""
        best = find_optimum(self.inputs.flatten(0, 1), self.labels.flatten(), self.classes, self.mu)
        own = [
            float(value(find_optimum(x, y, self.classes, self.mu), x, y, self.mu))
            for x, y in zip(self.inputs, self.labels, strict=True)
        ]
        return best, float(self.value(best)), own

    def first_weights(self, norm: float) -> Tensor:
        """The first weights ``[K, D]``: zeros, or of this norm in one random direction."""
        shape = (self.classes, self.inputs.shape[-1])
        drawn = torch.randn(shape, generator=generator(0, "start"), dtype=self.inputs.dtype)
        return drawn * (norm / float(drawn.norm()))

    def make_model(self) -> nn.Module:
        """The same map as a network: a convolution as wide as the image, one kernel per class."""
        conv = nn.Conv2d(1, self.classes, SIDE, bias=False, dtype=torch.double)
        nn.init.zeros_(conv.weight)
        return nn.Sequential(conv, nn.Flatten())


def load_problem(clients: int, mu: float, seed: int) -> Problem:
    """8x8 digits, skewed: sorted by class, cut into shards, two shards for every client.

    All clients have as many images; what is over is left out. Images are scaled by their greatest
    norm.

    Args:
        clients: How many.
        mu: The weight of the regulariser.
        seed: Of who gets which shards.
    """
    data = load("digits")
    inputs = data.images(range(len(data))).double().flatten(1)
    inputs = inputs / inputs.norm(dim=1).max()
    order = torch.sort(data.labels, stable=True).indices
    length = len(order) // (clients * SHARDS)
    shards = order[: length * clients * SHARDS].view(-1, length)
    dealt = torch.randperm(len(shards), generator=generator(seed, "shards"))
    mine = shards[dealt].view(clients, -1)
    return Problem(inputs[mine], data.labels[mine], mu, len(data.classes))


def value(weights: Tensor, inputs: Tensor, labels: Tensor, mu: float) -> Tensor:
    """The regularised loss of ``weights [K, D]`` on inputs ``[n, D]``."""
    return F.cross_entropy(inputs @ weights.T, labels) + mu / 2 * weights.square().sum()


def find_optimum(inputs: Tensor, labels: Tensor, classes: int, mu: float) -> Tensor:
    """The weights of least loss, by Newton's method; steps are halved while the loss would grow."""
    weights = inputs.new_zeros(classes, inputs.shape[1])
    answers = F.one_hot(labels, classes).to(inputs)
    while True:
        p = (inputs @ weights.T).softmax(-1)
        gradient = (p - answers).T @ inputs / len(inputs) + mu * weights
        if float(gradient.norm()) <= TOLERANCE:
            return weights
        step = torch.linalg.solve(hessian(p, inputs, mu), gradient.flatten()).view_as(weights)
        weights = halve_step(lambda w: float(value(w, inputs, labels, mu)), weights, step)


def hessian(p: Tensor, inputs: Tensor, mu: float) -> Tensor:
    """``mean_i (diag p_i - p_i p_i^T) (x) x_i x_i^T + mu I``, ``[K D, K D]``."""
    size = p.shape[1] * inputs.shape[1]
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    blocks = torch.einsum("nkl,ni,nj->kilj", spread, inputs, inputs) / len(inputs)
    return blocks.reshape(size, size) + mu * torch.eye(size, dtype=p.dtype)


def halve_step(loss: Callable[[Tensor], float], weights: Tensor, step: Tensor) -> Tensor:
    """``weights - step / 2^k`` with the least k that does not raise the loss (rounding aside)."""
    limit = loss(weights) + 1e-12
    for _ in range(50):
        if loss(weights - step) <= limit:
            break
        step = step / 2
    return weights - step
