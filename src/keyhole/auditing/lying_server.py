"""A server that sends altered models out while the honest model goes on training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.attacks import Attack
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation import Reply
from keyhole.models.weights import load_tensors
from keyhole.threat import PublicKnowledge
from keyhole.update import apply_change, convert_type

Tensors = dict[str, Tensor]

AGGREGATE = "aggregate"
"""The name under which the mean of a secure sum is captured."""


def check_ownership(i_own_these_clients: object) -> None:
    """Raises unless the user says that all clients are theirs."""
    if i_own_these_clients is not True:
        raise BadValue(
            "malicious() attacks every client that connects, to show what your own deployment "
            "gives away: run it on your own machines with test data, and pass "
            "i_own_these_clients=True"
        )


class LyingServer:
    """Alters the model of each round, and turns what replies change back to the honest model.

    Args:
        attack: The attack that alters the model.
        model: The clients' model; it gives names and shapes, and is not changed.
        public: What the server knows of the federation. ``clients`` above 1 says that it gets the
            updates of so many clients as one sum; each of them may then get another model.
        clipping_range: The largest weight, up to its sign, that a secure sum carries; larger ones
            are cut off before they are sent. None: no limit.

    Raises:
        DoesNotFit: The attack cannot alter this model.
    """

    def __init__(
        self,
        attack: Attack,
        model: nn.Module,
        public: PublicKnowledge,
        *,
        clipping_range: float | None = None,
    ) -> None:
        if attack.altered_model is None:
            raise DoesNotFit(f"attack {attack.name!r} changes no model: use curious() for it")
        self.attack, self.public, self.clipping_range = attack, public, clipping_range
        self.model = copy.deepcopy(model)
        self.honest: Tensors = {}
        self.altered: Tensors = {}
        self.sent: dict[str, Tensors] = {}
        self.begin_round(model.state_dict(), [str(number) for number in range(public.clients)])

    def describe(self) -> dict[str, Any]:
        """Returns what a captured folder says about the attack, so that an audit can follow it."""
        return {
            "attack": str(self.attack),
            "altered_model": self.attack.altered_model,
            "public-batch-size": self.public.batch_size,
            "public-steps": self.public.steps,
            "public-clients": self.public.clients,
        }

    def begin_round(self, honest: Mapping[str, Tensor], nodes: Sequence[str]) -> None:
        """Alters the model for a round, for each of its clients.

        Args:
            honest: The global weights as the strategy has them.
            nodes: The clients' names. Their order is the clients' numbers in the attack.
        """
        clients = self.public.clients
        if clients > 1 and len(nodes) != clients:
            raise DoesNotFit(
                f"{len(nodes)} clients take part, but the attack is laid for a sum of {clients}: "
                "set PublicKnowledge(clients=...), or how many clients the strategy samples"
            )
        load_tensors(self.model, dict(honest), "the global model")
        altered = self.attack.alter(self.model, self.public)
        self.honest = {name: tensor.clone() for name, tensor in honest.items()}
        self.altered = self._read_weights(altered)
        own = [self.attack.personalise(altered, number, self.public) for number in range(clients)]
        weights = [self.altered if each is altered else self._read_weights(each) for each in own]
        self.sent = {node: weights[number % clients] for number, node in enumerate(nodes)}

    def _read_weights(self, model: nn.Module) -> Tensors:
        limit = self.clipping_range
        return {
            name: tensor.detach().clone()
            if limit is None or not tensor.is_floating_point()
            else tensor.detach().clamp(-limit, limit)
            for name, tensor in model.state_dict().items()
        }

    def apply_to_honest(self, change: Mapping[str, Tensor]) -> Tensors:
        """Returns the honest weights after a change; what only the altered model has is left out.

        Args:
            change: What one client, or the mean of all, changed in the weights that were sent.
        """
        return {
            name: apply_change(convert_type(start, change[name]), change[name])
            for name, start in self.honest.items()
            if name in change
        }

    def build_sum(
        self, change: Mapping[str, Tensor], examples: Sequence[int], members: Sequence[str]
    ) -> Reply:
        """Returns the mean of all clients' changes as a captured folder holds it.

        Args:
            change: The mean change.
            examples: How many images each client trained on.
            members: The clients' names, in the order of their numbers.
        """
        return Reply(AGGREGATE, change, sum(examples), clients=len(members), members=members)


def average_tensors(tensors: Sequence[Mapping[str, Tensor]], examples: Sequence[int]) -> Tensors:
    """Returns the mean of several clients' tensors, weighted by their numbers of examples.

    >>> weights = [{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}]
    >>> average_tensors(weights, [1, 3])
    {'w': tensor([3.])}
    """
    total = sum(examples)
    if total < 1:
        raise DoesNotFit("the clients of the sum say that they trained on no image")
    shares = [count / total for count in examples]
    return {
        name: torch.stack([t[name].double() * s for t, s in zip(tensors, shares, strict=True)])
        .sum(0)
        .to(tensor)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in tensors[0].items()
    }


def name_member(node: str, metrics: Mapping[str, Any]) -> str:
    """Returns a client's name within a sum: its partition's number, else the id of its node.

    >>> name_member("7163", {"partition-id": 2}), name_member("7163", {})
    ('2', '7163')
    """
    claim = metrics.get("partition-id")
    return str(claim) if isinstance(claim, int) and not isinstance(claim, bool) else node


def sort_nodes(nodes: Sequence[str]) -> list[str]:
    """Returns nodes by their ids, so that a client has the same number in every round.

    >>> sort_nodes(["10", "9", "a"])
    ['9', '10', 'a']
    """
    return sorted(nodes, key=lambda node: (not node.isdecimal(), len(node), node))
