"""What is to be known of the metrics that Keyhole measures: direction, bounds, unit."""

from __future__ import annotations

from keyhole.lazy import import_on_call
from keyhole.metrics.metric import ImageMetric, Metric

EVERY: tuple[Metric, ...] = (
    ImageMetric(
        name="mse",
        label="MSE",
        summary="mean squared error of [0, 1] pixels",
        leaks_high=False,
        low=0.0,
        high=None,
        digits=4,
        function=import_on_call("keyhole.metrics.image:mse"),
    ),
    ImageMetric(
        name="psnr",
        label="PSNR",
        summary="peak signal-to-noise ratio",
        leaks_high=True,
        low=0.0,
        high=None,
        unit="dB",
        cap=200.0,
        digits=1,
        function=import_on_call("keyhole.metrics.image:psnr"),
    ),
    ImageMetric(
        name="ssim",
        label="SSIM",
        summary="structural similarity, 11x11 Gaussian window",
        leaks_high=True,
        low=-1.0,
        high=1.0,
        function=import_on_call("keyhole.metrics.image:ssim"),
    ),
    Metric(
        name="lpips",
        label="LPIPS",
        summary="perceptual distance, AlexNet v0.1",
        leaks_high=False,
        low=0.0,
        high=None,
    ),
    ImageMetric(
        name="fft2d",
        label="FFT2D",
        summary="distance in Fourier space, as in the MJP paper",
        leaks_high=False,
        low=0.0,
        high=None,
        digits=4,
        function=import_on_call("keyhole.metrics.image:fft2d"),
    ),
    Metric(
        name="reid",
        label="Re-ID",
        summary="share that points to the right gallery image",
        leaks_high=True,
        low=0.0,
        high=1.0,
        percent=True,
    ),
    Metric(
        name="read",
        label="Read",
        summary="share of images the attacker read (see the verdict)",
        leaks_high=True,
        low=0.0,
        high=1.0,
        percent=True,
    ),
    Metric(
        name="client",
        label="Client",
        summary="share of a secure sum's images that were attributed to the right client",
        leaks_high=True,
        low=0.0,
        high=1.0,
        percent=True,
    ),
    Metric(
        name="mmd",
        label="MMD",
        summary="squared distance of dropout masks, mean over sites",
        leaks_high=False,
        low=0.0,
        high=None,
        digits=1,
    ),
    Metric(
        name="mask",
        label="Mask MSE",
        summary="mean squared error of dropout masks",
        leaks_high=False,
        low=0.0,
        high=1.0,
    ),
    Metric(
        name="labels",
        label="Labels",
        summary="share of labels inferred",
        leaks_high=True,
        low=0.0,
        high=1.0,
        percent=True,
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in EVERY}
MEASURED = tuple(metric for metric in EVERY if isinstance(metric, ImageMetric))
"""Those that need nothing but two batches of images."""
