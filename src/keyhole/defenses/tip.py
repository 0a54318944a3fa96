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
from keyhole.defenses.guidance import choose_important_channels
from keyhole.defenses.noise_model import Noise, build_projection
from keyhole.defenses.spectra import Reading, filter_bins, find_high_bins, noise_energy
from keyhole.defenses.traces import Trace
from keyhole.models.channel_importance import convolutions, count_channels, weight_name
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Tip(CalibratedNoise):
    """Adds ``beta * Re IFFT(mask * FFT(n))``, n ~ N(0, 1), to the filters of important channels.

    Of every convolution with a high bin, the output channels with the greatest Grad-CAM weights are
    chosen, on one random image of each of the client's classes. Every input slice of their filters
    gets noise in the high bins; a weight's variance is then ``beta^2 * high bins / (H * W)``. Noise
    on the uploaded weights is noise on their change. All else is sent exactly: other filters, 1x1
    kernels, norms, the head, and each slice's sum.

    Beta is in the units of the change. For a client that shares its gradient they are the
    gradient's; zeta is then 24 / epsilon for one image, and the cap of 1 binds. Where an update
    does not say how the client trained, give ``beta``.

    Args:
        ratio: The share of output channels of each convolution that get noise.
        radius: The distance from the spectrum's centre at which bins are high.
        beta: The strength; None: ``min(1, zeta)`` as the authors ran it.
        divide: Whether beta is ``min(1, zeta / layers)`` instead, as the paper prints it.
        absolute: Whether channels are ranked by the magnitude of their weight, not by its sign.
        reading: Where the spectrum's centre is, see :data:`Reading`.
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
        if not self.noisy_layers(model):
            return [f"none of its kernels has a frequency at radius {self.radius:g} or beyond"]
        return []

    def caveats(self, model: nn.Module) -> list[str]:
        layers = self.noisy_layers(model)
        total = sum(p.numel() for p in model.parameters())
        noisy = sum(
            count_channels(conv.out_channels, self.ratio) * conv.weight[0].numel()
            for conv in layers.values()
        )
        exact = 1 - noisy / total
        return [f"{exact:.0%} of the parameters leave without noise: no privacy budget is kept"]

    def _find_bins(self, conv: nn.Conv2d) -> Tensor:
        """The high bins of a convolution's kernels, bool ``[H, W]``."""
        height, width = conv.weight.shape[-2:]
        return find_high_bins(height, width, self.radius, self.reading)

    def noisy_layers(self, model: nn.Module) -> dict[str, nn.Conv2d]:
        """The convolutions that get noise: those whose kernels have a high bin.

        Args:
            model: The global model.
        """
        return {n: conv for n, conv in convolutions(model).items() if self._find_bins(conv).any()}

    def strength(self, update: Update, model: nn.Module) -> float:
        """Beta."""
        if self.beta is not None:
            return self.beta
        return min(1.0, self.zeta(update) / (len(self.noisy_layers(model)) if self.divide else 1))

    def energy(self, model: nn.Module) -> float:
        """``sum over layers N_r * C_in * high bins``."""
        return sum(
            count_channels(conv.out_channels, self.ratio)
            * conv.weight.shape[1]
            * noise_energy(self._find_bins(conv))
            for conv in self.noisy_layers(model).values()
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
        every = self.noisy_layers(model)
        layers = {n: conv for n, conv in every.items() if weight_name(n) in update.change}
        if not layers:
            return update
        beta = self.strength(update, model)
        chosen = choose_important_channels(
            update, side, ratio=self.ratio, absolute=self.absolute, defense=self.name
        )
        change, norms = dict(update.change), []
        draw = side.generator_at(next(model.parameters()))
        for name, conv in layers.items():
            weight = weight_name(name)
            noise = self._draw_noise(change[weight], conv, chosen[name], beta, draw)
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

    def _draw_noise(
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
        return (beta * filter_bins(white, self._find_bins(conv))).to(like)

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """In each layer, noise is in the known number of rows with most energy in the high bins."""
        gradient, found = update.gradient(), {}
        variance = (self.strength(update, model) / (update.lr * update.steps)) ** 2
        for name, conv in self.noisy_layers(model).items():
            weight = weight_name(name)
            if weight not in gradient:
                continue
            rows = torch.zeros(conv.out_channels).to(gradient[weight].device, torch.double)
            noise = Noise(rows, build_projection(self._find_bins(conv)), share=self.ratio)
            energy = noise.energy(gradient[weight])
            rows[energy.topk(count_channels(conv.out_channels, self.ratio)).indices] = variance
            found[weight] = noise
        return found

    def keeps_trace(self, trace: Trace) -> bool:
        return trace.kind == "noise"


def add_to_rows(tensor: Tensor, rows: Tensor, addend: Tensor) -> Tensor:
    """A copy of ``tensor`` with ``addend`` added to some of its rows."""
    return tensor.index_add(0, rows.to(tensor.device), addend)
