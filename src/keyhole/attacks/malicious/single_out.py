"""Different models for different clients: secure aggregation then hides nothing of the target."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.attacks.analytic import LinearLeak, PatchLeastSquares
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.malicious.last_layer import LastLayer
from keyhole.attacks.matching import InvertingGradients
from keyhole.errors import DoesNotFit
from keyhole.threat import Observation, PublicKnowledge

CLOSED_FORMS: tuple[Attack, ...] = (LinearLeak(), PatchLeastSquares())


@dataclass(frozen=True, kw_only=True)
class SingleOut(InvertingGradients):
    """Mutes all clients of a secure sum but one, and attacks that one's gradient.

    The others get a last layer whose weights are zero, so no slope reaches the layers before it,
    and in the sum those layers hold the target's gradient alone. (The paper makes ReLUs die, to the
    same effect; this works for any network, for clients that take one step.) A closed form reads
    the gradient where one fits, else IG.

    Args:
        target: The number of the client within the sum.
    """

    target: Annotated[int, Field(ge=0)] = 0
    labels: Literal["given", "inferred", "sought"] = "sought"

    name: ClassVar[str] = "single-out"
    summary: ClassVar[str] = "mutes all clients of a secure sum but one, then reads that one"
    paper: ClassVar[str] = "Pasquini et al. 2022 (Eluding Secure Aggregation)"
    needs: ClassVar[str] = "a server that sends clients different models; one local step"
    altered_model: ClassVar[str | None] = "a last layer of zeros for every client but one"

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        if public is None:
            raise DoesNotFit("attack 'single-out' needs to know the images' shape")
        if self.target >= public.clients:
            raise DoesNotFit(
                f"a sum of {public.clients} client(s) has no client {self.target}: pass --aggregate"
            )
        if public.steps > 1:
            raise DoesNotFit("attack 'single-out' needs clients that take one step")
        LastLayer.find(model, public.shape)
        return model

    def personalise(self, model: nn.Module, client: int, public: PublicKnowledge) -> nn.Module:
        if client == self.target:
            return model
        muted = copy.deepcopy(model)
        with torch.no_grad():
            LastLayer.find(muted, public.shape).layer.weight.zero_()
        return muted

    def incompatibilities(self, observation: Observation) -> list[str]:
        try:
            return super().incompatibilities(self._view_target(observation))
        except DoesNotFit as error:
            return [str(error)]

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        alone = [self._view_target(observation) for observation in observations]
        for closed_form in CLOSED_FORMS:
            if alone and not closed_form.incompatibilities(alone[0]):
                return (closed_form.reconstruct(observation) for observation in alone)
        return super().stream(alone, checkpointer)

    def _view_target(self, observation: Observation) -> Observation:
        """Returns the observation as if the server had got the target's update alone."""
        known, update = observation.knowledge, observation.update
        last = LastLayer.find(observation.model, known.shape)
        images = max(1, known.batch_size // known.clients)
        own = last.leave_out(update).map(lambda _, tensor: tensor * known.clients)
        return replace(
            observation,
            update=replace(own, batch_size=images, examples=images),
            knowledge=replace(known, batch_size=images, clients=1),
            earlier=(),
        )
