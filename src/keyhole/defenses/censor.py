"""CENSOR: a random gradient, orthogonal to the true one and of the same length, is sent."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from keyhole.defenses.base import ClientSide, Defense, caveats_of_buffers
from keyhole.defenses.calibrated import keep_parameters
from keyhole.defenses.traces import Sighting, Trace, TraceCheck
from keyhole.errors import DoesNotFit
from keyhole.update import Update

TRIAL_LR = 1e-4
"""The step after which a candidate's loss is judged, as in the authors' experiments.

In float32 all candidates' losses are the same after so small a step: they are computed in double.
"""
ALONG = 0.01
"""The share of an update that may lie along the true one; chance has the rest of a rounding."""


@plain_dataclass(frozen=True)
class OrthogonalTrace(Trace):
    """Each parameter's change is orthogonal to the one without the defense."""

    kind: ClassVar[str] = "orthogonal"
    needs_reference: ClassVar[bool] = True

    def check(self, seen: Sighting) -> TraceCheck:
        if seen.reference is None:
            words = "only the update without the defense could show that this one is orthogonal"
            return TraceCheck(self.kind, 0.0, 0.0, None, words)
        most = 0.0
        for name, tensor in seen.parameters().items():
            own, true = tensor.double().flatten(), seen.reference.change[name].double().flatten()
            length = float(own.norm() * true.norm())
            if len(own) > 1 and length > 0:
                most = max(most, abs(float(own @ true)) / length)
        words = f"a cosine of at most {most:.2g} with the true change of a tensor, 0 declared"
        return TraceCheck(self.kind, 0.0, most, most <= ALONG, words)


@dataclass(frozen=True, kw_only=True)
class Censor(Defense):
    """Replaces each parameter's change by a random one, orthogonal to it and of the same norm.

    Of several candidates the one is sent with which the model has the least loss on the client's
    images after a small step.

    Args:
        trials: How many candidates are drawn; 0: the update is sent as it is.
    """

    trials: Annotated[int, Field(ge=0)] = 20

    name: ClassVar[str] = "censor"
    summary: ClassVar[str] = "sends a random gradient orthogonal to the true one, the best of some"
    paper: ClassVar[str] = "Zhang et al. 2025 (CENSOR)"
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig", "gifd")
    keeps_norms: ClassVar[bool] = True

    def caveats(self, model: nn.Module) -> list[str]:
        return [
            "what is sent is no descent direction by itself: check that your training converges",
            *caveats_of_buffers(model),
        ]

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        if self.trials == 0:
            return update
        if side.model is None or side.images is None or side.labels is None:
            raise DoesNotFit(
                "defense 'censor' judges candidates by the client's loss: "
                "pass ClientSide(model=..., images=..., labels=...)"
            )
        own = keep_parameters(update, side.model)
        model = copy.deepcopy(side.model).eval().double()
        best, least = self._draw_candidate(own, side), math.inf
        for trial in range(self.trials):
            candidate = best if trial == 0 else self._draw_candidate(own, side)
            loss = measure_loss(model, candidate, side)
            if loss < least:
                best, least = candidate, loss
        side.record(update_norm=own.norm(), loss=least if math.isfinite(least) else "not finite")
        return update.map(lambda name, tensor: best.change.get(name, tensor))

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """That the change is orthogonal to the true one."""
        return [OrthogonalTrace()] if self.trials else []

    def keeps_trace(self, trace: Trace) -> bool:
        """The norm, which every tensor keeps."""
        return self.trials == 0 or trace.kind == "norm"

    def _draw_candidate(self, update: Update, side: ClientSide) -> Update:
        return update.map(lambda _, tensor: draw_orthogonal(tensor, side.generator_at(tensor)))


def draw_orthogonal(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A random tensor orthogonal to ``tensor`` and of its norm; 0 for a single value.

    Args:
        tensor: Any tensor of floats.
        generator: Draws it, on the tensor's device.
    """
    true = tensor.double().flatten()
    drawn = torch.randn(true.shape, generator=generator, device=true.device).double()
    norm = true.norm()
    if true.numel() < 2 or norm == 0:
        return torch.zeros_like(tensor)
    unit = true / norm
    for _ in range(2):  # the second time removes what rounding left
        drawn = drawn - (drawn @ unit) * unit
    scaled: Tensor = drawn * (norm / drawn.norm().clamp(min=1e-300))
    return scaled.view_as(tensor).to(tensor)


@torch.no_grad()
def measure_loss(model: nn.Module, update: Update, side: ClientSide) -> float:
    """The loss on the client's images after a small step along an update's gradient."""
    assert side.images is not None
    assert side.labels is not None
    weights = dict(model.state_dict())
    for name, gradient in update.gradient().items():
        weights[name] = weights[name] - TRIAL_LR * gradient.to(weights[name])
    inputs = side.normalise(side.images).to(next(model.parameters()))
    return float(F.cross_entropy(functional_call(model, weights, (inputs,)), side.labels))
