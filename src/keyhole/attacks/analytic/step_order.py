"""Which label was in which local step, as far as the last layer's change tells.

By momentum, gradients of early steps go on moving the weights, and every step changes what the next
one sees. So the change of the last layer depends on the order of the labels. The last layer alone
is trained on features of random fields for a supposed order, with the clients' own optimiser; the
order whose change is nearest to the client's is sought by exchanging labels. Labels of one
class cannot be told apart, and need not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.analytic.decoding import draw_fields
from keyhole.attacks.analytic.probes import capture_input
from keyhole.data.image_set import normalise
from keyhole.federation.training import cut_batches
from keyhole.models.anatomy import find_logits_layer
from keyhole.optimisers import LocalOptimiser
from keyhole.seeds import generator
from keyhole.threat import Observation

DRAWS = 6
"""Random fields for each image of the client."""
STARTS = 12
"""Random orders from which labels are exchanged."""
MOST_IMAGES = 32
"""With more images there are too many exchanges."""


@dataclass(frozen=True)
class HeadTraining:
    """One local epoch of the last layer alone, on features of random fields.

    Args:
        weight: Its weight, ``[C, F]``.
        bias: Its bias, ``[C]``.
        features: Its inputs, ``[draws, B, F]``.
        cuts: The local batches of an epoch.
        optimiser: How clients turn gradients into steps.
        lr: The clients' learning rate.
    """

    weight: Tensor
    bias: Tensor
    features: Tensor
    cuts: list[slice]
    optimiser: LocalOptimiser
    lr: float

    def run(self, ordered: Tensor) -> tuple[Tensor, Tensor]:
        """The changes of weight and bias, ``[orders, draws, C, ...]``.

        Args:
            ordered: The label at each place, one row for each supposed order, ``[orders, B]``.
        """
        wanted = F.one_hot(ordered, len(self.weight)).to(self.weight)[:, None]
        shape = (len(ordered), len(self.features))
        start = {
            "weight": self.weight.expand(*shape, *self.weight.shape),
            "bias": self.bias.expand(*shape, -1),
        }
        weights: dict[str, Tensor] = start
        state: dict[str, dict[str, Tensor]] = {}
        for number, cut in enumerate(self.cuts):
            inputs = self.features[:, cut]
            logits = torch.einsum("rbf,orcf->orbc", inputs, weights["weight"])
            chances = (logits + weights["bias"][:, :, None]).softmax(-1)
            wrong = (chances - wanted[:, :, cut]) / inputs.shape[1]
            gradients = {
                "weight": torch.einsum("orbc,rbf->orcf", wrong, inputs),
                "bias": wrong.sum(2),
            }
            weights, state = self.optimiser.step(
                weights, gradients, state, lr=self.lr, number=number
            )
        return weights["weight"] - start["weight"], weights["bias"] - start["bias"]


def infer_order(observation: Observation, labels: Tensor) -> Tensor | None:
    """For each place of the local epoch, the number of the label that is likely in it, ``[B]``.

    None: there is one step, another epoch, an unknown optimiser, or no bias at the last layer.

    Args:
        observation: What the server saw of one client.
        labels: The client's labels, ``[B]``, in any order.
    """
    update, known = observation.update, observation.knowledge
    cuts = cut_batches(len(labels), min(update.batch_size, len(labels)))
    layer = find_logits_layer(observation.model, known.shape)
    tells = {f"{layer}.weight", f"{layer}.bias"} <= set(update.change)
    fits = 1 < len(cuts) == update.steps and len(labels) <= MOST_IMAGES
    if layer is None or known.optimiser is None or not tells or not fits:
        return None
    like = next(observation.model.parameters())
    fields = draw_fields(DRAWS * len(labels), known.shape, generator(0, "order of steps"))
    inputs, _ = capture_input(
        observation.model, layer, normalise(fields, known.mean, known.std).to(like)
    )
    module = observation.model.get_submodule(layer)
    training = HeadTraining(
        module.get_parameter("weight").detach().cpu().float(),
        module.get_parameter("bias").detach().cpu().float(),
        inputs.detach().cpu().float().view(DRAWS, len(labels), -1),
        cuts,
        known.optimiser,
        update.lr,
    )
    changes = [update.change[f"{layer}.{n}"].cpu().float() for n in ("weight", "bias")]
    return fit_order(training, labels.cpu(), changes[0], changes[1])


def fit_order(training: HeadTraining, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The order whose training changes the last layer most like the client's did, ``[B]``.

    The weight's change is compared along the mean feature, and counts as much as features have in
    common.

    Args:
        training: Trains the layer by an order.
        labels: The labels, ``[B]``.
        weight: The client's change of the weight, ``[C, F]``.
        bias: The client's change of the bias, ``[C]``.
    """
    mean = training.features.mean((0, 1))
    alike = mean.square().sum() / training.features.square().sum(2).mean().clamp(min=1e-30)
    along = F.normalize(mean, dim=0)
    wanted = torch.stack([bias, weight @ along])
    share = torch.stack([torch.ones_like(alike), alike]) / wanted.square().sum(1).clamp(min=1e-30)

    def misfits(orders: Tensor) -> Tensor:
        weights, biases = training.run(labels[orders])
        found = torch.stack([biases.mean(1), (weights @ along).mean(1)], 1)
        return ((found - wanted).square().sum(2) * share).sum(1)

    count, draw = len(labels), generator(0, "exchanges")
    pairs = torch.combinations(torch.arange(count))
    exchanges = torch.arange(count).repeat(len(pairs), 1)
    exchanges = exchanges.scatter(1, pairs, pairs.flip(1))
    best, chosen = float("inf"), torch.arange(count)
    for _ in range(STARTS):
        order = torch.randperm(count, generator=draw)
        misfit = float(misfits(order[None]))
        while True:
            others = order[exchanges]
            found = misfits(others)
            nearest = int(found.argmin())
            if float(found[nearest]) >= misfit * (1 - 1e-6):
                break
            order, misfit = others[nearest], float(found[nearest])
        if misfit < best:
            best, chosen = misfit, order
    return chosen
