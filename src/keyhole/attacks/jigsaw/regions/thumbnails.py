"""What a shuffled image shows for certain: the mean of every region in every plane."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from keyhole.defenses.csvar import check_images
from keyhole.defenses.regions import join_zones, region_side, split_into_zones, sum_regions


def compute_region_means(shuffled: Tensor) -> Tensor:
    """The exact means of the original's regions, ``[B, C, rows, columns]``.

    Blocks move only inside their region and plane, so the shuffled image has the same means.
    """
    check_images(shuffled)
    height, width = shuffled.shape[-2:]
    by_zone = [
        sum_regions(zone, shuffled) / zone.pixels for zone in split_into_zones(height, width)
    ]
    return join_zones(by_zone, height, width)


def build_thumbnail(shuffled: Tensor) -> Tensor:
    """The means of the original's regions, bicubically enlarged to the image's own size.

    Args:
        shuffled: ``[B, C, H, W]``.
    """
    height, width = shuffled.shape[-2:]
    side = region_side(height, width)
    means = compute_region_means(shuffled)
    whole = F.interpolate(means, scale_factor=side, mode="bicubic", align_corners=False)
    return whole[..., :height, :width].clamp(0, 1)
