"""Gaussian noise on every parameter, calibrated to a privacy budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Telemetry, caveats_of_buffers, trace_noise
from keyhole.defenses.budget import Budget, compute_gaussian_epsilon
from keyhole.defenses.calibrated import CalibratedNoise, keep_parameters
from keyhole.defenses.clipping import clip_update, draw_noise, squared_norm, total_norm
from keyhole.defenses.noise_model import Noise, uniform_noise
from keyhole.defenses.traces import NormTrace, Trace
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Dp(CalibratedNoise):
    """Clips the update and adds N(0, sigma^2) to every parameter; buffers are sent unchanged.

    The update is scaled so that the mean gradient of its steps, ``-change / (lr * steps)``, has at
    most the norm ``clip``. This is the baseline of the TIP paper, with the sensitivity of its code.
    The budget is nominal, and no guarantee is claimed: gradients are clipped per batch, not per
    image, and several rounds add up.

    Args:
        sigma: The noise's standard deviation; None: :meth:`zeta`.
    """

    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    name: ClassVar[str] = "dp"
    summary: ClassVar[str] = "clips the update and adds noise to every parameter, by a budget"
    paper: ClassVar[str] = "Wei et al. 2020; the baseline of Wang and Su 2025 (TIP)"
    headline: ClassVar[tuple[str, ...]] = ("epsilon", "sigma")
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig-uploaded",)

    def caveats(self, model: nn.Module) -> list[str]:
        return caveats_of_buffers(model)

    def strength(self, update: Update, model: nn.Module) -> float:
        """Sigma."""
        return self.zeta(update) if self.sigma is None else self.sigma

    def energy(self, model: nn.Module) -> float:
        return float(sum(p.numel() for p in model.parameters()))

    def with_strength(self, strength: float | None) -> Self:
        return dataclasses.replace(self, sigma=strength)

    def _noise_shares(self, update: Update, side: ClientSide) -> dict[str, Tensor]:
        """What share of the noise each value of a parameter gets; parameters left out get all."""
        return {}

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        model = self.require_model(side)
        trained = keep_parameters(update, model)
        sigma = self.strength(update, model)
        shares = self._noise_shares(update, side) if sigma > 0 else {}
        norm, limit = trained.norm(), self.clip * update.lr * update.steps
        short, scale = clip_update(trained, limit)
        draw = side.generator_at(next(model.parameters()))
        energies: list[Tensor] = []

        def protect(name: str, tensor: Tensor) -> Tensor:
            if name not in short.change:
                return tensor
            clipped = short.change[name]
            if sigma == 0:
                return clipped
            noise = draw_noise(tensor, sigma, draw, side.global_weight(name))
            if name in shares:
                noise = noise * shares[name].to(noise)
            energies.append(squared_norm(noise))
            return clipped + noise

        protected = update.map(protect)
        side.record(
            sigma=sigma, update_norm=norm, clip_scale=scale, noise_norm=total_norm(energies)
        )
        return protected

    def claimed_budget(self, update: Update, telemetry: Telemetry) -> Budget:
        """The nominal budget; of a given sigma, the exact one of the Gaussian mechanism."""
        if self.sigma is None:
            return Budget(self.epsilon, self.delta)
        sensitivity = update.steps * update.lr * self.clip / update.batch_size
        return Budget(compute_gaussian_epsilon(self.sigma / sensitivity, self.delta), self.delta)

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """The same in every value; it was added once, to the change of all steps."""
        sigma = self.strength(update, model)
        return uniform_noise(update, model, sigma / (update.lr * update.steps))

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The noise, and the norm; both depend on how the client trained."""
        limit = self.clip * update.lr * update.steps
        sigma = self.strength(update, model)
        noise = trace_noise(self.noise_model(update, model), of_training=self.sigma is None)
        return [*noise, NormTrace(limit, sigma, of_training=True)]
