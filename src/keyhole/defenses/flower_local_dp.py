"""Flower's ``LocalDpMod``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses.base import ClientSide, Defense, Telemetry, trace_noise
from keyhole.defenses.budget import Budget
from keyhole.defenses.flower_mods import caveats_of_mods, require_flower, run_mod
from keyhole.defenses.noise_model import Noise, uniform_noise
from keyhole.defenses.traces import NormTrace, Trace
from keyhole.update import Update

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class FlowerLocalDp(Defense):
    """Clips the update and adds Gaussian noise by running Flower's own ``LocalDpMod``.

    Sigma is ``sensitivity sqrt(2 ln(1.25 / delta)) / epsilon``: the mod takes the sensitivity as it
    is given, whatever the clipping norm. The budget is that of one round. It needs a sensitivity of
    at least the clipping norm: audits say that the defense does less than it declares below that.

    Args:
        clipping_norm: The largest norm of the update.
        sensitivity: What the noise is scaled by.
        epsilon: The budget.
        delta: Its probability of failure.
    """

    clipping_norm: Positive = 1.0
    sensitivity: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    epsilon: Positive = 10.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    name: ClassVar[str] = "flower-local-dp"
    summary: ClassVar[str] = "Flower's LocalDpMod: clips the update and adds noise to it"
    paper: ClassVar[str] = "Dwork and Roth 2014, as in Flower's LocalDpMod"
    headline: ClassVar[tuple[str, ...]] = ("epsilon", "sensitivity")
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise, in the units of the update."""
        return self._sigma_for(self.sensitivity)

    @property
    def claimed_sigma(self) -> float:
        """The standard deviation that the budget needs: an update is as long as the clip."""
        return self._sigma_for(max(self.sensitivity, self.clipping_norm))

    def _sigma_for(self, sensitivity: float) -> float:
        return sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    def incompatibilities(self, model: nn.Module) -> list[str]:
        require_flower()
        return []

    def caveats(self, model: nn.Module) -> list[str]:
        found = caveats_of_mods(model.parameters())
        if self.sensitivity < self.clipping_norm:
            real = self.epsilon * self.clipping_norm / max(self.sensitivity, 1e-300)
            found.append(
                f"flower-local-dp: sensitivity {self.sensitivity:g} is below the clipping norm "
                f"{self.clipping_norm:g}: its noise is that of epsilon = {real:.3g} or more"
            )
        if self.epsilon > 1:
            found.append("flower-local-dp: its formula for sigma is proven for epsilon < 1 only")
        return found

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        mod = require_flower().LocalDpMod(
            self.clipping_norm, self.sensitivity, self.epsilon, self.delta
        )
        norm = update.norm()
        sent, _ = run_mod(mod, update, side.generator, {})
        side.record(update_norm=norm, sigma=self.sigma)
        return sent

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """The same in every value; it was added once, to the change of all steps."""
        return uniform_noise(update, model, self.sigma / (update.lr * update.steps))

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The noise that the budget needs, and the norm."""
        needed = uniform_noise(update, model, self.claimed_sigma / (update.lr * update.steps))
        noise = trace_noise(needed, of_training=False)
        return [*noise, NormTrace(self.clipping_norm, self.sigma)]

    def claimed_budget(self, update: Update, telemetry: Telemetry) -> Budget:
        """The budget that the mod is given, of which it makes its noise."""
        return Budget(self.epsilon, self.delta)
