"""TIP: noise in the high frequencies of the filters that a client's own images rest on."""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide
from keyhole.defenses.calibrated import CalibratedNoise, keep_parameters
from keyhole.defenses.guidance import important_channels
from keyhole.defenses.noise_model import Noise, projection
from keyhole.defenses.spectra import Reading, high_bins, high_part, noise_energy
from keyhole.models.channel_importance import convolutions, count_channels, weight_name
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Tip(CalibratedNoise):
    """Adds ``beta * Re IFFT(mask * FFT(n))``, n ~ N(0, 1), to the filters of important channels.

    Of every convolution with a high bin, the share ``ratio`` of output channels with the greatest
    Grad-CAM weights (signed, or by magnitude: ``absolute``) is chosen, on one random image of each
    of the client's classes. Every input slice of their filters gets noise in the bins at least
    ``radius`` from the spectrum's centre (see :data:`Reading`); a weight's variance is then
    ``beta^2 * high bins / (H * W)``. Noise on the uploaded weights is noise on their change. All
    else leaves exactly: other filters, 1x1 kernels, norms, the head, and each slice's sum.

    Without ``beta`` it is ``min(1, zeta)`` as the authors ran it, or ``min(1, zeta / layers)`` as
    the paper prints it (``divide``). Beta is in the units of the change: for a client that shares
    its gradient, those of the gradient, where zeta is 24 / epsilon an image and the cap binds.
    Where an update does not say how it came about, give ``beta``.
    """

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    radius: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    divide: bool = False
    absolute: bool = False
    reading: Reading = "dc-kept"

    name: ClassVar[str] = "tip"
    summary: ClassVar[str] = "adds high-frequency noise to the filters that matter most"
    paper: ClassVar[str] = "Wang and Su 2025 (TIP)"
    headline: ClassVar[tuple[str, ...]] = ("epsilon", "beta", "ratio")
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig-uploaded",)

    def incompatibilities(self, model: nn.Module) -> list[str]:
        if not convolutions(model):
            return ["it has no convolution, and only their filters get noise"]
        if not self.layers(model):
            return [f"none of its kernels has a frequency at radius {self.radius:g} or beyond"]
        return []

    def caveats(self, model: nn.Module) -> list[str]:
        layers = self.layers(model)
        total = sum(p.numel() for p in model.parameters())
        noisy = sum(
            count_channels(conv.out_channels, self.ratio) * conv.weight[0].numel()
            for conv in layers.values()
        )
        exact = 1 - noisy / total
        return [f"{exact:.0%} of the parameters leave without noise: no privacy budget is kept"]

    def bins(self, conv: nn.Conv2d) -> Tensor:
        """The high bins of a convolution's kernels, bool ``[H, W]``."""
        height, width = conv.weight.shape[-2:]
        return high_bins(height, width, self.radius, self.reading)

    def layers(self, model: nn.Module) -> dict[str, nn.Conv2d]:
        """The convolutions that get noise: those whose kernels have a high bin."""
        return {n: conv for n, conv in convolutions(model).items() if self.bins(conv).any()}

    def strength(self, update: Update, model: nn.Module) -> float:
        """Beta."""
        if self.beta is not None:
            return self.beta
        return min(1.0, self.zeta(update) / (len(self.layers(model)) if self.divide else 1))

    def energy(self, model: nn.Module) -> float:
        """``sum over layers N_r * C_in * high bins``."""
        return sum(
            count_channels(conv.out_channels, self.ratio)
            * conv.weight.shape[1]
            * noise_energy(self.bins(conv))
            for conv in self.layers(model).values()
        )

    def with_strength(self, strength: float | None) -> Self:
        return dataclasses.replace(self, beta=strength)

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        if self.beta == 0:
            return update
        began = time.perf_counter()
        model = self.require_model(side)
        update.check_against(model.state_dict())
        layers = {n: c for n, c in self.layers(model).items() if weight_name(n) in update.change}
        if not layers:
            return update
        beta = self.strength(update, model)
        chosen = important_channels(
            update, side, ratio=self.ratio, absolute=self.absolute, defense=self.name
        )
        change, norms = dict(update.change), []
        draw = side.generator_at(next(model.parameters()))
        for name, conv in layers.items():
            weight = weight_name(name)
            noise = self.noise(change[weight], conv, chosen[name], beta, draw)
            change[weight] = add_to_rows(change[weight], chosen[name], noise)
            norms.append(noise.double().norm())
        lengths = torch.stack(norms).cpu()
        side.record(
            beta=beta,
            layers=len(layers),
            channels=sum(len(chosen[name]) for name in layers),
            channels_total=sum(conv.out_channels for conv in layers.values()),
            update_norm=keep_parameters(update, model).norm(),
            noise_norm=float(lengths.norm()),
            least_layer_noise_norm=float(lengths.min()),
            greatest_layer_noise_norm=float(lengths.max()),
            seconds=time.perf_counter() - began,
        )
        return dataclasses.replace(update, change=change)

    def noise(
        self,
        like: Tensor,
        conv: nn.Conv2d,
        channels: Tensor,
        beta: float,
        generator: torch.Generator,
    ) -> Tensor:
        """The noise of the chosen filters, ``[N_r, C_in, H, W]``."""
        kind = torch.double if like.dtype == torch.double else torch.float
        shape = (len(channels), *like.shape[1:])
        white = torch.randn(shape, generator=generator, device=generator.device, dtype=kind)
        return (beta * high_part(white, self.bins(conv))).to(like)

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """Of each layer the known number of rows with the most energy in the high bins."""
        gradient, found = update.gradient(), {}
        variance = (self.strength(update, model) / (update.lr * update.steps)) ** 2
        for name, conv in self.layers(model).items():
            weight = weight_name(name)
            if weight not in gradient:
                continue
            rows = torch.zeros(conv.out_channels).to(gradient[weight].device, torch.double)
            noise = Noise(rows, projection(self.bins(conv)), share=self.ratio)
            energy = noise.energy(gradient[weight])
            rows[energy.topk(count_channels(conv.out_channels, self.ratio)).indices] = variance
            found[weight] = noise
        return found


def add_to_rows(tensor: Tensor, rows: Tensor, addend: Tensor) -> Tensor:
    """A copy of ``tensor`` with ``addend`` added to some of its rows."""
    return tensor.index_add(0, rows.to(tensor.device), addend)
