"""The inputs of the convolution before one that was read, from its own gradient.

With x and d known at a convolution (:mod:`.convolution_features`), the gradient at the output of
the convolution before it follows by the chain rule through the ReLU, whose zeros are those of x,
and the BatchNorm between them. That gradient D and the kernel's gradient give the inputs Y by
linear equations, ``W_t[o, i] = sum_q D[o, q] Y[i, q's input at tap t]``, where there are more of
them than positions (Zhu and Blaschko 2021 do so from the loss downwards).

Batch norm in train mode needs its output where the ReLU hid it as well. It is supposed to be the
same everywhere in a channel at first, and then computed from the Y found, round by round. Gradients
that batch norm passed sum to 0, which leaves a direction of Y open; what the ReLU let through
closes it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from keyhole.attacks.analytic.convolution_features import FITS, PROBES, ConvolutionInputs
from keyhole.models.anatomy import Shape, cache_per_model
from keyhole.models.modes import BATCH_NORMS
from keyhole.seeds import generator
from keyhole.threat import Observation

ROUNDS = 6
"""Rounds in which what the ReLU hid is computed anew."""
ABOVE_NOISE = 3.0
"""Inputs so many times the size of the most negative one count as let through by the ReLU."""
DEGENERATE = 1e-6
"""Singular values so much smaller than the largest count as 0."""
MOST_POSITIONS = 1024
"""Most positions of a batch for which the equations are solved."""
MOST_OPEN = 512
"""Most unknowns that are left to what the ReLU let through."""


@dataclass(frozen=True)
class Feeding:
    """A convolution whose output, through a BatchNorm and a ReLU, is another one's input.

    Args:
        name: Its name in the model.
        norm: The BatchNorm behind it; None: there is none.
        grid: Height and width of its input.
    """

    name: str
    norm: str | None
    grid: tuple[int, int]


@dataclass(frozen=True)
class Call:
    """What a module was given and returned; it keeps both, so that no identity is used twice.

    Args:
        name: The module's name.
        received: Its input.
        returned: Its output.
        before: The call that made its input; None: something else did.
    """

    name: str
    received: Tensor
    returned: Tensor
    before: Call | None


@cache_per_model
@torch.no_grad()
def find_feeding(model: nn.Module, shape: Shape) -> dict[str, Feeding]:
    """For each convolution the one right before it, where nothing else stands between.

    Args:
        model: The model; a copy of it is run.
        shape: The shape of its images, ``(C, H, W)``.
    """
    still = copy.deepcopy(model).eval()
    made: dict[int, tuple[Call, int]] = {}
    calls: dict[str, list[Call]] = {}

    def record(name: str, args: tuple[Tensor, ...], output: Tensor) -> None:
        before, version = made.get(id(args[0]), (None, 0))
        if before is not None and args[0]._version != version:
            before = None  # something was added to it in place
        call = Call(name, args[0], output, before)
        made[id(output)] = call, output._version
        calls.setdefault(name, []).append(call)

    for name, module in still.named_modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
        if isinstance(module, (nn.Conv2d, nn.ReLU, *BATCH_NORMS)):
            module.register_forward_hook(
                lambda module, args, output, name=name: record(name, args, output)
            )
    like = next(model.parameters())
    still(torch.randn(PROBES, *shape, generator=generator(0, "convolutions")).to(like))
    modules = dict(still.named_modules())
    found = {}
    for layer, (call, *more) in calls.items():
        rectifier = call.before
        if more or not isinstance(modules[layer], nn.Conv2d) or rectifier is None:
            continue
        norm = rectifier.before
        if not isinstance(modules[rectifier.name], nn.ReLU) or norm is None:
            continue
        normed = isinstance(modules[norm.name], BATCH_NORMS)
        first = norm.before if normed else norm
        if first is None or not is_plain(modules[first.name]) or len(calls[first.name]) > 1:
            continue
        found[layer] = Feeding(
            first.name,
            norm.name if normed else None,
            (first.received.shape[2], first.received.shape[3]),
        )
    return found


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a convolution of one group and no dilation, padded by zeros."""
    return (
        isinstance(module, nn.Conv2d)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.dilation == (1, 1)
        and module.groups == 1
    )


