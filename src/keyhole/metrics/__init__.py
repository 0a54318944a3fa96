"""Metrics: pure functions, and what is to be known of each (direction, bounds, unit)."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.metrics.baselines import mean_image, nearest_public, noise
from keyhole.metrics.gallery import reidentified
from keyhole.metrics.image import fft2d, mse, psnr, ssim
from keyhole.metrics.masks import mask_distances
from keyhole.metrics.matching import match
from keyhole.metrics.perceptual import lpips
from keyhole.metrics.statistics import Summary, summarise


@dataclass(frozen=True)
class Metric:
    """What a metric says and how to read it.

    ``leaks_high`` tells whether a high value means that more was seen. ``cap`` bounds what has no
    upper bound of its own.
    """

    name: str
    label: str
    summary: str
    leaks_high: bool
    low: float
    high: float | None
    unit: str = ""
    cap: float | None = None

    @property
    def arrow(self) -> str:
        """The direction in which more is seen."""
        return "↑" if self.leaks_high else "↓"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("mse", "MSE", "mean squared error of [0, 1] pixels", False, 0.0, None),
        Metric("psnr", "PSNR", "peak signal-to-noise ratio", True, 0.0, None, "dB", cap=200.0),
        Metric("ssim", "SSIM", "structural similarity, 11x11 Gaussian window", True, -1.0, 1.0),
        Metric("lpips", "LPIPS", "perceptual distance, AlexNet v0.1", False, 0.0, None),
        Metric(
            "fft2d", "FFT2D", "distance in Fourier space, as in the MJP paper", False, 0.0, None
        ),
        Metric("reid", "Re-ID", "share that points to the right gallery image", True, 0.0, 1.0),
        Metric("read", "Read", "share of images the attacker read (see the verdict)", True, 0, 1),
        Metric("mmd", "MMD", "squared distance of dropout masks, mean over sites", False, 0, None),
        Metric("mask", "Mask MSE", "mean squared error of dropout masks", False, 0.0, 1.0),
        Metric("labels", "Labels", "share of labels inferred", True, 0.0, 1.0),
    )
}

__all__ = [
    "METRICS",
    "Metric",
    "Summary",
    "fft2d",
    "lpips",
    "mask_distances",
    "match",
    "mean_image",
    "mse",
    "nearest_public",
    "noise",
    "psnr",
    "reidentified",
    "ssim",
    "summarise",
]
