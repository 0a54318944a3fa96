"""Noise on updates whose strength follows from a privacy budget, and comparable settings of it."""

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
    """Noise of a given strength, or of the strength that the Gaussian mechanism asks for:

        zeta = b * ds / epsilon,  b = sqrt(2 ln(1.25 / delta)),  ds = steps * lr * clip / batch.

    ds bounds how far one image can move the weights, if every step's gradient is clipped to
    ``clip``. Noise has the units of the update's change, which are those of the weights. A client
    that shares its gradient takes one step of ``lr=1``, and its noise has the gradient's units:
    zeta grows with ``steps * lr`` as the change does, so that their ratio is the same either way.

    Args:
        epsilon: The privacy budget.
        delta: The probability with which the budget may be exceeded.
        clip: The norm that bounds a step's gradient, in the gradient's units.
    """

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0

    def zeta(self, update: Update) -> float:
        """The calibrated strength.

        Args:
            update: Tells the number of steps, the learning rate and the batch size.
        """
        sensitivity = update.steps * update.lr * self.clip / update.batch_size
        return math.sqrt(2 * math.log(1.25 / self.delta)) * sensitivity / self.epsilon

    @abstractmethod
    def strength(self, update: Update, model: nn.Module) -> float:
        """The factor of the unit noise: beta or sigma.

        Args:
            update: Tells how the client trained.
            model: The global model.
        """

    @abstractmethod
    def energy(self, model: nn.Module) -> float:
        """The expected squared norm of the noise at strength 1.

        Args:
            model: The global model, whose update gets the noise.
        """

    @abstractmethod
    def with_strength(self, strength: float | None) -> Self:
        """The same defense at another strength.

        Args:
            strength: Beta or sigma; None: the calibrated one.
        """

    def require_model(self, side: ClientSide) -> nn.Module:
        """The global model; raises :class:`DoesNotFit` if it is missing or does not fit.

        Args:
            side: What the client gives the defense to work with.
        """
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


def expected_noise_norm(defense: CalibratedNoise, update: Update, model: nn.Module) -> float:
    """The root mean square norm of a defense's noise on one update.

    Args:
        defense: The defense.
        update: Tells how the client trained.
        model: The global model.
    """
    return defense.strength(update, model) * math.sqrt(defense.energy(model))


def match_noise_norm(
    defense: CalibratedNoise, to: CalibratedNoise, update: Update, model: nn.Module
) -> CalibratedNoise:
    """``defense`` at the strength at which its noise has the same expected norm as another's.

    Args:
        defense: The defense whose strength is set.
        to: The defense that it is compared with.
        update: Tells how the client trained.
        model: The global model.
    """
    norm = expected_noise_norm(to, update, model)
    return defense.with_strength(norm / math.sqrt(defense.energy(model)))


def match_budget(defense: CalibratedNoise, to: CalibratedNoise) -> CalibratedNoise:
    """``defense`` calibrated to another's budget and clip.

    Args:
        defense: The defense whose budget is set.
        to: The defense whose epsilon, delta and clip are taken.
    """
    budget = {"epsilon": to.epsilon, "delta": to.delta, "clip": to.clip}
    return dataclasses.replace(defense.with_strength(None), **budget)