@dataclass(frozen=True)
class Between:
    """What stands between two convolutions: ``x = relu(slope * z + offset)``.

    Args:
        slope: ``[1, C, 1, 1]``.
        offset: ``[1, C, 1, 1]``.
        mean: The mean of z, for batch norm in train mode.
        deviation: Its standard deviation.
    """

    slope: Tensor
    offset: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def read(cls, still: nn.Module, norm: str | None, channels: int) -> Between | None:
        """What a BatchNorm does in evaluation mode; None: it cannot be turned round.

        Args:
            still: The model.
            norm: The BatchNorm's name; None: nothing stands between but the ReLU.
            channels: How many there are.
        """
        one, zero = torch.ones(1, channels, 1, 1).double(), torch.zeros(1, channels, 1, 1).double()
        if norm is None:
            return cls(one, zero, zero, one)
        layer = still.get_submodule(norm)
        assert isinstance(layer, BATCH_NORMS)
        if layer.running_var is None or layer.running_mean is None:
            return None
        mean = layer.running_mean.detach().cpu().double().view(1, -1, 1, 1)
        var = layer.running_var.detach().cpu().double().view(1, -1, 1, 1)
        deviation = (var + layer.eps).sqrt()
        weight, bias = one, zero
        if layer.affine:
            weight = layer.weight.detach().cpu().double().view(1, -1, 1, 1)
            bias = layer.bias.detach().cpu().double().view(1, -1, 1, 1)
        if float(weight.abs().min()) < DEGENERATE:
            return None
        return cls(weight / deviation, bias - mean * weight / deviation, mean, deviation)


def read_earlier(
    found: ConvolutionInputs, observation: Observation, still: nn.Module, *, mixed: bool
) -> ConvolutionInputs | None:
    """The inputs of the convolution before; None: they cannot be told.

    Args:
        found: What is known of the later convolution.
        observation: What the server saw of one client.
        still: The model that in evaluation mode computes what the client's model computed.
        mixed: Whether the client's batch norms ran in train mode.
    """
    site = find_feeding(observation.model, observation.knowledge.shape).get(found.layer)
    gradient = observation.update.gradient()
    if site is None or not found.scaled or f"{site.name}.weight" not in gradient:
        return None
    if not is_plain(still.get_submodule(found.layer)):
        return None
    layer, later = still.get_submodule(site.name), still.get_submodule(found.layer)
    assert isinstance(layer, nn.Conv2d)
    assert isinstance(later, nn.Conv2d)
    between = Between.read(still, site.norm, layer.out_channels)
    positions = len(found.inputs) * site.grid[0] * site.grid[1]
    rows = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
    if between is None or positions > min(rows, MOST_POSITIONS):
        return None
    noise = max(-float(found.inputs.min()), 0.0)  # a ReLU's output has no negative values
    let_through = found.inputs > ABOVE_NOISE * noise
    assert not isinstance(later.padding, str)
    arriving = let_through * conv2d_input(  # type: ignore[no-untyped-call]
        found.inputs.shape,
        later.weight.detach().cpu().double(),
        found.gradients,
        stride=later.stride,
        padding=later.padding,
    )
    seen = (found.inputs - between.offset) / between.slope
    hidden = suppose_hidden(seen, let_through, between)
    wanted = gradient[f"{site.name}.weight"].detach().cpu().double()
    moved = mixed and site.norm is not None
    for left in reversed(range(ROUNDS if moved else 1)):
        outputs = torch.where(let_through, seen, hidden)
        leaving = arriving * between.slope
        if moved:
            leaving = pass_batch_norm(arriving, outputs, between)
        inputs = solve_inputs(leaving, wanted, layer, site.grid, outputs, let_through)
        if inputs is None:
            return None
        computed = convolve(inputs, layer)
        if left == 0:
            break
        below = (computed - between.mean) * between.slope.sign()
        top = (-between.offset / between.slope - between.mean) * between.slope.sign()
        hidden = between.mean + torch.minimum(below, top) * between.slope.sign()
        hidden = centre_hidden(hidden, seen, let_through, between)
    assert inputs is not None  # the loop returned otherwise
    wrong = float(
        ((computed - seen) * let_through).norm() / ((seen - between.mean) * let_through).norm()
    )
    if not wrong < FITS:
        return None
    return ConvolutionInputs(site.name, inputs, leaving, True, max(found.mismatch, wrong))


def suppose_hidden(seen: Tensor, let_through: Tensor, between: Between) -> Tensor:
    """What the ReLU hid, supposed to be the same everywhere in a channel, with the mean known."""
    return centre_hidden(between.mean.expand_as(seen), seen, let_through, between)


