"""PEFTLeak: adapters of a frozen vision transformer that take images apart, patch by patch."""

from __future__ import annotations

import copy
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.analytic.noise import apply_wiener_filter, known_white_noise
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.malicious.carried_patches import AdaptedVit, check_wires, wire_patches
from keyhole.attacks.malicious.ladder import (
    FilledBins,
    read_bins,
    read_noisy_bins,
    spread_quantiles,
)
from keyhole.attacks.malicious.last_layer import record_call
from keyhole.attacks.malicious.patch_groups import find_shared_bins, group_patches
from keyhole.defenses.capabilities import Capability
from keyhole.errors import DoesNotFit
from keyhole.models.adapters import Adapter
from keyhole.seeds import generator
from keyhole.threat import Observation, PublicKnowledge

LOGIT_SPREAD = 0.25
"""How much logits vary over public images: enough that no two images have the same slope."""

FILL_STEPS = 200
"""Steps in which pixels that were not read are interpolated."""


@dataclass(frozen=True, kw_only=True)
class PeftImprint(Attack):
    """Turns adapters into ladders of thresholds on tokens that are patches, and reads each bin.

    Each position of a patch has bins of its own, so that a single image is read whole. The images
    of a batch share the bins of a position. Which patches belong to one image is told by the slope
    of its loss, by which all its bins are multiplied.

    Args:
        gain: How far a token moves that fires every row, in input units.
    """

    gain: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0

    name: ClassVar[str] = "peft-imprint"
    summary: ClassVar[str] = "sorts patches into the bins of a frozen ViT's adapters and reads each"
    paper: ClassVar[str] = "Sami et al. 2025 (PEFTLeak)"
    needs: ClassVar[str] = "a ViT with adapters whose tokens have room for a patch's pixels"
    recovers_inputs: ClassVar[bool] = True
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.NOISE})
    altered_model: ClassVar[str | None] = "frozen weights that carry patches to threshold adapters"

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        if public is None or not len(public.images):
            raise DoesNotFit(f"attack {self.name!r} needs public images to place its thresholds by")
        changed = copy.deepcopy(model)
        vit = AdaptedVit.find(changed, public.shape)
        images = public.images.to(vit.embedding)
        with torch.no_grad():
            wire_patches(vit, float(images.min()), float(images.max()))
            check_wires(vit, images[:1])
            lay_ladders(vit, images, self.gain)
            slope_head(vit, images)
        return changed

    def incompatibilities(self, observation: Observation) -> list[str]:
        try:
            vit = AdaptedVit.find(observation.model, observation.knowledge.shape)
        except DoesNotFit as error:
            return [str(error)]
        rows = [adapter.down.weight for _, adapter in vit.adapters]
        ladder = bool(rows) and all(torch.equal(each, rows[0][:1].expand_as(each)) for each in rows)
        return [] if ladder else ["the server did not turn its adapters into threshold rows"]

    def reads(self, observation: Observation) -> set[str]:
        vit = AdaptedVit.find(observation.model, observation.knowledge.shape)
        return {f"{name}.down.{part}" for name, _ in vit.adapters for part in ("weight", "bias")}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        known = observation.knowledge
        vit = AdaptedVit.find(observation.model, known.shape)
        read = read_patches(vit, observation)
        owners = group_patches(read.slopes, read.positions, known.batch_size)
        if not (owners >= 0).any():
            return Reconstruction(diagnostics={"images": 0})
        shared = find_shared_bins(read.slopes, read.positions, owners)
        images, complete = [], []
        for image, mixtures in enumerate(shared):
            own = (owners == image) | mixtures
            patches = read.pixels.new_full((vit.first.tokens, read.pixels.shape[1]), torch.nan)
            patches[read.positions[own]] = read.pixels[own]
            whole = fill_gaps(vit.first.assemble(patches, known.shape))
            noise = float(read.variances[own].mean())
            images.append(apply_wiener_filter(whole, noise) if noise else whole)
            complete.append(int((owners == image).sum()) / len(patches))
        found = torch.stack(images)
        return Reconstruction(
            images=found,
            confidence=share_in_range(found, known).cpu() * torch.tensor(complete).double(),
            diagnostics={"images": len(found), "patches": int((owners >= 0).sum())},
        )


def lay_ladders(vit: AdaptedVit, images: Tensor, gain: float) -> None:
    """Spreads thresholds over the adapters, and makes every row that fires write the same."""
    layout, adapters = vit.choose_layout(), [adapter for _, adapter in vit.adapters]
    closing = torch.tensor([adapter.down.out_features for adapter in adapters]) - 1
    thresholds = place_thresholds(vit, images, int(closing.sum()))
    highest, starts = float(thresholds[-1]), [0, *closing.cumsum(0).tolist()]
    rise = gain / float((highest - thresholds).sum())
    for adapter, start in zip(adapters, starts, strict=False):
        rows = adapter.down.out_features
        adapter.down.weight.copy_(layout.functional.expand(rows, -1))
        adapter.down.bias.copy_(-thresholds[start : start + rows])
        adapter.up.weight.copy_(rise * layout.carrier[:, None].expand(-1, rows))


