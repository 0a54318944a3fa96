"""The inputs of a deep convolution, for each image of a batch, from its gradient.

:mod:`.positions` separates the positions of the layer's input by the shifts of its kernel, and
:mod:`.nonnegative` the images by the zeros that a ReLU left. Each image's length follows from the
gradient of a bias behind the layer, or from the batch statistics that the client uploaded. Then the
images are decoded, and the class of each is the one whose gradient points as the one found.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.analytic.nonnegative import unmix
from keyhole.attacks.analytic.positions import MixedInputs, separate_positions
from keyhole.models.anatomy import Shape, cache_per_model
from keyhole.models.modes import BATCH_NORMS
from keyhole.seeds import generator
from keyhole.threat import Observation

PROBES = 4
"""Random images by which layers are found."""
LEAST_ZEROS = 0.05
"""The least share of zeros in a layer's inputs if a ReLU made them."""
FITS = 0.05
"""The greatest relative error with which lengths of images count as found."""


@dataclass(frozen=True)
class Convolution:
    """A convolution whose output is as large as its input, which a ReLU made.

    Args:
        name: Its name in the model.
        grid: Height and width of its input.
        norm: The BatchNorm that sees its output; None: none does.
    """

    name: str
    grid: tuple[int, int]
    norm: str | None


@dataclass(frozen=True)
class ConvolutionInputs:
    """What a convolution's gradient tells of each image.

    Args:
        layer: The convolution's name.
        inputs: Its input of each image, ``[B, C, h, w]``, float64.
        gradients: The gradient at its output of each image, ``[B, C', h, w]``.
        scaled: Whether the images' lengths are known; otherwise each has a norm of 1, and its
            gradient a factor of its own.
        mismatch: The relative error with which shifts explain the gradient.
    """

    layer: str
    inputs: Tensor
    gradients: Tensor
    scaled: bool
    mismatch: float