def centre_hidden(hidden: Tensor, seen: Tensor, let_through: Tensor, between: Between) -> Tensor:
    """What the ReLU hid, moved by one number a channel so that the channel has its mean."""
    outputs = torch.where(let_through, seen, hidden) - between.mean
    count = (~let_through).sum((0, 2, 3), keepdim=True).clamp(min=1)
    return hidden - outputs.sum((0, 2, 3), keepdim=True) / count


def pass_batch_norm(arriving: Tensor, outputs: Tensor, between: Between) -> Tensor:
    """The gradient before a BatchNorm in train mode.

    Args:
        arriving: The gradient behind it.
        outputs: What it was given.
        between: Its statistics and weight.
    """
    normal = (outputs - between.mean) / between.deviation
    mean = arriving.mean((0, 2, 3), keepdim=True)
    along = (arriving * normal).mean((0, 2, 3), keepdim=True)
    return between.slope * (arriving - mean - normal * along)


def convolve(inputs: Tensor, layer: nn.Conv2d) -> Tensor:
    """A convolution's output, in double precision."""
    bias = None if layer.bias is None else layer.bias.detach().cpu().double()
    return F.conv2d(
        inputs,
        layer.weight.detach().cpu().double(),
        bias,
        stride=layer.stride,
        padding=layer.padding,
    )


def list_equations(leaving: Tensor, layer: nn.Conv2d, grid: tuple[int, int]) -> Tensor:
    """How a kernel's gradient depends on one channel of the inputs.

    Args:
        leaving: The gradient at the output, ``[B, channels out, h, w]``.
        layer: The convolution.
        grid: Height and width of its input.

    Returns:
        ``[taps * channels out, B * H * W]``.
    """
    (down, right), (tall, wide) = layer.stride, layer.kernel_size
    assert not isinstance(layer.padding, str)
    top, left = layer.padding
    batch, channels, height, width = leaving.shape
    frame = leaving.new_zeros(
        tall * wide, channels, batch, grid[0] + 2 * top + tall, grid[1] + 2 * left + wide
    )
    for tap in range(tall * wide):
        row, column = divmod(tap, wide)
        rows = slice(row, row + down * height, down)
        columns = slice(column, column + right * width, right)
        frame[tap][:, :, rows, columns] = leaving.transpose(0, 1)
    inside = frame[..., top : top + grid[0], left : left + grid[1]]
    return inside.reshape(tall * wide * channels, -1)


def solve_inputs(
    leaving: Tensor,
    wanted: Tensor,
    layer: nn.Conv2d,
    grid: tuple[int, int],
    outputs: Tensor,
    let_through: Tensor,
) -> Tensor | None:
    """The inputs from the kernel's gradient; None: too much is left open.

    Args:
        leaving: The gradient at the output.
        wanted: The kernel's gradient.
        layer: The convolution.
        grid: Height and width of its input.
        outputs: The convolution's outputs.
        let_through: Where they are known.
    """
    channels, batch = wanted.shape[1], len(leaving)
    equations = list_equations(leaving, layer, grid)
    left, sizes, right = torch.linalg.svd(equations, full_matrices=False)
    kept = sizes > DEGENERATE * sizes[0]
    values = wanted.permute(2, 3, 0, 1).reshape(-1, channels)
    solved = right[kept].T @ ((left[:, kept].T @ values) / sizes[kept][:, None])

    def fold(columns: Tensor) -> Tensor:
        return columns.T.reshape(channels, batch, *grid).transpose(0, 1)

    open_ = right[~kept]
    if len(open_):
        if len(open_) * channels > MOST_OPEN:
            return None
        missing = (outputs - convolve(fold(solved), layer)).transpose(0, 1)
        known = let_through.transpose(0, 1)
        kernel = layer.weight.detach().cpu().double().flatten(2)
        assert not isinstance(layer.padding, str)
        effects = []
        for direction in open_:
            patches = F.unfold(
                direction.view(batch, 1, *grid),
                layer.kernel_size,
                padding=layer.padding,
                stride=layer.stride,
            )
            effect = torch.einsum("oit,btl->obli", kernel, patches)
            effects.append(effect.view(*known.shape, channels)[known])
        shares = torch.linalg.lstsq(torch.cat(effects, 1), missing[known][:, None]).solution
        solved = solved + open_.T @ shares.view(len(open_), channels)
    return fold(solved)
