"""Metrics: pure functions, and how to read their values (direction, bounds, unit)."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.metrics.assignment import assign_reconstructions
    from keyhole.metrics.baselines import mean_images, nearest_public_images, noise_images
    from keyhole.metrics.builtin import METRICS
    from keyhole.metrics.gallery import reidentify
    from keyhole.metrics.heatmaps import compare_heat_maps, overlay_heat_maps
    from keyhole.metrics.image import fft2d, mse, psnr, ssim
    from keyhole.metrics.masks import mask_distances
    from keyhole.metrics.membership import auc
    from keyhole.metrics.metric import ImageMetric, Metric
    from keyhole.metrics.perceptual import lpips
    from keyhole.metrics.selection import choose_metrics
    from keyhole.metrics.statistics import Summary, summarise

__all__ = [
    "METRICS",
    "ImageMetric",
    "Metric",
    "Summary",
    "assign_reconstructions",
    "auc",
    "choose_metrics",
    "compare_heat_maps",
    "fft2d",
    "lpips",
    "mask_distances",
    "mean_images",
    "mse",
    "nearest_public_images",
    "noise_images",
    "overlay_heat_maps",
    "psnr",
    "reidentify",
    "ssim",
    "summarise",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
