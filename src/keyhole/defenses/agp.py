"""AGP: less noise where a network's explanations come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide
from keyhole.defenses.dp import Dp
from keyhole.defenses.guidance import choose_important_channels
from keyhole.defenses.noise_model import Noise
from keyhole.models.channel_importance import convolutions, count_channels, weight_name
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Agp(Dp):
    """The noise of :class:`Dp`, weaker on the most important channels of every convolution.

    As for TIP, Grad-CAM's weights say which channels are important; their filters and biases get
    the share ``share`` of the noise, all other parameters get it in full. AGP's own paper spares
    channels by their part in the explanation; 0.25 and 0.25 are the TIP paper's settings for it.

    Args:
        ratio: The share of channels of each convolution that get less noise.
        share: How much of the noise those channels get, from 0 to 1.
        absolute: Whether channels are ranked by the magnitude of their weight, not by its sign.
    """

    ratio: Annotated[float, Field(gt=0, le=1)] = 0.25
    share: Annotated[float, Field(ge=0, le=1)] = 0.25
    absolute: bool = False

    name: ClassVar[str] = "agp"
    summary: ClassVar[str] = "noise on every parameter, less on the most important channels"
    paper: ClassVar[str] = "Li et al. 2024 (AGP)"
    headline: ClassVar[tuple[str, ...]] = ("epsilon", "sigma", "ratio")

    def incompatibilities(self, model: nn.Module) -> list[str]:
        return [] if convolutions(model) else ["it has no convolution whose channels it could rank"]

    def energy(self, model: nn.Module) -> float:
        spared = sum(
            count_channels(conv.out_channels, self.ratio) * values_per_channel(conv)
            for conv in convolutions(model).values()
        )
        return super().energy(model) - spared * (1 - self.share**2)

    def _noise_shares(self, update: Update, side: ClientSide) -> dict[str, Tensor]:
        model = self.require_model(side)
        layers = convolutions(model)
        chosen = choose_important_channels(
            update, side, ratio=self.ratio, absolute=self.absolute, defense=self.name
        )
        shares: dict[str, Tensor] = {}
        for name, channels in chosen.items():
            weight = weight_name(name)
            by_channel = torch.ones(layers[name].out_channels)
            by_channel[channels] = self.share
            shares[weight] = by_channel.view(-1, 1, 1, 1)
            shares[weight.removesuffix("weight") + "bias"] = by_channel
        side.record(
            channels=sum(len(c) for c in chosen.values()),
            channels_total=sum(conv.out_channels for conv in layers.values()),
        )
        return shares

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """As for :class:`Dp`, but less in the known number of rows with the least energy."""
        gradient, found = update.gradient(), super().noise_model(update, model)
        for name, conv in convolutions(model).items():
            weight = weight_name(name)
            if weight not in found:
                continue
            energy = found[weight].energy(gradient[weight])
            spared = (-energy).topk(count_channels(conv.out_channels, self.ratio)).indices
            for part in (weight, weight.removesuffix("weight") + "bias"):
                if part in found:
                    found[part].variance[spared] *= self.share**2
                    found[part] = replace(found[part], sigma=None)
        return found


def values_per_channel(conv: nn.Conv2d) -> int:
    """Parameters of one output channel: its filter, and its bias where it has one."""
    return conv.weight[0].numel() + (conv.bias is not None)
