"""Gaussian noise on the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.clipping import clip_update, draw_noise, squared_norm, total_norm
from keyhole.defenses.noise_model import Noise, uniform_noise
from keyhole.defenses.traces import SCALED, NormTrace, Trace
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Gaussian(Defense):
    """Scales the update to norm ``clip`` where it is longer, then adds N(0, sigma^2) to each value.

    No privacy budget is claimed.

    Args:
        sigma: The noise's standard deviation, in the units of the update.
        clip: The largest norm of an update; None: it is not clipped.

    >>> import torch
    >>> update = Update({"w": torch.zeros(10_000)})
    >>> noisy = Gaussian(sigma=0.1).on_update(update)
    >>> round(float(noisy.change["w"].std()), 2)
    0.1
    """

    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-3
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    name: ClassVar[str] = "gaussian"
    summary: ClassVar[str] = "clips the update and adds Gaussian noise to every value"
    paper: ClassVar[str] = "Zhu et al. 2019 (DLG); Abadi et al. 2016"
    paper_attacks: ClassVar[tuple[str, ...]] = ("dlg",)

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        norm, scale, short = update.norm(), 1.0, update
        if self.clip is not None:
            short, scale = clip_update(update, self.clip)
        energies: list[Tensor] = []

        def protect(name: str, tensor: Tensor) -> Tensor:
            if self.sigma == 0:
                return tensor
            draw = side.generator_at(tensor)
            noise = draw_noise(tensor, self.sigma, draw, side.global_weight(name))
            energies.append(squared_norm(noise))
            return tensor + noise

        protected = short.map(protect)
        side.record(update_norm=norm, clip_scale=scale, noise_norm=total_norm(energies))
        return protected

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """The same in every value; it was added once, to the change of all steps."""
        return uniform_noise(update, model, self.sigma / (update.lr * update.steps))

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The noise, and the norm where there is a bound."""
        clipped = [] if self.clip is None else [NormTrace(self.clip, self.sigma)]
        return [*super().expected_traces(update, model), *clipped]

    def keeps_trace(self, trace: Trace) -> bool:
        """Without a clip other noise; without noise what clipping leaves."""
        if self.sigma > 0:
            return self.clip is None and trace.kind == "noise"
        return self.clip is None or trace.kind in SCALED
