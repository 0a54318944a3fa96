"""GradDefense: noise on random slices of the gradient that are equally sensitive."""

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
from torch.nn import functional as F

from keyhole.defenses.base import ClientSide, Defense, caveats_of_buffers
from keyhole.defenses.clipping import draw_noise, squared_norm, total_norm
from keyhole.defenses.noise_model import Noise
from keyhole.defenses.traces import Sighting, Trace, TraceCheck
from keyhole.errors import DoesNotFit
from keyhole.models.dropout_sites import FixedMasks
from keyhole.seeds import generator
from keyhole.update import Update

ROOT_IMAGES = 4
"""Public images on which layers' sensitivities are measured; they are random pixels here."""
NEIGHBOURS = 128
"""An attacker judges whether a value has noise by so many values on both sides."""
LOUD = 0.5
"""Values count as noisy where their mean square is above this share of the noise's variance."""
WEAK = 0.5
"""Noise below this share of the declared standard deviation is too weak."""
FEWEST = 1000
"""The fewest values with noise by which it is judged: chance does not halve their deviation."""


@plain_dataclass(frozen=True)
class SliceNoiseTrace(Trace):
    """The values that differ from those without the defense do so by noise of the declared size.

    Args:
        sigma: The noise's standard deviation, in the units of ``update.gradient()``.
    """

    sigma: float
    of_training: bool = True

    kind: ClassVar[str] = "slices"
    needs_reference: ClassVar[bool] = True

    def check(self, seen: Sighting) -> TraceCheck:
        if seen.reference is None:
            words = "only the update without the defense could show which slices have noise"
            return TraceCheck(self.kind, self.sigma, 0.0, None, words)
        true = seen.reference.gradient()
        own = {n: g for n, g in seen.update.gradient().items() if n in seen.parameters()}
        noise = torch.cat([(g.double() - true[n].double()).flatten() for n, g in own.items()])
        noisy = noise[noise.abs() > 1e-6 * self.sigma]
        found = math.sqrt(float(noisy.square().mean())) if len(noisy) else 0.0
        enough = len(noisy) == 0 or len(noisy) >= FEWEST
        passed = found >= WEAK * self.sigma if enough else None
        share = len(noisy) / max(1, len(noise))
        words = f"noise of about {found:.2g} in {share:.0%} of all values"
        words += f", {self.sigma:.2g} declared"
        return TraceCheck(self.kind, self.sigma, found, passed, words)


