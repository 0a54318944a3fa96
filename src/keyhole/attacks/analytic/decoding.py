"""A linear decoder from a layer's inputs back to pixels, fitted to images that nobody owns.

Random fields whose spectrum falls as that of photographs does go through the model; ridge
regression from the layer's inputs to their pixels is the decoder. No data set and no training of a
network is needed, and what it cannot tell it leaves at the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.analytic.probes import capture_early_input
from keyhole.data.image_set import normalise
from keyhole.models.anatomy import Shape
from keyhole.seeds import generator

SAMPLES, SAMPLED_AT_ONCE = 3000, 250
"""Random images to which a decoder is fitted, and so many of them in one pass."""
ERRORS = 1500
"""Random images near each image, when it is decoded once more."""
LARGEST = 64
"""Images with longer sides are decoded at this size and enlarged."""
FALL = 1.5
"""The amplitude of a frequency f is ``f ** -FALL``; photographs are near 1."""
GREY = 0.93
"""The share of the variance that the colours of a pixel have in common."""
PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridge penalties that are tried, in units of the mean variance of an input."""
NOISE = 1e-10
"""Axes with less than this share of the largest variance are left out."""
HELD_OUT = 0.1
"""The share of the random images by which the penalty is chosen."""
SKIPPED = 7
"""One pixel of so many counts in that choice."""


@dataclass(frozen=True)
class Decoder:
    """``pixels = mean + (inputs - centre) @ matrix``, in float32.

    Args:
        centre: The mean input, ``[F]``.
        mean: The mean image, ``[C * h * w]``.
        matrix: ``[F, C * h * w]``.
        shape: The shape at which it decodes, ``(C, h, w)``.
        explained: The share of the variance of images held out that it explains.
    """

    centre: Tensor
    mean: Tensor
    matrix: Tensor
    shape: Shape
    explained: float

    def decode(self, inputs: Tensor) -> Tensor:
        """Pixels ``[n, C, h, w]``, without bounds.

        Args:
            inputs: The layer's inputs, ``[n, F]``.
        """
        pixels = self.mean + (inputs.to(self.matrix) - self.centre) @ self.matrix
        return pixels.view(len(pixels), *self.shape)

    def __call__(self, inputs: Tensor, size: tuple[int, int]) -> Tensor:
        """Images ``[n, C, H, W]`` in [0, 1].

        Args:
            inputs: The layer's inputs, ``[n, F]``.
            size: Their height and width.
        """
        images = self.decode(inputs).clamp(0, 1)
        if images.shape[-2:] == size:
            return images
        return F.interpolate(images, size=size, mode="bicubic", antialias=True).clamp(0, 1)


def draw_fields(count: int, shape: Shape, draw: torch.Generator) -> Tensor:
    """Random images in [0, 1] with the spectrum of photographs, ``[count, C, H, W]``.

    Args:
        count: How many.
        shape: ``(C, H, W)``.
        draw: Draws them.
    """
    channels, height, width = shape
    rows = torch.fft.fftfreq(2 * height)[:, None]  # twice the size, so that borders do not meet
    columns = torch.fft.rfftfreq(2 * width)[None]
    frequency = (rows.square() + columns.square()).sqrt().clamp(min=0.5 / max(height, width))
    noise = torch.randn(count, 1 + channels, 2 * height, 2 * width, generator=draw)
    white = GREY**0.5 * noise[:, :1] + (1 - GREY) ** 0.5 * noise[:, 1:]
    spectrum = torch.fft.rfft2(white) * frequency**-FALL
    fields = torch.fft.irfft2(spectrum, s=(2 * height, 2 * width))[..., :height, :width]
    fields = fields - fields.mean((2, 3), keepdim=True) / 2
    fields = fields / fields.flatten(1).std(1).view(-1, 1, 1, 1)
    contrast, brightness = torch.rand(2, count, 1, 1, 1, generator=draw)
    images: Tensor = 0.25 + 0.5 * brightness + (0.1 + 0.2 * contrast) * fields
    return images.clamp(0, 1)


