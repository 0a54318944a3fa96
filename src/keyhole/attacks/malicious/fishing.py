"""Fishing: the server lets the gradient of one image of a batch through, and attacks that.

Only the target class keeps its weights in the last layer, and biases make it look unlikely for
every image. The loss of an image of another class then has (almost) no slope with respect to the
features, that of an image of the target class its full slope. Where a hidden unit is also made to
fire for few images, images of the same class are told apart as well.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.malicious.last_layer import LastLayer, record_call
from keyhole.attacks.matching import InvertingGradients
from keyhole.errors import DoesNotFit
from keyhole.threat import Observation, PublicKnowledge
from keyhole.update import Update

UNLIKELY = 40.0
"""How far the target class's logit lies below the others: its probability is below 1e-17."""


@dataclass(frozen=True, kw_only=True)
class Fishing(InvertingGradients):
    """IG on the gradient of a single image, which the altered last layer let through.

    It reads a batch in which one image has the target class; several of them are seen as a mixture.

    Args:
        target: The class whose image is fished for.
        share: Below 1, one hidden unit before the last layer fires for this share of images only,
            so that most images of the target class are held back too. This needs a network that
            ends in a linear layer, a ReLU and the last layer.
    """

    target: Annotated[int, Field(ge=0)] = 0
    share: Annotated[float, Field(gt=0, le=1)] = 1.0

    name: ClassVar[str] = "fishing"
    summary: ClassVar[str] = "lets one image's gradient out of a batch, then inverts it"
    paper: ClassVar[str] = "Wen et al. 2022 (Fishing for User Data)"
    needs: ClassVar[str] = "a linear last layer; batch norms that do not use the batch's statistics"
    altered_model: ClassVar[str | None] = "a last layer that mutes all classes but one"

    @property
    def given(self) -> frozenset[str]:
        return super().given - {"labels"}

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        if public is None:
            raise DoesNotFit("attack 'fishing' needs to know the images' shape")
        if self.target >= public.classes:
            raise DoesNotFit(f"there is no class {self.target} among {public.classes}")
        changed = copy.deepcopy(model)
        last = LastLayer.find(changed, public.shape)
        with torch.no_grad():
            if self.share < 1:
                row = self._gate_unit(changed, last, public.images)
            else:
                row = last.layer.weight[self.target].clone()
            self._mute_classes(changed, last, row, public.images)
        return changed

    def _mute_classes(self, model: nn.Module, last: LastLayer, row: Tensor, images: Tensor) -> None:
        """Leaves the target class its ``row`` of weights, and makes it look unlikely."""
        layer = last.layer
        bias: nn.Parameter | None = layer.bias
        if bias is None:
            features = last.inputs(model, images.to(layer.weight))
            mean = features.mean(0)
            row = -UNLIKELY * mean / (features @ mean).amin().clamp_min(1e-6)
        else:
            bias.fill_(UNLIKELY)
            bias[self.target] = 0.0
        layer.weight.zero_()
        layer.weight[self.target] = row

    def _gate_unit(self, model: nn.Module, last: LastLayer, images: Tensor) -> Tensor:
        """Makes one hidden unit fire for a share of images; returns weights that see it alone."""
        hidden = find_hidden_layer(model, last, images)
        values = record_call(model, hidden, images.to(hidden.weight))[1]
        unit = int(values.std(0).argmax())
        assert hidden.bias is not None
        hidden.bias[unit] -= values[:, unit].quantile(1 - self.share)
        row = torch.zeros_like(last.layer.weight[0])
        row[unit] = 1.0
        return row

    def incompatibilities(self, observation: Observation) -> list[str]:
        try:
            return super().incompatibilities(self._view_single_image(observation))
        except DoesNotFit as error:
            return [str(error)]

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        return super().stream([self._view_single_image(o) for o in observations], checkpointer)

    def _view_single_image(self, observation: Observation) -> Observation:
        """Returns the observation as if the client had the fished image alone."""
        known = observation.knowledge
        last = LastLayer.find(observation.model, known.shape)
        update = last.leave_out(observation.update).map(lambda _, t: t * known.batch_size)
        single = replace(
            known, batch_size=1, clients=1, labels=torch.tensor([self.target]), masks=None
        )
        alone = Update(update.change, update.steps, update.lr, batch_size=1, examples=1)
        return replace(observation, update=alone, knowledge=single, earlier=())


def find_hidden_layer(model: nn.Module, last: LastLayer, images: Tensor) -> nn.Linear:
    """Finds the linear layer whose rectified output enters the last one."""
    inputs = last.inputs(model, images[:2].to(last.layer.weight))
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.Linear) and module is not last.layer and module.bias is not None:
            values = record_call(model, module, images[:2].to(last.layer.weight))[1]
            if values.shape == inputs.shape and torch.equal(values.relu(), inputs):
                return module
    raise DoesNotFit("a share below 1 needs a linear layer and a ReLU before the last layer")
