"""Probes whether a model's gradients follow from its layers' inputs and output gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from keyhole.attacks.matching.gradients.factor_plan import MODEL_ERRORS, DoesNotFactor, FactorPlan
from keyhole.attacks.matching.gradients.factored import FactoredMatcher
from keyhole.attacks.matching.gradients.layer_call import LayerCall
from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder
from keyhole.attacks.matching.gradients.low_rank import LowRankTargets
from keyhole.attacks.matching.precision import use_precision
from keyhole.errors import one_line
from keyhole.models.anatomy import unused_parameters

TOLERANCE = 2e-3
"""Relative error up to which the probe's gradients count as equal, in float32."""
ROUNDING_SHARE = 1e-3
"""A parameter's gradient below this share of the whole gradient's length counts as rounding."""


@torch.enable_grad()
def probe_factors(model: nn.Module, shape: tuple[int, int, int]) -> FactorPlan:
    """Plans how to factor the gradients of ``model``, and checks the plan against autograd.

    Raises :class:`DoesNotFactor` if the gradients do not follow from the layers.
    """
    model = copy.deepcopy(model)
    like = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 2, *shape, generator=generator).to(like).requires_grad_()
    names = {id(p): name for name, p in model.named_parameters()}
    recorder = LayerRecorder(2, names=names, refuses_branches=True)
    try:
        with recorder:
            logits = model(images.flatten(0, 1))
    except MODEL_ERRORS as error:
        raise DoesNotFactor(f"a forward pass fails ({one_line(error)})") from None
    targets = torch.eye(logits.shape[1])[[0, 1, 1, 0]].view(2, 2, -1).to(like)
    used = [n for call in recorder.calls for n in (call.weight, call.bias) if n is not None]
    twice = sorted({n for n in used if used.count(n) > 1})
    if twice:
        raise DoesNotFactor(f"{twice[0]!r} is used more than once")
    cloned_calls = frozenset(i for i, call in enumerate(recorder.calls) if call.overwritten)
    unused = unused_parameters(model, shape)
    standalone = {
        n: sample_shape(n, p)
        for n, p in model.named_parameters()
        if n not in used and n not in unused
    }
    plan = FactorPlan(standalone, cloned_calls, count_positions(recorder.calls))
    with use_precision("float32"):
        check_against_autograd(model, plan, unused, images, targets)
    return plan


def count_positions(calls: Sequence[LayerCall]) -> dict[str, int]:
    """For each large weight, the number of positions at which one sample uses it."""
    counts = {}
    for call in calls:
        grouped = call.convolution is not None and call.convolution.groups != 1
        if call.weight is not None and call.kind in ("linear", "conv") and not grouped:
            channels = call.output.shape[1 if call.kind == "conv" else -1]
            counts[call.weight] = call.output[0].numel() // channels
    return counts


def sample_shape(name: str, parameter: Tensor) -> tuple[int, ...]:
    """The shape of a standalone parameter with a sample axis.

    The sample axis replaces a leading 1; a vector gets axes for samples and tokens in front.
    """
    shape = tuple(parameter.shape)
    if shape and shape[0] == 1:
        return shape
    if len(shape) == 1:
        return (1, 1, *shape)
    raise DoesNotFactor(f"parameter {name!r} is used outside linear, conv and norm layers")


def check_against_autograd(
    model: nn.Module,
    plan: FactorPlan,
    unused: frozenset[str],
    images: Tensor,
    targets: Tensor,
) -> None:
    """Raises :class:`DoesNotFactor` unless the factored gradients equal autograd's."""
    parameters = {n: p for n, p in model.named_parameters() if n not in unused}
    zeros = {n: torch.zeros(2, *p.shape).to(p) for n, p in parameters.items()}
    matcher = FactoredMatcher(model, plan, LowRankTargets(zeros, {}, {}))
    try:
        match = matcher(images, targets, None)
    except MODEL_ERRORS as error:
        raise DoesNotFactor(f"its factored gradient fails ({one_line(error)})") from None
    missing = [n for n in zeros if n not in match.names]
    if missing:
        raise DoesNotFactor(f"parameter {missing[0]!r} is not seen in any layer")
    for victim in range(2):
        expected = compute_autograd_gradient(model, images[victim], targets[victim])
        whole = float(torch.stack([g.norm() for g in expected.values()]).norm())
        for name, gradient in ((n, g) for n, g in expected.items() if n not in unused):
            distance = (match.gradient(name)[victim] - gradient).norm()
            if distance > TOLERANCE * max(float(gradient.norm()), ROUNDING_SHARE * whole):
                raise DoesNotFactor(f"the gradient of {name!r} does not follow from its layer")


def compute_autograd_gradient(
    model: nn.Module, images: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """One victim's gradient by plain autograd."""
    probe = copy.deepcopy(model).requires_grad_(True)
    with LayerRecorder(1) as recorder:
        logits = probe(images.detach())
    loss = recorder.sum_losses(targets, logits) / len(images)
    parameters = dict(probe.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return dict(zip(parameters, gradients, strict=True))