@dataclass(frozen=True)
class Measurement:
    """How images become the inputs of a layer.

    Args:
        model: The model, in the mode in which the inputs were computed.
        layer: The layer's name.
        shape: The shape of the model's images.
        mean: By which pixels are normalised.
        std: By which pixels are normalised.
    """

    model: nn.Module
    layer: str
    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def small(self) -> Shape:
        """The shape at which images are decoded."""
        return (self.shape[0], min(self.shape[1], LARGEST), min(self.shape[2], LARGEST))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The layer's inputs ``[n, F]``, float64 on the CPU, of images ``[n, C, H, W]`` in [0, 1].

        Args:
            images: The images.
        """
        like, found = next(self.model.parameters()), []
        for some in torch.split(images, SAMPLED_AT_ONCE):
            inputs = normalise(some, self.mean, self.std).to(like)
            seen = capture_early_input(self.model, self.layer, inputs)
            found.append(seen.flatten(1).cpu().double())
        return torch.cat(found)

    def shrink(self, images: Tensor) -> Tensor:
        """The pixels that are decoded, ``[n, C * h * w]``."""
        return F.adaptive_avg_pool2d(images, self.small[1:]).flatten(1)


def fit_decoder(measurement: Measurement) -> Decoder:
    """Fits a decoder from a layer's inputs to pixels.

    Args:
        measurement: How images become the layer's inputs.
    """
    draw = generator(0, "decoding")
    inputs, pixels = [], []
    for _ in range(SAMPLES // SAMPLED_AT_ONCE):
        images = draw_fields(SAMPLED_AT_ONCE, measurement.shape, draw)
        inputs.append(measurement(images))
        pixels.append(measurement.shrink(images))
    return regress(torch.cat(inputs), torch.cat(pixels), measurement.small)


def draw_errors(decoder: Decoder, measurement: Measurement) -> Tensor:
    """What a decoder leaves out of random fields, ``[n, C, H, W]``.

    Args:
        decoder: The decoder.
        measurement: How images become its inputs.
    """
    draw = generator(0, "decoding", "errors")
    fields = draw_fields(ERRORS, measurement.shape, draw)
    height, width = measurement.shape[1:]
    return fields - decoder(measurement(fields), (height, width))


def refine(images: Tensor, inputs: Tensor, errors: Tensor, measurement: Measurement) -> Tensor:
    """Decodes once more near images decoded already, where the model is nearly linear.

    For each image, errors are added to it, and regression from the change of the layer's inputs to
    the change of pixels decodes what its inputs still lack.

    Args:
        images: The images in [0, 1], ``[n, C, H, W]``.
        inputs: The layer's inputs that they should have, ``[n, F]``.
        errors: What :func:`draw_errors` drew.
        measurement: How images become inputs.
    """
    found, height, width = [], *images.shape[-2:]
    for image, now, wanted in zip(images, measurement(images), inputs, strict=True):
        others = (image + errors).clamp(0, 1)
        changes = measurement.shrink(others - image)
        decoder = regress(measurement(others) - now, changes, measurement.small)
        change = decoder.decode((wanted.cpu().double() - now)[None])
        enlarged = F.interpolate(change, size=(height, width), mode="bilinear")
        found.append((image + enlarged[0]).clamp(0, 1))
    return torch.stack(found)


def regress(inputs: Tensor, pixels: Tensor, shape: Shape) -> Decoder:
    """Ridge regression with the penalty that predicts images held out best.

    Args:
        inputs: ``[n, F]``, float64.
        pixels: ``[n, C * h * w]``, float32.
        shape: ``(C, h, w)``.
    """
    held = max(1, int(HELD_OUT * len(inputs)))
    centre, mean = inputs[held:].mean(0), pixels[held:].mean(0)
    known, wanted = inputs[held:] - centre, pixels[held:] - mean
    axes, variances = find_axes(known)
    projected = (known @ axes).float().T @ wanted / len(known)
    tests, some = ((inputs[:held] - centre) @ axes).float(), slice(None, None, SKIPPED)
    truth = (pixels[:held] - mean)[:, some]
    typical = variances.sum() / known.shape[1]
    best, chosen = float("inf"), PENALTIES[-1]
    for penalty in PENALTIES:
        damped = (variances + penalty * typical).float()
        error = float((tests / damped @ projected[:, some] - truth).square().mean())
        if error < best:
            best, chosen = error, penalty
    damped = (variances + chosen * typical).float()
    matrix = axes.float() @ (projected / damped[:, None])
    explained = 1 - best / float(truth.square().mean())
    return Decoder(centre.float(), mean, matrix, shape, max(0.0, explained))


def find_axes(known: Tensor) -> tuple[Tensor, Tensor]:
    """The principal axes ``[F, k]`` of rows ``[n, F]`` and their variances, with k at most n."""
    count, width = known.shape
    if width <= count:
        variances, axes = torch.linalg.eigh(known.T @ known / count)
        return axes, variances.clamp(min=0)
    variances, weights = torch.linalg.eigh(known @ known.T / count)
    kept = variances > NOISE * variances[-1]
    variances, weights = variances[kept], weights[:, kept]
    return known.T @ weights / (count * variances).sqrt(), variances