@cache_per_model
@torch.no_grad()
def find_convolutions(model: nn.Module, shape: Shape) -> tuple[Convolution, ...]:
    """The convolutions that can be read, in the order in which they run.

    Args:
        model: The model; a copy of it is run.
        shape: The shape of its images, ``(C, H, W)``.
    """
    still = copy.deepcopy(model).eval()
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
    norms: dict[int, str] = {}
    kept: list[Tensor] = []  # so that no tensor's identity is used twice

    def record(name: str, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        kept.extend((inputs, output))
        if isinstance(module, nn.Conv2d):
            seen.setdefault(name, []).append((inputs, output))
        else:
            norms.setdefault(id(inputs), name)

    handles = []
    for name, module in still.named_modules():
        if isinstance(module, BATCH_NORMS) or keeps_size(module):
            handles.append(
                module.register_forward_hook(
                    lambda m, args, out, name=name: record(name, m, args[0], out)
                )
            )
    like = next(model.parameters())
    still(torch.randn(PROBES, *shape, generator=generator(0, "convolutions")).to(like))
    for handle in handles:
        handle.remove()
    return tuple(
        Convolution(name, (inputs.shape[2], inputs.shape[3]), norms.get(id(output)))
        for name, calls in seen.items()
        for inputs, output in calls[:1]
        if len(calls) == 1 and bool((inputs >= 0).all())
        if float((inputs == 0).float().mean()) > LEAST_ZEROS
    )


def keeps_size(module: nn.Module) -> bool:
    """Whether a module is a convolution that shifts its input by each tap of its kernel."""
    if not isinstance(module, nn.Conv2d) or module.padding_mode != "zeros":
        return False
    sides = module.kernel_size
    if min(sides) < 3 or any(side % 2 == 0 for side in sides):
        return False
    padded = module.padding == "same" or module.padding == tuple(side // 2 for side in sides)
    return padded and module.stride == module.dilation == (1, 1) and module.groups == 1


def list_readable(observation: Observation) -> Iterator[Convolution]:
    """The convolutions with as many channels as the batch has positions, nearest to pixels first.

    Args:
        observation: What the server saw of one client.
    """
    model, knowledge = observation.model, observation.knowledge
    for site in find_convolutions(model, knowledge.shape):
        weight = model.get_parameter(f"{site.name}.weight")
        positions = knowledge.batch_size * site.grid[0] * site.grid[1]
        if (
            positions <= min(weight.shape[:2])
            and f"{site.name}.weight" in observation.update.change
        ):
            yield site


def read_convolution(observation: Observation, still: nn.Module) -> ConvolutionInputs | None:
    """The inputs of the first convolution that tells them; None: none does.

    Args:
        observation: What the server saw of one client.
        still: The model that in evaluation mode computes what the client's model computed.
    """
    gradient = observation.update.gradient()
    for site in list_readable(observation):
        kernel = gradient[f"{site.name}.weight"].detach().cpu().double()
        top = float(kernel.abs().max())
        if not top:
            continue
        mixed = separate_positions(kernel, site.grid, observation.knowledge.batch_size)
        if mixed is None:
            continue
        draw = generator(0, "convolutions", observation.client)
        unmixing = unmix(mixed.inputs.flatten(1), draw)
        if unmixing is None:
            continue
        return scale(site, turn(mixed, unmixing), gradient, still, top)
    return None


def turn(mixed: MixedInputs, unmixing: Tensor) -> MixedInputs:
    """The inputs and gradients of single images, each input with a norm of 1."""
    inputs = torch.tensordot(unmixing, mixed.inputs, 1)
    lengths = inputs.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    gradients = torch.tensordot(torch.linalg.inv(unmixing).T, mixed.gradients, 1)
    return MixedInputs(inputs / lengths, gradients * lengths, mixed.mismatch)


def scale(
    site: Convolution, mixed: MixedInputs, gradient: dict[str, Tensor], still: nn.Module, top: float
) -> ConvolutionInputs:
    """Gives each image its length.

    Args:
        site: The convolution.
        mixed: What it tells of single images, up to their lengths.
        gradient: The client's gradient.
        still: The model that in evaluation mode computes what the client's model computed.
        top: The kernel's largest gradient, by which gradients were divided.
    """
    sums = mixed.gradients.sum((2, 3)).T * top  # [channels out, B]
    lengths = None
    if f"{site.name}.bias" in gradient:
        lengths = solve_lengths(sums, gradient[f"{site.name}.bias"], inverse=True)
    if lengths is None and site.norm is not None:
        norm = still.get_submodule(site.norm)
        assert isinstance(norm, BATCH_NORMS)
        weights, buffers = dict(still.named_parameters()), dict(still.named_buffers())
        var = buffers.get(f"{site.norm}.running_var")
        if f"{site.norm}.bias" in gradient and var is not None:
            factor = weights[f"{site.norm}.weight"].detach() / (var + norm.eps).sqrt()
            wanted = gradient[f"{site.norm}.bias"].cpu() * factor.cpu()
            lengths = solve_lengths(sums, wanted, inverse=True)
        if lengths is None and var is not None:
            kernel = weights[f"{site.name}.weight"]
            with torch.no_grad():
                padding = (kernel.shape[2] // 2, kernel.shape[3] // 2)
                outputs = F.conv2d(mixed.inputs.to(kernel), kernel, padding=padding)
            mean = buffers[f"{site.norm}.running_mean"].cpu() * len(mixed.inputs)
            if f"{site.name}.bias" in weights:
                mean = mean - weights[f"{site.name}.bias"].detach().cpu() * len(mixed.inputs)
            lengths = solve_lengths(outputs.mean((2, 3)).T.cpu(), mean, inverse=False)
    if lengths is None:
        return ConvolutionInputs(site.name, mixed.inputs, mixed.gradients, False, mixed.mismatch)
    by = lengths.view(-1, 1, 1, 1)
    return ConvolutionInputs(
        site.name, mixed.inputs * by, mixed.gradients * top / by, True, mixed.mismatch
    )


def solve_lengths(columns: Tensor, wanted: Tensor, *, inverse: bool) -> Tensor | None:
    """The lengths for which columns add up to what is wanted, ``[B]``; None: none do.

    Args:
        columns: ``[channels, B]``.
        wanted: ``[channels]``.
        inverse: Whether columns are divided by the lengths, as gradients are.
    """
    columns, wanted = columns.double(), wanted.detach().cpu().double()
    found = torch.linalg.lstsq(columns, wanted[:, None]).solution[:, 0]
    error = (columns @ found - wanted).norm() / wanted.norm().clamp(min=1e-300)
    if not bool(error < FITS) or not bool((found > 0).all()):
        return None
    lengths: Tensor = 1 / found if inverse else found
    return lengths


def match_labels(
    found: ConvolutionInputs, images: Tensor, labels: Tensor, still: nn.Module
) -> list[int]:
    """Which image has which of the labels, by the gradients at the layer's output.

    Args:
        found: What the layer tells of each image.
        images: The images as model inputs, as well as they are known, ``[B, C, H, W]``.
        labels: The batch's labels, ``[B]``.
        still: The model in evaluation mode.

    Returns:
        For each label the number of an image.
    """
    leaves: list[Tensor] = []

    def watch(module: nn.Module, args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return output.detach() + (leaves[-1] - leaves[-1].detach())

    with still.get_submodule(found.layer).register_forward_hook(watch), torch.enable_grad():
        logits = still(images.to(next(still.parameters())))
        costs = torch.zeros(len(labels), len(images))
        losses = logits.logsumexp(1)[:, None] - logits
        for row, label in enumerate(labels.tolist()):
            expected = torch.autograd.grad(losses[:, label].sum(), leaves[0], retain_graph=True)[0]
            centred = [
                (d - d.mean((2, 3), keepdim=True)).flatten(1)
                for d in (expected.cpu().double(), found.gradients)
            ]
            costs[row] = -torch.cosine_similarity(centred[0], centred[1]).float()
    return [int(image) for image in linear_sum_assignment(costs.numpy())[1]]
