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
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.defenses.shuffles import (
    Channels,
    Shuffle,
    count_draws,
    draw_seeded_numbers,
    draw_shuffle,
    map_chunks,
)
from keyhole.errors import BadValue, DoesNotFit


def check_power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("blocks have a power of two as their side")
    return value


@dataclass(frozen=True, kw_only=True)
class Csvar(Defense):
    """Shuffles blocks within regions, differently in every epoch; a block's pixels stay together.

    The image is cut into regions of side S (eq. 1). Where a region's variance is above the image's
    median, blocks of side S/4 are shuffled in it, else of side S/2.

    Args:
        channels: ``apart`` shuffles each colour plane by itself (the default reading), ``mixed``
            also moves blocks between planes, ``together`` moves all planes alike.
        block: The side of all blocks in pixels, a power of two; None: S/4 and S/2.

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
        """The shuffled images.

        Args:
            images: ``[B, C, H, W]``, of any type.
            seeds: The 64-bit seed of each image's shuffle, ``[B]``.
        """
        check_images(images)
        return map_chunks(
            images,
            lambda some, part: self.plan_shuffle(some, self.draw_numbers(some, seeds[part])).apply(
                some
            ),
        )

    def restore(self, images: Tensor, seeds: Tensor, fine: Tensor | None = None) -> Tensor:
        """The originals of what :meth:`shuffle` made with these seeds.

        Args:
            images: Shuffled images, ``[B, C, H, W]``.
            seeds: The seeds of their shuffles, ``[B]``.
            fine: :func:`~keyhole.defenses.regions.find_sensitive_regions` of the originals, bool
                ``[B, rows, columns]``. Needed with ``mixed`` channels alone: blocks that change
                planes change their region's variance.
        """
        check_images(images)
        if fine is None and self.channels == "mixed" and self.block is None:
            raise DoesNotFit(
                "with channels='mixed' the shuffled image does not tell its block sizes: keep "
                "find_sensitive_regions(original) and pass it as `fine`"
            )
        return map_chunks(
            images,
            lambda some, part: self.plan_shuffle(
                some, self.draw_numbers(some, seeds[part]), None if fine is None else fine[part]
            ).undo(some),
        )

    def plan_shuffle(self, images: Tensor, numbers: Tensor, fine: Tensor | None = None) -> Shuffle:
        """The shuffle of these images.

        Args:
            images: ``[B, C, H, W]``.
            numbers: Random int32, ``[B, count_draws(images)]``.
            fine: Which regions get the finer blocks, bool ``[B, rows, columns]``; None: those that
                the images' variance says.
        """
        fine = find_sensitive_regions(images) if fine is None else fine
        planes, height, width = images.shape[1:]
        return draw_shuffle(
            numbers,
            fine,
            planes=planes,
            size=(height, width),
            channels=self.channels,
            block=self.block,
        )

    def draw_numbers(self, images: Tensor, seeds: Tensor) -> Tensor:
        """The random numbers that shuffle these images, int32 ``[B, count_draws(images)]``.

        Args:
            images: ``[B, C, H, W]``.
            seeds: The 64-bit seed of each image, ``[B]``.
        """
        return draw_seeded_numbers(seeds.to(images.device), self.count_draws(images))

    def count_draws(self, images: Tensor) -> int:
        """How many random numbers the shuffle of one of these images takes.

        Args:
            images: ``[B, C, H, W]``.
        """
        planes, height, width = images.shape[1:]
        return count_draws(planes, height, width, self.channels, self.block)

    def image_change(self) -> BlockShuffle:
        return BlockShuffle(self.channels, self.block)

    def transform(self) -> CsvarTransform:
        """The defense as a torchvision transform: another shuffle at every call."""
        return CsvarTransform(self)


class CsvarTransform(v2.Transform):  # type: ignore[misc]
    """CSVAR as a torchvision transform (v2) of PIL images and of tensors ``[..., C, H, W]``.

    Seeds come from torch's global generator, as those of torchvision's own random transforms do.
    Boxes, masks and labels are passed on unchanged.
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
