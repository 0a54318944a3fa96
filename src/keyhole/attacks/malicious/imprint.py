"""Robbing the Fed: a layer that the server adds, and that takes a batch apart image by image."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.analytic.linear_algebra import share_in_range
from keyhole.attacks.analytic.noise import apply_wiener_filter, known_white_noise
from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.malicious.imprint_block import NAME, ImprintBlock, insert_block
from keyhole.attacks.malicious.imprint_gain import choose_gain
from keyhole.attacks.malicious.ladder import read_bins, read_noisy_bins, spread_quantiles
from keyhole.defenses.capabilities import Capability
from keyhole.errors import DoesNotFit
from keyhole.threat import Observation, PublicKnowledge

Form = Literal["auto", "cumulative", "sparse", "one-shot"]
WEIGHT, BIAS = f"{NAME}.measure.weight", f"{NAME}.measure.bias"


@dataclass(frozen=True, kw_only=True)
class Imprint(Attack):
    """Sorts a batch's images into bins by their brightness, and reads each bin.

    The expected share of images that are alone in their bin is ``(1 - 1/bins)^(n - 1)`` for n
    images of one sum: 94% for 1,024 bins and 64 images.

    Args:
        bins: Rows of the added layer.
        form: ``cumulative``: rows fire from their threshold on (one step). ``sparse``: each row
            fires in its own bin alone, which local steps leave intact. ``one-shot``: one bin, in
            which one of the images is expected. ``auto`` takes the sparse form for several steps.
        gain: How much the block brightens an image that fires every row, in input units. ``auto``:
            what gives public images the largest gradient in the block, up to 10,000.
    """

    bins: Annotated[int, Field(ge=1, le=1 << 16)] = 1024
    form: Form = "auto"
    gain: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"

    name: ClassVar[str] = "imprint"
    summary: ClassVar[str] = "sorts a batch into the bins of an added layer and reads each"
    paper: ClassVar[str] = "Fowl et al. 2022 (Robbing the Fed)"
    needs: ClassVar[str] = "a server that puts a layer before the network"
    recovers_inputs: ClassVar[bool] = True
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE, Capability.NOISE})
    altered_model: ClassVar[str | None] = "a fully connected layer of threshold rows added in front"

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        row, thresholds, sparse = self._place_thresholds(model, public)
        gain = self._find_gain(model, row, thresholds, sparse, public)
        return insert_block(model, ImprintBlock(row, thresholds, sparse=sparse, gain=gain))

    def _find_gain(
        self,
        model: nn.Module,
        row: Tensor,
        thresholds: Tensor,
        sparse: bool,
        public: PublicKnowledge | None,
    ) -> float:
        """The gain as given, or found with public images."""
        if self.gain != "auto":
            return self.gain
        assert public is not None  # the thresholds are placed by it
        return choose_gain(model, row, thresholds, sparse, public)

    def _place_thresholds(
        self, model: nn.Module, public: PublicKnowledge | None
    ) -> tuple[Tensor, Tensor, bool]:
        """Returns the functional ``[D]``, its thresholds, and whether each row has its own bin."""
        if public is None or not len(public.images):
            raise DoesNotFit(f"attack {self.name!r} needs public images to place its thresholds by")
        like = next(model.parameters())
        row = torch.full((public.images[0].numel(),), 1 / public.images[0].numel()).to(like)
        sparse = self.form in ("sparse", "one-shot") or (self.form == "auto" and public.steps > 1)
        shares = self._compute_shares(sparse=sparse, images=public.batch_size * public.clients)
        values = public.images.flatten(1).to(like) @ row
        return row, spread_quantiles(values, shares), sparse

    def _compute_shares(self, *, sparse: bool, images: int) -> Tensor:
        """The shares of all images that lie below each threshold."""
        if self.form == "one-shot":
            half = 0.5 / max(images, 2)
            return torch.tensor([0.5 - half, 0.5 + half])
        edges = torch.linspace(0, 1, self.bins + 1)
        edges[0], edges[-1] = 1e-4 / self.bins, 1 - 1e-4 / self.bins
        return edges if sparse else edges[:-1]

    def incompatibilities(self, observation: Observation) -> list[str]:
        if isinstance(getattr(observation.model, NAME, None), ImprintBlock):
            return []
        return ["the server did not put an imprint block before the model"]

    def reads(self, observation: Observation) -> set[str]:
        return {WEIGHT, BIAS}

    def reconstruct(self, observation: Observation) -> Reconstruction:
        block = observation.model.get_submodule(NAME)
        assert isinstance(block, ImprintBlock)
        knowledge, gradient = observation.knowledge, observation.update.gradient()
        images = read_images(
            observation,
            gradient[WEIGHT],
            gradient[BIAS],
            cumulative=not block.sparse,
            most=knowledge.batch_size,
            noise=known_white_noise(observation, WEIGHT).sigma,
        )
        if not len(images):
            return Reconstruction(diagnostics={"images": 0})
        return Reconstruction(
            images=images,
            confidence=share_in_range(images, knowledge).cpu(),
            diagnostics={"images": len(images)},
        )


def read_images(
    observation: Observation,
    weight: Tensor,
    bias: Tensor,
    *,
    cumulative: bool,
    most: int,
    noise: float,
) -> Tensor:
    """Returns the images of the fullest bins of a ladder, ``[n, C, H, W]``, n at most ``most``.

    Args:
        observation: What the server saw.
        weight: The gradient of the ladder's rows, ``[k, C * H * W]``.
        bias: The gradient of their biases, ``[k]``.
        cumulative: Whether every row below an image's value fires, and not one row alone.
        most: How many images the ladder can hold.
        noise: The standard deviation of noise that is known to be in the gradient.
    """
    shape = observation.knowledge.shape
    if noise == 0:
        bins = read_bins(weight, bias, cumulative=cumulative, most=most)
        return bins.images.view(-1, *shape)
    bins, left = read_noisy_bins(weight, bias, cumulative=cumulative, most=most, noise=noise)
    images = bins.images.view(-1, *shape)
    for image, variance in zip(images, left / bins.bias.square(), strict=True):
        image.copy_(apply_wiener_filter(image, float(variance)))
    return images
