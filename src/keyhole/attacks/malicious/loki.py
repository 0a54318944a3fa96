"""LOKI: secure aggregation hides which client sent what, unless each writes to its own place."""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.analytic.noise import known_white_noise
from keyhole.attacks.base import Reconstruction
from keyhole.attacks.malicious.imprint import BIAS, WEIGHT, Imprint, read_images
from keyhole.attacks.malicious.imprint_block import ImprintBlock, insert_block
from keyhole.errors import DoesNotFit
from keyhole.threat import Observation, PublicKnowledge

DEAD = -1e6
"""The bias of rows that another client owns: no image fires them."""


@dataclass(frozen=True, kw_only=True)
class Loki(Imprint):
    """An imprint with a block of rows for each client, which only that client's images fire.

    The clients' models differ in the biases of these rows alone. In the sum of their updates each
    block holds the gradients of one client. (The paper gives each client channels of its own; rows
    of its own keep the biases' gradients apart as well, so that images come out exactly.)

    Args:
        bins: Rows per client.
    """

    bins: Annotated[int, Field(ge=1, le=1 << 16)] = 128

    name: ClassVar[str] = "loki"
    summary: ClassVar[str] = "takes a secure sum apart by client, then by image"
    paper: ClassVar[str] = "Zhao et al. 2024 (LOKI)"
    needs: ClassVar[str] = "a server that sends each client another model with an added layer"
    altered_model: ClassVar[str | None] = "a layer added in front, with rows of its own per client"

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        row, thresholds, sparse = self._place_thresholds(model, public)
        assert public is not None
        if sparse:
            raise DoesNotFit("attack 'loki' needs clients that take one step")
        every = thresholds.repeat(public.clients)
        gain = self._find_gain(model, row, thresholds, sparse, public)
        if self.gain == "auto":
            gain *= public.clients  # an image fires the rows of one client alone
        return insert_block(model, ImprintBlock(row, every, sparse=False, gain=gain))

    def personalise(self, model: nn.Module, client: int, public: PublicKnowledge) -> nn.Module:
        own = copy.deepcopy(model)
        rows_by_client = own.get_parameter(BIAS).data.view(public.clients, -1)
        rows_by_client[torch.arange(public.clients) != client] = DEAD
        return own

    def reconstruct(self, observation: Observation) -> Reconstruction:
        knowledge, gradient = observation.knowledge, observation.update.gradient()
        weights = gradient[WEIGHT].tensor_split(knowledge.clients)
        biases = gradient[BIAS].tensor_split(knowledge.clients)
        most = knowledge.batch_size // knowledge.clients
        noise = known_white_noise(observation, WEIGHT).sigma
        found = [
            read_images(observation, weight, bias, cumulative=True, most=most, noise=noise)
            for weight, bias in zip(weights, biases, strict=True)
        ]
        images = torch.cat(found)
        owners = torch.arange(len(found)).repeat_interleave(torch.tensor([len(f) for f in found]))
        if not len(images):
            return Reconstruction(diagnostics={"images": 0})
        return Reconstruction(
            images=images,
            clients=owners,
            confidence=share_in_range(images, knowledge).cpu(),
            diagnostics={"images": len(images)},
        )
