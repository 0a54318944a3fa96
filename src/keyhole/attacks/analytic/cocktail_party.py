"""The cocktail party attack: a batch unmixed by how unlike noise its images are.

The rows of a fully connected layer's weight gradient are mixtures of the batch's inputs, ``dW = D
X``. Its leading right singular vectors span the inputs. They are centred and whitened, and unit
vectors u are sought for which the values of ``u^T V`` are as far from a Gaussian's as can be
(negentropy), with a penalty for sources that are alike. No ReLU is needed, but sources that are not
independent, as images of one class, come out mixed: results are approximate.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.analytic.disaggregation import factor
from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.analytic.scale import largest_scale
from keyhole.attacks.analytic.spear import KnownLayer, count_labels
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.models.anatomy import InputLayer, find_input_layer
from keyhole.seeds import generator
from keyhole.threat import Observation

GAUSSIAN = 0.374567
"""The mean of ``log cosh`` of a standard normal variable."""


@dataclass(frozen=True, kw_only=True)
class CocktailParty(Attack):
    """Unmixes the inputs of a fully connected first layer by their negentropy.

    Args:
        iterations: Steps of Adam on the unmixing matrix.
        lr: Their learning rate.
        decorrelation: Weight of the mean squared cosine of two sources.
    """

    iterations: Annotated[int, Field(ge=1)] = 1000
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    decorrelation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    name: ClassVar[str] = "cocktail-party"
    summary: ClassVar[str] = "unmixes a batch by how unlike noise its images are"
    paper: ClassVar[str] = "Kariyappa et al. 2023 (cocktail party attack)"
    needs: ClassVar[str] = "a first layer fully connected to the pixels"
    exact: ClassVar[bool] = False

    def incompatibilities(self, observation: Observation) -> list[str]:
        found = find_input_layer(observation.model, observation.knowledge.shape)
        if isinstance(found, str) or found.tokens != 1:
            why = found if isinstance(found, str) else f"{found.layer!r} sees patches one by one"
            return [f"it needs a first layer fully connected to the pixels, but {why}"]
        return []

    def reads(self, observation: Observation) -> set[str]:
        return {require_layer(observation).weight}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        first = require_layer(observation)
        factors = factor(observation.update, first.weight, observation.knowledge.batch_size)
        labels = count_labels(observation)
        if factors is None:
            return Reconstruction(labels=labels, diagnostics={"images": 0, "rank": 0})
        spread, whiten = whiten_rows(factors.right)
        unmixing, negentropy = self.unmix(spread, observation.client)
        directions = torch.linalg.pinv(unmixing @ whiten)  # X = Q^-1 R: Q's columns
        known = KnownLayer.read(observation, first.layer)
        parts = known.take_apart(directions.T, factors)
        images = first.assemble(parts.inputs[:, None], observation.knowledge.shape)
        if known.bias is None:
            images = torch.stack([brighten_either(image, observation) for image in images])
        plausible = share_in_range(images, observation.knowledge)
        return Reconstruction(
            images=images.to(next(observation.model.parameters()).device),
            labels=labels,
            confidence=plausible * (0.5 if len(images) > 1 else 1.0),
            diagnostics={"images": len(images), "negentropy": negentropy},
        )

    def unmix(self, mixed: Tensor, client: int) -> tuple[Tensor, float]:
        """Unit rows u ``[b, b]`` of greatest negentropy of ``u @ mixed``, and their mean of it.

        ``J(s) = (E log cosh s - E log cosh gauss)^2`` for sources of variance 1.

        Args:
            mixed: White mixtures of the sources, ``[b, n]``.
            client: The server's number for the client, which seeds the start.
        """
        b = len(mixed)
        if b == 1:
            return torch.ones(1, 1, dtype=mixed.dtype), 0.0
        start = torch.randn(b, b, generator=generator(0, "cocktail party", client)).to(mixed)
        with torch.enable_grad():
            rows = torch.linalg.qr(start)[0].requires_grad_()
            adam = torch.optim.Adam([rows], lr=self.lr)
            for _ in range(self.iterations):
                unit = rows / rows.norm(dim=1, keepdim=True)
                sources = unit @ mixed
                contrast = torch.nn.functional.softplus(-2 * sources.abs()) + sources.abs()
                negentropy = (contrast.mean(1) - torch.log(torch.tensor(2.0)) - GAUSSIAN).square()
                alike = (unit @ unit.T - torch.eye(b).to(unit)).square().sum() / (b * (b - 1))
                loss = self.decorrelation * alike - negentropy.mean() / GAUSSIAN**2
                adam.zero_grad()
                loss.backward()
                adam.step()
        return unit.detach(), float(negentropy.mean())


def require_layer(observation: Observation) -> InputLayer:
    """The first layer of a model to which the attack applies."""
    found = find_input_layer(observation.model, observation.knowledge.shape)
    assert not isinstance(found, str)
    return found


def whiten_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of mean 0, variance 1 and no correlation ``[b, n]``, and the matrix that made them."""
    centred = rows - rows.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(centred @ centred.T / rows.shape[1])
    floor = values.max().clamp_min(1e-300) * 1e-14
    matrix = vectors.T / values.clamp_min(float(floor)).sqrt()[:, None]
    return matrix @ centred, matrix


def brighten_either(direction: Tensor, observation: Observation) -> Tensor:
    """The image of the greatest contrast that has this direction, of either sign."""
    sign = max((1.0, -1.0), key=lambda each: largest_scale(each * direction, observation.knowledge))
    return sign * largest_scale(sign * direction, observation.knowledge) * direction