@dataclass(frozen=True, kw_only=True)
class GradDefense(Defense):
    """Cuts the gradient into slices that are equally sensitive, and adds noise to some of them.

    A layer's sensitivity is the norm of the derivative of its gradient's sum by the pixels, over a
    few public images. Slices are drawn anew for every update. The paper's server denoises the mean
    of many clients' updates afterwards, which is no part of the client's defense.

    Args:
        slices: How many slices the gradient is cut into.
        perturbed: How many of them get noise.
        sigma: The noise's standard deviation, in the units of the gradient.
    """

    slices: Annotated[int, Field(ge=1)] = 10
    perturbed: Annotated[int, Field(ge=0)] = 5
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-2

    name: ClassVar[str] = "graddefense"
    summary: ClassVar[str] = "adds noise to random slices of equal sensitivity"
    paper: ClassVar[str] = "Wang et al. 2022 (GradDefense)"
    headline: ClassVar[tuple[str, ...]] = ("perturbed", "sigma")
    paper_attacks: ClassVar[tuple[str, ...]] = ("dlg",)

    def caveats(self, model: nn.Module) -> list[str]:
        return caveats_of_buffers(model)

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        if self.sigma == 0 or self.perturbed == 0:
            return update
        if side.model is None or side.images is None:
            raise DoesNotFit(
                "defense 'graddefense' measures the model's sensitivity: "
                "pass ClientSide(model=..., images=...)"
            )
        noisy = self._choose_values(update, side)
        energies: list[Tensor] = []
        scale = self.sigma * update.lr * update.steps

        def protect(name: str, tensor: Tensor) -> Tensor:
            mask = noisy.get(name)
            if mask is None or not bool(mask.any()):
                return tensor
            draw = side.generator_at(tensor)
            noise = draw_noise(tensor, scale, draw, side.global_weight(name))
            noise = torch.where(mask.view_as(tensor).to(tensor.device), noise, 0 * noise)
            energies.append(squared_norm(noise))
            return tensor + noise

        protected = update.map(protect)
        side.record(
            update_norm=update.norm(),
            noise_norm=total_norm(energies),
            values_perturbed=sum(int(mask.sum()) for mask in noisy.values()),
        )
        return protected

    def _choose_values(self, update: Update, side: ClientSide) -> dict[str, Tensor]:
        """Which values of each parameter lie in the slices that get noise."""
        assert side.model is not None
        assert side.images is not None
        sensitivities = measure_sensitivity(side.model, side.images.shape[1:], side)
        names = [n for n in sensitivities if n in update.change]
        sizes = [update.change[n].numel() for n in names]
        densities = [sensitivities[n] / max(s, 1) for n, s in zip(names, sizes, strict=True)]
        spread = torch.cat(
            [torch.full((s,), d, dtype=torch.double) for s, d in zip(sizes, densities, strict=True)]
        )
        slice_of = cut_equally(spread, self.slices)
        chosen = torch.randperm(self.slices, generator=side.generator)[: self.perturbed]
        marked = torch.isin(slice_of, chosen)
        return dict(zip(names, torch.split(marked, sizes), strict=True))

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        """Where the mean square of neighbouring values is near the noise's variance or above."""
        gradient = update.gradient()
        names = [n for n, _ in model.named_parameters() if n in gradient and gradient[n].dim()]
        if self.sigma == 0 or self.perturbed == 0 or not names:
            return {}
        noisy = find_loud_values(torch.cat([gradient[n].flatten() for n in names]), self.sigma)
        found = {}
        for name, part in zip(
            names, torch.split(noisy, [gradient[n].numel() for n in names]), strict=True
        ):
            rows = part.view(len(gradient[name]), -1).any(1)
            share = self.perturbed / max(self.slices, self.perturbed)
            found[name] = Noise(rows.double() * self.sigma**2, share=share)
        return found

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The noise where it is; a guess of :meth:`noise_model` is no fault of a client."""
        return [SliceNoiseTrace(self.sigma)] if self.sigma > 0 and self.perturbed > 0 else []

    def keeps_trace(self, trace: Trace) -> bool:
        return trace.kind == "noise"


@torch.enable_grad()
def measure_sensitivity(
    model: nn.Module, shape: torch.Size, side: ClientSide | None = None
) -> dict[str, float]:
    """The mean norm, over public images, of the derivative of each gradient's sum by the pixels.

    Args:
        model: The global model; it is left as it is.
        shape: The images' shape, ``(C, H, W)``.
        side: Says how images are normalised; None: they are not.
    """
    probe = copy.deepcopy(model).eval().requires_grad_(True)
    named = dict(probe.named_parameters())
    like = next(iter(named.values()))
    pixels = torch.rand(ROOT_IMAGES, *shape, generator=generator(0, "root images")).to(like)
    x = (side.normalise(pixels) if side else pixels).detach().requires_grad_()
    with FixedMasks():
        logits = probe(x)
    labels = torch.arange(ROOT_IMAGES, device=logits.device) % logits.shape[1]
    loss = F.cross_entropy(logits, labels)
    gradients = torch.autograd.grad(
        loss, list(named.values()), create_graph=True, materialize_grads=True
    )
    found = {}
    for name, gradient in zip(named, gradients, strict=True):
        if not gradient.requires_grad:
            found[name] = 0.0
            continue
        slope = torch.autograd.grad(gradient.sum(), x, retain_graph=True, allow_unused=True)[0]
        norm = 0.0 if slope is None else float(slope.flatten(1).norm(dim=1).mean())
        found[name] = norm if norm == norm else 0.0
    return found


def cut_equally(density: Tensor, slices: int) -> Tensor:
    """The number of the slice of each value, so that all slices have equal sums of ``density``.

    >>> cut_equally(torch.tensor([1.0, 1.0, 2.0, 4.0]), 2).tolist()
    [0, 0, 0, 1]
    """
    whole = density.sum()
    if not len(density) or not whole > 0:
        density, whole = torch.ones_like(density), density.new_tensor(len(density))
    before = density.cumsum(0) - density
    return (before / whole * slices + 1e-9).long().clamp(max=slices - 1)


def find_loud_values(values: Tensor, sigma: float) -> Tensor:
    """Which values have neighbours on both sides whose mean square is that of noise, bool."""
    squares = values.double().square()
    total = torch.cat([squares.new_zeros(1), squares.cumsum(0)])
    place = torch.arange(len(values), device=values.device)
    first = (place - NEIGHBOURS).clamp(min=0)
    last = (place + NEIGHBOURS + 1).clamp(max=len(values))
    return (total[last] - total[first]) / (last - first) > LOUD * sigma**2
