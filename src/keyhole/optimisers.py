"""The optimisers of clients: how gradients become steps.

Clients train with torch's own (:meth:`LocalOptimiser.make`). An attacker who unrolls their steps
takes the same steps on tensors that remember how they came about (:meth:`LocalOptimiser.step`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from keyhole.errors import KeyholeError
from keyhole.parameters import unusual_parameters
from keyhole.registry import Registry, label_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Weights = dict[str, Tensor]
    State = dict[str, dict[str, Tensor]]
    """What an optimiser keeps of every weight from step to step, by kind and name."""

Share = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LocalOptimiser(ABC):
    """Turns a client's gradients into steps. It starts anew in every round."""

    name: ClassVar[str]

    @abstractmethod
    def make(self, weights: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Returns torch's optimiser.

        Args:
            weights: The parameters that it changes.
            lr: The learning rate.
        """

    @abstractmethod
    def step(
        self, weights: Weights, gradients: Weights, state: State, *, lr: float, number: int
    ) -> tuple[Weights, State]:
        """Returns the weights and the state after a step, both differentiable.

        Args:
            weights: The weights before the step.
            gradients: The gradient of each.
            state: What the step before left; empty before the first.
            lr: The learning rate.
            number: The step's number; the first step is 0.
        """

    @abstractmethod
    def undo_first_step(self, change: Tensor, weight: Tensor, lr: float) -> Tensor:
        """Returns the gradient behind a weight's first step, as far as its rounding allows.

        Args:
            change: What the step changed.
            weight: The weight before the step.
            lr: The learning rate.
        """

    def count_gradients(self, steps: int) -> float:
        """How many gradients an update sums up, each as large as one step of plain SGD.

        Args:
            steps: The number of local steps.
        """
        return float(steps)

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD and nothing else."""
        return self == PLAIN_SGD

    def __str__(self) -> str:
        return label_of(self)


@dataclass(frozen=True, kw_only=True)
class Sgd(LocalOptimiser):
    """Stochastic gradient descent, as ``torch.optim.SGD``.

    Args:
        momentum: The share of the last step's velocity that is kept.
        nesterov: Whether momentum is Nesterov's.
        weight_decay: The share of a weight that is added to its gradient.
        dampening: The share of a gradient that the velocity leaves out.

    >>> Sgd(momentum=0.5).count_gradients(2)
    2.5
    """

    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: NotNegative = 0.0
    dampening: Share = 0.0

    name: ClassVar[str] = "sgd"

    @model_validator(mode="after")
    def check_nesterov(self) -> Sgd:
        """Refuses what torch refuses."""
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs a momentum, and no dampening")
        return self

    def make(self, weights: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        from torch import optim  # a plan names an optimiser without torch

        return optim.SGD(
            weights,
            lr=lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            dampening=self.dampening,
        )

    def step(
        self, weights: Weights, gradients: Weights, state: State, *, lr: float, number: int
    ) -> tuple[Weights, State]:
        found = add_decay(weights, gradients, self.weight_decay)
        if not self.momentum:
            return {n: w - lr * found[n] for n, w in weights.items()}, {}
        if number == 0:
            velocity = found
        else:
            kept = 1 - self.dampening
            velocity = {
                n: self.momentum * state["velocity"][n] + kept * g for n, g in found.items()
            }
        moved = velocity
        if self.nesterov:
            moved = {n: found[n] + self.momentum * v for n, v in velocity.items()}
        return {n: w - lr * moved[n] for n, w in weights.items()}, {"velocity": velocity}

    def undo_first_step(self, change: Tensor, weight: Tensor, lr: float) -> Tensor:
        moved = -change / (lr * self.count_gradients(1))
        return moved - self.weight_decay * weight if self.weight_decay else moved

    def count_gradients(self, steps: int) -> float:
        velocity = total = 0.0
        for number in range(steps):
            velocity = 1.0 if number == 0 else self.momentum * velocity + 1 - self.dampening
            total += 1 + self.momentum * velocity if self.nesterov else velocity
        return total if self.momentum else float(steps)


@dataclass(frozen=True, kw_only=True)
class Adam(LocalOptimiser):
    """Adam (Kingma and Ba 2015), as ``torch.optim.Adam``.

    Args:
        beta1: The share of the mean gradient that is kept.
        beta2: The share of the mean squared gradient that is kept.
        eps: What is added to the root of that mean.
        weight_decay: The share of a weight that is added to its gradient.
    """

    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0

    name: ClassVar[str] = "adam"
    decoupled: ClassVar[bool] = False
    """Whether weights decay by themselves and not by way of their gradients."""

    def make(self, weights: Iterable[torch.nn.Parameter], lr: float) -> torch.optim.Optimizer:
        from torch import optim  # a plan names an optimiser without torch

        kind: Any = optim.AdamW if self.decoupled else optim.Adam
        made: torch.optim.Optimizer = kind(
            weights,
            lr=lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
        return made

    def step(
        self, weights: Weights, gradients: Weights, state: State, *, lr: float, number: int
    ) -> tuple[Weights, State]:
        if self.decoupled:
            weights = {n: w * (1 - lr * self.weight_decay) for n, w in weights.items()}
        else:
            gradients = add_decay(weights, gradients, self.weight_decay)
        mean = average(state.get("mean"), gradients, self.beta1)
        square = average(state.get("square"), {n: g * g for n, g in gradients.items()}, self.beta2)
        size = lr / (1 - self.beta1 ** (number + 1))
        scale = (1 - self.beta2 ** (number + 1)) ** 0.5
        moved = {n: mean[n] / (safe_root(square[n]) / scale + self.eps) for n in weights}
        return {n: w - size * moved[n] for n, w in weights.items()}, {
            "mean": mean,
            "square": square,
        }

    def undo_first_step(self, change: Tensor, weight: Tensor, lr: float) -> Tensor:
        """The first step of a gradient g is ``g / (|g| + eps)`` long: nearly its sign, but not
        quite, and what is missing tells how large g is, up to where rounding hides it.

        Args:
            change: What the step changed.
            weight: The weight before the step.
            lr: The learning rate.
        """
        exact, before = change.double(), weight.double()
        if self.decoupled:
            exact = exact + lr * self.weight_decay * before
        moved = (-exact / lr).clamp(-1, 1)
        width = relative_spacing(weight)
        hidden = (weight.abs().double() * width / lr).clamp(min=4 * width)
        gradient = self.eps * moved / (1 - moved.abs()).maximum(hidden)
        if self.weight_decay and not self.decoupled:
            gradient = gradient - self.weight_decay * before
        return gradient.to(change)


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with weights that decay by themselves (Loshchilov and Hutter 2019).

    Args:
        weight_decay: The share of a weight that each step takes away, times the learning rate.
    """

    weight_decay: NotNegative = 0.01

    name: ClassVar[str] = "adamw"
    decoupled: ClassVar[bool] = True


PLAIN_SGD = Sgd()
"""SGD and nothing else."""

OPTIMISERS: Registry[LocalOptimiser] = Registry(
    "optimiser", {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
)


def add_decay(weights: Weights, gradients: Weights, decay: float) -> Weights:
    """The gradients with their weights' decay."""
    if not decay:
        return gradients
    return {name: gradients[name] + decay * weight for name, weight in weights.items()}


def average(mean: Weights | None, values: Weights, kept: float) -> Weights:
    """The running mean after these values; it starts at 0."""
    if mean is None:
        return {name: (1 - kept) * value for name, value in values.items()}
    return {name: kept * mean[name] + (1 - kept) * value for name, value in values.items()}


def relative_spacing(weight: Tensor) -> float:
    """The relative distance of neighbouring numbers of a weight's type."""
    import torch  # a plan names an optimiser without torch

    return float(torch.finfo(weight.dtype).eps)


def safe_root(square: Tensor) -> Tensor:
    """The square root, whose derivative at 0 is 0 instead of infinity."""
    positive = square > 0
    return square.where(positive, 1).sqrt() * positive


def read_optimiser(text: str, momentum: float = 0.0) -> LocalOptimiser:
    """The optimiser that a text names.

    >>> str(read_optimiser("sgd", momentum=0.9))
    'sgd(momentum=0.9)'
    >>> read_optimiser("adamw(weight_decay=0.1)", momentum=0.9).weight_decay
    0.1

    Args:
        text: ``sgd``, ``adam`` or ``adamw``, and its settings: ``sgd(momentum=0.9)``.
        momentum: The momentum of ``sgd`` where the text gives no settings.
    """
    if momentum and text.strip() == Sgd.name:
        return Sgd(momentum=momentum)
    return OPTIMISERS.parse(text)


def describe_settings(optimiser: LocalOptimiser | None) -> list[str]:
    """The settings that are not the usual ones, in words.

    >>> describe_settings(Sgd(momentum=0.9, nesterov=True))
    ['momentum 0.9', 'nesterov']

    Args:
        optimiser: The optimiser; None: unknown.
    """
    chosen = {} if optimiser is None else unusual_parameters(optimiser)
    return [
        name.replace("_", " ") + ("" if value is True else f" {value:g}")
        for name, value in chosen.items()
    ]


def check_optimiser(text: str) -> str:
    """Returns the text of an optimiser as it is; raises ``ValueError`` where it names none."""
    try:
        OPTIMISERS.parse(text)
    except KeyholeError as error:
        raise ValueError(str(error)) from None
    return text


OptimiserText = Annotated[str, AfterValidator(check_optimiser)]
"""An optimiser with its settings, as a user writes it."""
