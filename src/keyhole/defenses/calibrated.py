"""Noise on updates whose strength follows from a privacy budget, and how to compare such noises."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import Annotated, Self

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.errors import DoesNotFit
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class CalibratedNoise(Defense):
    """Noise of a given strength, or of the one that the Gaussian mechanism asks for:

        zeta = b * ds / epsilon,  b = sqrt(2 ln(1.25 / delta)),  ds = steps * lr * clip / batch.

    ds bounds what one image can move the weights by, if every step's gradient is clipped to
    ``clip``. All is in the units of the update's change, which are the weights'. A client that
    shares its gradient takes one step of ``lr=1``, and noise is then in the gradient's units: zeta
    grows with ``steps * lr`` as the change does, so that their ratio is the same either way.
    """

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0

    def zeta(self, update: Update) -> float:
        """The calibrated scale for an update that came about as this one did."""
        sensitivity = update.steps * update.lr * self.clip / update.batch_size
        return math.sqrt(2 * math.log(1.25 / self.delta)) * sensitivity / self.epsilon

    @abstractmethod
    def strength(self, update: Update, model: nn.Module) -> float:
        """What the unit noise is multiplied by: beta or sigma."""

    @abstractmethod
    def energy(self, model: nn.Module) -> float:
        """The expected squared norm of the noise on an update of ``model`` at strength 1."""

    @abstractmethod
    def with_strength(self, strength: float | None) -> Self:
        """The same defense at a given strength; None: at the calibrated one."""

    def require_model(self, side: ClientSide) -> nn.Module:
        """The global model, without which parameters cannot be told from buffers."""
        if side.model is None:
            raise DoesNotFit(
                f"defense {self.name!r} needs the model that the update belongs to: "
                "pass ClientSide(model=...)"
            )
        self.validate(side.model)
        return side.model


def keep_parameters(update: Update, model: nn.Module) -> Update:
    """The part of an update that belongs to parameters, without buffers.

    Args:
        update: The update.
        model: The model that it is an update of.
    """
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return dataclasses.replace(update, change={n: t for n, t in update.change.items() if n in own})


def noise_norm(defense: CalibratedNoise, update: Update, model: nn.Module) -> float:
    """The root mean square norm of a defense's noise on such an update of ``model``."""
    return defense.strength(update, model) * math.sqrt(defense.energy(model))


def equal_noise(
    defense: CalibratedNoise, to: CalibratedNoise, update: Update, model: nn.Module
) -> CalibratedNoise:
    """``defense`` with the beta or sigma at which its noise is as long as that of ``to``."""
    return defense.with_strength(noise_norm(to, update, model) / math.sqrt(defense.energy(model)))


def equal_epsilon(defense: CalibratedNoise, to: CalibratedNoise) -> CalibratedNoise:
    """``defense`` calibrated to the budget and the clip of ``to``."""
    budget = {"epsilon": to.epsilon, "delta": to.delta, "clip": to.clip}
    return dataclasses.replace(defense.with_strength(None), **budget)
