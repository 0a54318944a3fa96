"""What an attacker who knows a defense believes of the noise in an update, row by row.

A defense's parameters are public; which channels it chose and what it drew are not. TIP's noise
is far above the signal, so that rows which have it stand out; AGP's spared rows are the quiet ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.defenses import DEFENSES, Agp, Defense, Dp, Gaussian, Tip
from keyhole.defenses.spectra import keeping
from keyhole.models.channel_importance import convolutions, count_of, weight_of
from keyhole.threat import Observation
from keyhole.update import Update

Gradient = dict[str, Tensor]


@dataclass(frozen=True)
class Noise:
    """The noise believed to be in a parameter's gradient.

    ``variance [K]`` is that of each value of a row (an output channel's filter, a class's weights),
    in the gradient's units; ``bins [H * W, H * W]`` projects a kernel onto the frequencies that
    have it, None: all have.
    """

    variance: Tensor
    bins: Tensor | None = None

    def energy(self, gradient: Tensor) -> Tensor:
        """The mean square of each row's values ``[K]``, of a gradient ``[K, ...]``.

        Where only some frequencies are noisy, that is in them, a dimension of theirs.
        """
        rows = gradient.double()
        if self.bins is None:
            return rows.flatten(1).square().mean(1) if rows.dim() > 1 else rows.square()
        noisy = rows.flatten(2) @ self.bins.to(rows)
        return noisy.square().sum((1, 2)) / (rows.shape[1] * self.bins.trace().to(rows))

    def signal(self, gradient: Tensor) -> Tensor:
        """The variance of a value without noise: by the rows that have the least of it."""
        quiet = self.variance == self.variance.min()
        return (self.energy(gradient) - self.variance)[quiet].mean().clamp(min=0)

    def trust(self, gradient: Tensor) -> Tensor:
        """How much a noisy value is worth beside a clean one, ``s^2 / (s^2 + sigma^2)``: ``[K]``.

        This is Wiener's weight, s^2 being :meth:`signal`.
        """
        signal = self.signal(gradient)
        return torch.where(self.variance > 0, signal / (signal + self.variance), 1.0)


def of_tip(defense: Tip, update: Update, model: nn.Module) -> dict[str, Noise]:
    """Of each layer the known number of rows with the most energy in the high bins."""
    gradient, found = update.gradient(), {}
    variance = (defense.strength(update, model) / (update.lr * update.steps)) ** 2
    for name, conv in defense.layers(model).items():
        weight = weight_of(name)
        if weight not in gradient:
            continue
        rows = torch.zeros(conv.out_channels).to(gradient[weight].device, torch.double)
        noise = Noise(rows, projection(defense.bins(conv)))
        energy = noise.energy(gradient[weight])
        rows[energy.topk(count_of(conv.out_channels, defense.ratio)).indices] = variance
        found[weight] = noise
    return found


def of_dp(defense: Dp | Gaussian, update: Update, model: nn.Module) -> dict[str, Noise]:
    """The same in every value."""
    sigma = defense.strength(update, model) if isinstance(defense, Dp) else defense.sigma
    variance = (sigma / (update.lr * update.steps)) ** 2
    own = {name for name, _ in model.named_parameters()}
    return {
        name: Noise(torch.full((len(g) if g.dim() else 1,), variance).to(g.device, torch.double))
        for name, g in update.gradient().items()
        if name in own and g.dim()
    }


def of_agp(defense: Agp, update: Update, model: nn.Module) -> dict[str, Noise]:
    """As much in every value, and less in the known number of rows with the least energy."""
    gradient, found = update.gradient(), of_dp(defense, update, model)
    for name, conv in convolutions(model).items():
        weight = weight_of(name)
        if weight not in found:
            continue
        energy = found[weight].energy(gradient[weight])
        spared = (-energy).topk(count_of(conv.out_channels, defense.ratio)).indices
        for part in (weight, weight.removesuffix("weight") + "bias"):
            if part in found:
                found[part].variance[spared] *= defense.share**2
    return found


OF: dict[str, Callable[[Any, Update, nn.Module], dict[str, Noise]]] = {
    "tip": of_tip,
    "dp": of_dp,
    "gaussian": of_dp,
    "agp": of_agp,
}
"""By the name of the defense."""
KNOWN = frozenset(OF)


def read(observation: Observation) -> tuple[Gradient, dict[str, Noise]]:
    """The gradient an attacker works with, and the noise it believes is in it.

    Where the client was seen several times on the same images, what was clean at any time is taken
    from then, and the rest is averaged.
    """
    spec = observation.knowledge.defense
    updates = [observation.update, *observation.earlier]
    if spec is None or spec.name not in OF:
        return observation.update.gradient(), {}
    defense: Defense = DEFENSES[spec.name](**spec.parameters)
    found = [OF[spec.name](defense, update, observation.model) for update in updates]
    gradients = [update.gradient() for update in updates]
    if len(updates) == 1:
        return gradients[0], found[0]
    merged, noise = gradients[0], {}
    for name in found[0]:
        merged[name], noise[name] = joined(
            [g[name] for g in gradients], [beliefs[name] for beliefs in found]
        )
    return merged, noise


def joined(gradients: Sequence[Tensor], beliefs: Sequence[Noise]) -> tuple[Tensor, Noise]:
    """The mean over the times at which a row had the least noise, and what is left of it."""
    variance = torch.stack([belief.variance for belief in beliefs])
    least = variance.min(0).values
    used = variance == least
    share = used / used.sum(0)
    rows = torch.stack(list(gradients))
    weights = share.view(*share.shape, *[1] * (rows.dim() - share.dim())).to(rows)
    return (rows * weights).sum(0), Noise(least / used.sum(0), beliefs[0].bins)


def projection(bins: Tensor) -> Tensor:
    """Onto the frequencies ``bins [H, W]`` of kernels that lie flat: symmetric, ``[HW, HW]``.

    A frequency and its conjugate are one, as kernels are real.

    >>> projection(torch.tensor([[False, True], [True, True]])).sum(0).abs().max() < 1e-12
    tensor(True)
    """
    return keeping(bins | bins.flip(0, 1).roll((1, 1), (0, 1)))
