"""Sharing a part of the model only: the head, the body, or all but the norms."""

from __future__ import annotations

import copy
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.kept_tensors import read_kept, write_kept
from keyhole.defenses.traces import Trace, ZerosTrace
from keyhole.errors import BadUpdate, DoesNotFit
from keyhole.models.heads import NORMS, find_head
from keyhole.update import Update, apply_change

PRIVATE = "share-private"
"""The name under which a client keeps the weights that it does not share."""


@dataclass(frozen=True, kw_only=True)
class Share(Defense):
    """Shares a part of the model. What is not shared is missing from the update.

    ``head``: only the last linear layer is trained and shared; the body stays as the server sent
    it, as a pretrained one does. ``body``: the last linear layer stays with each client (FedPer;
    FedRep shares the same). ``no-norm``: norms stay with each client, statistics included (FedBN).
    What stays with a client is trained on from round to round.

    Args:
        part: What is shared; ``all``: nothing is done.

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    >>> sorted(Share(part="body").unshared(model))
    ['2.bias', '2.weight']
    """

    part: Literal["all", "head", "body", "no-norm"] = "head"

    name: ClassVar[str] = "share"
    summary: ClassVar[str] = "shares only the head, only the body, or all but the norms"
    paper: ClassVar[str] = (
        "Arivazhagan et al. 2019 (FedPer); Collins et al. 2021 (FedRep); Li et al. 2021 (FedBN)"
    )
    headline: ClassVar[tuple[str, ...]] = ("part",)
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def incompatibilities(self, model: nn.Module) -> list[str]:
        if self.part in ("head", "body") and find_head(model) is None:
            return ["it has no linear layer that could be its head"]
        if self.part == "no-norm" and not self.unshared(model):
            return ["it has no norms to keep: leave 'share' out"]
        return []

    def caveats(self, model: nn.Module) -> list[str]:
        if self.part in ("all", "head"):
            return []
        return [
            "share: accuracy is that of the server's model, whose unshared part is as at the start"
        ]

    def unshared(self, model: nn.Module) -> frozenset[str]:
        """The names of the tensors that clients keep to themselves.

        Args:
            model: The global model.
        """
        every = model.state_dict().keys()
        if self.part == "all":
            return frozenset()
        if self.part == "no-norm":
            found = [name for name, module in model.named_modules() if isinstance(module, NORMS)]
            return frozenset(n for n in every if n.rpartition(".")[0] in found)
        head = find_head(model)
        own = {n for n in every if n.rpartition(".")[0] == head}
        return frozenset(own if self.part == "body" else every - own)

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        unshared = self.unshared(model)
        if self.part == "head":
            model = copy.deepcopy(model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name not in unshared)
            return model
        if side is None or PRIVATE not in side.memory:
            return model
        model = copy.deepcopy(model)
        model.load_state_dict(self._read_private(side, model.state_dict()), strict=False)
        return model

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        if self.part == "all":
            return update
        if side is None or side.model is None:
            raise DoesNotFit("share needs the client's model: pass ClientSide(model=...)")
        unshared = self.unshared(side.model)
        if self.part != "head":
            own = {**side.model.state_dict(), **self._read_private(side, side.model.state_dict())}
            changed = {n: c for n, c in update.change.items() if n in unshared}
            after = {n: apply_change(own[n], c.to(own[n])) for n, c in changed.items()}
            side.memory[PRIVATE] = write_kept({n: t.contiguous() for n, t in after.items()})
        sent = {n: c for n, c in update.change.items() if n not in unshared}
        if not sent:
            raise BadUpdate(f"share(part={self.part!r}): the update has nothing that is shared")
        side.record(shared=len(sent), kept=len(update.change) - len(sent))
        return Update(sent, update.steps, update.lr, update.batch_size, update.examples)

    def keeps_trace(self, trace: Trace) -> bool:
        """What holds of every tensor, and of the norm of all."""
        if isinstance(trace, ZerosTrace):
            return self.part == "all" or trace.scope == "tensor"
        return self.part == "all" or trace.kind in ("noise", "norm", "bound", "levels", "precision")

    def _read_private(self, side: ClientSide, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights that the client kept; empty in its first round."""
        return read_kept(side.memory.get(PRIVATE), like, "share")