def place_thresholds(vit: AdaptedVit, images: Tensor, bins: int) -> Tensor:
    """Returns the edges of so many bins, ascending, ``[bins + 1]``: quantiles at each position.

    Raises:
        DoesNotFit: There are fewer bins than positions.
    """
    count, functional = vit.first.tokens, vit.choose_layout().functional.to(images)
    if bins < count:
        raise DoesNotFit(f"its adapters have {bins} bins for {count} patches: widen them")
    values = vit.embed(images) @ functional
    centres = vit.positions @ functional + float(images.max() + images.min()) / 2
    half = float(centres.diff().mean()) / 2 if count > 1 else float(images.max() - images.min())
    edges = []
    shares = torch.arange(bins).tensor_split(count)
    for at, centre, own in zip(values.T, centres, shares, strict=True):
        inner = spread_quantiles(at, torch.arange(1, len(own)) / len(own)).cpu()
        low, high = float(centre) - half, float(centre) + half
        edges += [torch.tensor([low]), inner.clamp(low, high)]
    return torch.cat([*edges, torch.tensor([high])])


def slope_head(vit: AdaptedVit, images: Tensor) -> None:
    """Makes logits follow what adapters write, up for some classes and down for the others.

    No class is then so likely that its images' loss has no slope.
    """
    head, carrier = vit.head, vit.choose_layout().carrier.to(images)
    values = record_call(vit.model, head, images)[0] @ carrier
    draw = torch.rand(head.out_features, generator=generator(0, "peft imprint head"))
    signs = 1 - 2 * (torch.arange(head.out_features) % 2)
    column = (signs * (0.75 + draw / 2)).to(images)
    column *= LOGIT_SPREAD / values.std(correction=0).clamp_min(1e-6)
    head.weight.copy_(column[:, None] * carrier)
    if head.bias is not None:
        head.bias.copy_(-column * values.mean())


@plain_dataclass(frozen=True)
class PatchReadings:
    """What was read from the bins of all adapters.

    Args:
        pixels: A bin's patch, or the weighted mean of several, ``[b, P]``.
        positions: The patch's number, ``[b]``.
        slopes: The slope of the loss of the image it is from, up to one factor, ``[b]``.
        variances: The variance of known noise in each pixel, ``[b]``.
    """

    pixels: Tensor
    positions: Tensor
    slopes: Tensor
    variances: Tensor


def read_patches(vit: AdaptedVit, observation: Observation) -> PatchReadings:
    """Reads every bin of every adapter; those with the largest gradients come first."""
    gradient, carrier = observation.update.gradient(), vit.choose_layout().carrier.double()
    adapters = vit.adapters
    bases = vit.positions.double() @ adapters[0][1].down.weight[0].double()
    lowest = float(-adapters[0][1].down.bias[0])
    spacing = float(bases.diff().mean()) if len(bases) > 1 else float("inf")
    found = []
    for number, (name, adapter) in enumerate(adapters):
        weight, bias = gradient[f"{name}.down.weight"], gradient[f"{name}.down.bias"]
        noise = known_white_noise(observation, f"{name}.down.weight").sigma
        bins, left = read_ladder(weight, bias, noise)
        inside = bins.rows < len(bias) - 1  # what lies above the last threshold is no bin
        rows, tokens, steps = bins.rows[inside], bins.images[inside], bins.bias[inside]
        edges = -adapter.down.bias.double()
        values = (tokens @ adapter.down.weight[0].double()).clamp(edges[rows], edges[rows + 1])
        tokens = tokens - sum_writings(adapters[:number], values)
        positions = ((edges[rows] - lowest) / spacing + 1e-3).long().clamp(0, len(bases) - 1)
        slope = vit.compute_norm_slope(tokens + sum_writings(adapters, values), carrier)
        found.append(
            (
                vit.read_pixels(tokens, positions),
                positions,
                steps / slope,
                left[inside] / steps.square(),
            )
        )
    pixels, places, slopes, variances = (torch.cat(each) for each in zip(*found, strict=True))
    return PatchReadings(pixels, places, slopes, variances)


def read_ladder(weight: Tensor, bias: Tensor, noise: float) -> tuple[FilledBins, Tensor]:
    """Returns the filled bins of one adapter, and the variance of known noise in each."""
    if noise:
        return read_noisy_bins(weight, bias, cumulative=True, most=len(bias), noise=noise)
    bins = read_bins(weight, bias, cumulative=True, most=len(bias))
    return bins, torch.zeros_like(bins.bias)


def sum_writings(adapters: list[tuple[str, Adapter]], values: Tensor) -> Tensor:
    """Returns what adapters add to tokens whose functional has such ``values [b]``: ``[b, D]``."""
    written = values.new_zeros(len(values), adapters[0][1].up.out_features if adapters else 1)
    for _, adapter in adapters:
        fired = (values[:, None] + adapter.down.bias.double()).relu()
        written = written + fired @ adapter.up.weight.double().T
    return written


def fill_gaps(image: Tensor) -> Tensor:
    """Returns an image ``[C, H, W]`` whose missing pixels (NaN) are interpolated.

    They start from their channel's mean and take the mean of their neighbours many times.
    """
    missing = image.isnan()
    filled = torch.where(missing, image.nanmean((1, 2), keepdim=True), image)
    for _ in range(FILL_STEPS if missing.any() else 0):
        smooth = F.avg_pool2d(F.pad(filled[None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[0]
        filled = torch.where(missing, smooth, filled)
    return filled
