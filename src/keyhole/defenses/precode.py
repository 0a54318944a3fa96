"""PRECODE: a variational bottleneck before the last layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.batch_gradient import differentiate
from keyhole.defenses.traces import Sighting, Trace, TraceCheck
from keyhole.errors import DoesNotFit
from keyhole.models.bottleneck import (
    CHILD_NAME,
    Bottleneck,
    LossCollector,
    add_bottleneck,
    find_bottleneck,
    find_last_linear,
)
from keyhole.update import Update


@plain_dataclass(frozen=True)
class SampledTrace(Trace):
    """The bottleneck's log variances moved: where its mean is decoded, they have no gradient."""

    kind: ClassVar[str] = "sampled"

    def check(self, seen: Sighting) -> TraceCheck:
        places = [n for n, m in seen.model.named_modules() if isinstance(m, Bottleneck)]
        bias = seen.parameters().get(f"{places[0]}.encoder.bias") if places else None
        if bias is None:
            words = "the update has no bottleneck's encoder"
            return TraceCheck(self.kind, 1.0, 0.0, None, words)
        variances = bias.chunk(2)[1]
        share = float((variances != 0).double().mean())
        words = f"{share:.0%} of the bottleneck's variances moved"
        return TraceCheck(self.kind, 1.0, share, share > 0, words)


@dataclass(frozen=True, kw_only=True)
class Precode(Defense):
    """Samples the last layer's features anew in every step, from a distribution that is learned.

    Features are encoded as mean and log variance, of which a sample is decoded. The loss is the
    cross-entropy plus ``beta`` times the distribution's divergence from N(0, 1). The server's
    model has the bottleneck, too, and decodes the mean; so do clients that train in eval mode,
    where dropout is off as well.

    Args:
        width: The dimensions of the bottleneck; 0: there is none.
        beta: Weight of the divergence.
    """

    width: Annotated[int, Field(ge=0)] = 256
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-3

    name: ClassVar[str] = "precode"
    summary: ClassVar[str] = "samples the last features from a variational bottleneck"
    paper: ClassVar[str] = "Scheliga et al. 2022 (PRECODE)"
    headline: ClassVar[tuple[str, ...]] = ("width",)
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig",)
    hides_masks: ClassVar[bool] = True

    def incompatibilities(self, model: nn.Module) -> list[str]:
        if not self.width or find_last_linear(model) is not None:
            return []
        return ["it has no linear layer before which a bottleneck could be put"]

    def caveats(self, model: nn.Module) -> list[str]:
        return ["layers before the bottleneck get no noise of their own (Scheliga et al. 2022)"]

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """The model with the bottleneck's parameters, which server and clients share."""
        own = find_bottleneck(model)
        if own is not None and own.decoder.in_features != self.width:
            raise DoesNotFit(
                f"the model has a bottleneck of {own.decoder.in_features} dimensions, not "
                f"{self.width}: give it the plain one"
            )
        if own is not None or not self.width:
            return model
        self.validate(model)
        return add_bottleneck(model, self.width)

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        if not self.width:
            return model
        prepared = self.prepare_model(model)
        protected = copy.deepcopy(prepared) if prepared is model else prepared
        bottleneck = find_bottleneck(protected)
        assert bottleneck is not None
        bottleneck.samples, bottleneck.divergence_weight = True, self.beta
        if side is not None:
            added = sum(p.numel() for p in bottleneck.parameters())
            side.record(width=self.width, parameters_added=added)
        return protected

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        """The gradient of cross-entropy and divergence; None where there is no bottleneck."""
        if find_bottleneck(model) is None:
            return None
        with LossCollector() as collected:
            loss = F.cross_entropy(model(inputs), labels)
        for term in collected.terms:
            loss = loss + term.sum() / len(inputs)
        return differentiate(loss, model)

    def misleading_values(self, update: Update, model: nn.Module) -> Mapping[str, Tensor]:
        """All values of the bottleneck and of the layer after it: they follow the noise."""
        if find_bottleneck(model) is None:
            return {}
        head = find_last_linear(model)
        own = (f"{head}.weight", f"{head}.bias", f"{head}.{CHILD_NAME}.")
        return {
            name: torch.ones_like(gradient, dtype=torch.bool)
            for name, gradient in update.gradient().items()
            if name.startswith(own)
        }

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """That features were sampled."""
        return [SampledTrace()] if self.width else []
