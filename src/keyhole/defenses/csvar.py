"""CSVAR: channel-wise shuffling of blocks whose size a region's variance decides."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from PIL.Image import Image as PILImage
from pydantic import AfterValidator
from pydantic.dataclasses import dataclass
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tvf

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import BlockShuffle
from keyhole.defenses.regions import sensitive
from keyhole.defenses.shuffles import (
    Channels,
    Shuffle,
    count_numbers,
    draw_shuffle,
    map_chunks,
    mixed_numbers,
)
from keyhole.errors import BadValue, DoesNotFit


def check_power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("blocks have a power of two as their side")
    return value


@dataclass(frozen=True, kw_only=True)
class Csvar(Defense):
    """Shuffles blocks within regions, anew for every epoch; pixels inside a block stay together.

    The image is cut into regions of side S (eq. 1). Where a region's variance is above the image's
    median, blocks of side S/4 are shuffled in it, else of side S/2. ``channels``: each colour plane
    is shuffled by itself (``apart``, the default reading), blocks may also change planes
    (``mixed``), or all planes move alike (``together``: spatial shuffling only). ``block``: one
    size of blocks everywhere, in place of the two.

    >>> image = torch.rand(1, 3, 32, 32)
    >>> seeds = torch.tensor([7])
    >>> hidden = Csvar().shuffle(image, seeds)
    >>> torch.equal(hidden, image), torch.equal(Csvar().restore(hidden, seeds), image)
    (False, True)
    """

    channels: Channels = "apart"
    block: Annotated[int, AfterValidator(check_power_of_two)] | None = None

    name: ClassVar[str] = "csvar"
    summary: ClassVar[str] = "shuffles blocks of the image within regions, finer where it varies"
    paper: ClassVar[str] = "Chen et al. 2025 (CSVAR)"
    paper_attacks: ClassVar[tuple[str, ...]] = ("intercept",)
    images_travel: ClassVar[bool] = True

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        side = side or ClientSide()
        seeds = torch.randint(2**62, (len(images),), generator=side.generator)
        return self.shuffle(images, seeds)

    def shuffle(self, images: Tensor, seeds: Tensor) -> Tensor:
        """``images [B, C, H, W]`` shuffled, each by its own 64-bit seed, ``seeds [B]``."""
        check_images(images)
        return map_chunks(
            images, lambda some, part: self.plan(some, self.draws(some, seeds[part])).apply(some)
        )

    def restore(self, images: Tensor, seeds: Tensor, fine: Tensor | None = None) -> Tensor:
        """The originals of what :meth:`shuffle` made with these seeds.

        Blocks that change planes change their region's variance: with ``mixed`` channels ``fine``
        must be told, :func:`~keyhole.defenses.regions.sensitive` of the originals.
        """
        check_images(images)
        if fine is None:
            self.check_restorable()
        return map_chunks(
            images,
            lambda some, part: self.plan(
                some, self.draws(some, seeds[part]), None if fine is None else fine[part]
            ).undo(some),
        )

    def check_restorable(self) -> None:
        """Raises where block sizes cannot be told from the shuffled image."""
        if self.channels == "mixed" and self.block is None:
            raise DoesNotFit(
                "with channels='mixed' the shuffled image does not tell its block sizes: keep "
                "sensitive(original) and pass it as `fine`"
            )

    def plan(self, images: Tensor, draws: Tensor, fine: Tensor | None = None) -> Shuffle:
        """The shuffle of these images by random numbers ``draws [B, count_numbers]``."""
        fine = sensitive(images) if fine is None else fine
        planes, height, width = images.shape[1:]
        return draw_shuffle(
            draws,
            fine,
            planes=planes,
            size=(height, width),
            channels=self.channels,
            block=self.block,
        )

    def draws(self, images: Tensor, seeds: Tensor) -> Tensor:
        return mixed_numbers(seeds.to(images.device), self.count_numbers(images))

    def count_numbers(self, images: Tensor) -> int:
        """How many random numbers one of these images takes."""
        planes, height, width = images.shape[1:]
        return count_numbers(planes, height, width, self.channels, self.block)

    def image_change(self) -> BlockShuffle:
        return BlockShuffle(self.channels, self.block)

    def transform(self) -> CsvarTransform:
        """As a torchvision transform: another shuffle at every call."""
        return CsvarTransform(self)


class CsvarTransform(v2.Transform):  # type: ignore[misc]
    """CSVAR among torchvision's transforms (v2): of PIL images and of tensors ``[..., C, H, W]``.

    Seeds come from torch's global generator, as those of torchvision's own random transforms do.
    Boxes, masks and labels that come along are passed on as they are.
    """

    def __init__(self, defense: Csvar | None = None) -> None:
        super().__init__()
        self.defense = defense or Csvar()

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, PILImage):
            return tvf.to_pil_image(self._shuffle(tvf.pil_to_tensor(inpt)), mode=inpt.mode)
        if isinstance(inpt, tv_tensors.Image | tv_tensors.Video):
            return tv_tensors.wrap(self._shuffle(inpt.as_subclass(Tensor)), like=inpt)
        if isinstance(inpt, Tensor) and not isinstance(inpt, tv_tensors.TVTensor):
            return self._shuffle(inpt)
        return inpt

    def _shuffle(self, images: Tensor) -> Tensor:
        if images.ndim < 3:
            raise BadValue(f"CSVAR takes images [..., C, H, W], not {list(images.shape)}")
        batch = images.reshape(-1, *images.shape[-3:])
        seeds = torch.randint(2**62, (len(batch),))
        return self.defense.shuffle(batch, seeds).view(images.shape)


def check_images(images: Tensor) -> None:
    if images.ndim != 4 or min(images.shape[1:]) < 1:
        raise BadValue(f"CSVAR takes images [B, C, H, W], not {list(images.shape)}")
