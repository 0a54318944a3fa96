"""A client's filter for NVIDIA FLARE that withholds updates which leak.

It stands in both chains of a client: what the server sends passes and is remembered until the task
is done; what the client would send is attacked first, by one who knows the model that was sent. An
update that an attack reads raises an error, so that FLARE reports the failure in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

import keyhole
from keyhole.auditing.guard import Guard
from keyhole.defenses import DEFENSES
from keyhole.models.weights import load_tensors

RECEIVED = "keyhole.received_weights"


class GuardFilter(DXOFilter):
    """Attacks an update before it leaves the client.

    Args:
        model: The model, by a name of ``keyhole list models`` or as ``package.module:build``.
        data: The client's own images: a folder, or a data set's name.
        images: Which of them it trains on, by index, or such a list for each site; None: all.
        lr: Learning rate of the local training.
        steps: Local steps in a round.
        defense: What the update went through before, in Keyhole's words; attackers know it.
        seconds: Time for iterative attacks in each round; 0: closed forms alone.
        untested: Whether an update leaves on which no attack could be tried.
    """

    def __init__(
        self,
        model: str,
        data: str,
        images: list[int] | dict[str, list[int]] | None = None,
        lr: float = 1.0,
        steps: int = 1,
        defense: str = "none",
        seconds: float = 30.0,
        untested: bool = False,
    ) -> None:
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
        self.model, self.data, self.images = model, data, images
        self.lr, self.steps, self.defense = lr, steps, defense
        self.seconds, self.untested = seconds, untested

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Remembers what came in; checks what goes out. The data pass as they are.

        Args:
            dxo: Weights, or the change of weights, by name.
            shareable: What the data are part of.
            fl_ctx: The context of the task.
        """
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            if dxo.data_kind == DataKind.WEIGHTS:
                fl_ctx.set_prop(RECEIVED, as_tensors(dxo.data), private=True, sticky=False)
            return None
        received = fl_ctx.get_prop(RECEIVED)
        if received is None:
            raise RuntimeError("keyhole: put this filter into the client's input chain, too")
        sent = as_tensors(dxo.data)
        if dxo.data_kind == DataKind.WEIGHTS:
            sent = {name: tensor - received[name] for name, tensor in sent.items()}
        words = self.check(received, sent, fl_ctx.get_identity_name())
        if words is not None:
            raise RuntimeError(f"keyhole: the update stays here: {words}")
        return None

    def check(
        self, received: dict[str, torch.Tensor], change: dict[str, torch.Tensor], site: str
    ) -> str | None:
        """Returns why an update may not leave; None if it may.

        Args:
            received: The weights that the server sent.
            change: What the client changed in them.
            site: The client's name.
        """
        data = keyhole.data.load(self.data)
        channels, height, width = data.shape
        model = keyhole.models.build(
            self.model,
            classes=len(data.classes),
            channels=channels,
            image_size=(height, width),
        )
        load_tensors(model, received, "the server's message")
        chosen = self.images[site] if isinstance(self.images, dict) else self.images
        mine = list(range(len(data))) if chosen is None else chosen
        own = {name for name, _ in model.named_parameters()}
        update = keyhole.Update(
            {name: tensor for name, tensor in change.items() if name in own},
            lr=self.lr,
            steps=self.steps,
            batch_size=max(1, len(mine) // self.steps),
            examples=len(mine),
        )
        guard = Guard(
            model=model, data=data, defense=DEFENSES.parse(self.defense), seconds=self.seconds
        )
        found = guard(update, data.images(mine), data.labels[mine])
        if found.leaks is False or (found.leaks is None and self.untested):
            return None
        return found.words


def as_tensors(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    """FLARE's arrays by name, as tensors of their own."""
    return {name: torch.as_tensor(array).clone() for name, array in arrays.items()}
