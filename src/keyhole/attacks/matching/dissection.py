"""Probes a model: can its gradients be had from its layers' inputs and output gradients?"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from keyhole.attacks.matching.anatomy import REFUSALS, Anatomy, DoesNotFactor
from keyhole.attacks.matching.factored import FactoredMatcher
from keyhole.attacks.matching.precision import computing_in
from keyhole.attacks.matching.tape import Call, Tape
from keyhole.attacks.matching.thin import ThinTargets
from keyhole.errors import one_line
from keyhole.models.anatomy import without_part

SAME = 2e-3
"""Relative error up to which the probe's gradients count as equal, in float32."""
ROUNDING = 1e-3
"""Share of the whole gradient's length under which a parameter's gradient is taken for rounding."""


@torch.enable_grad()
def dissect(model: nn.Module, shape: tuple[int, int, int]) -> Anatomy:
    """Finds out by probing how ``model``'s gradients come about, and checks it against autograd."""
    model = copy.deepcopy(model)
    like = next(model.parameters())
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(2, 2, *shape, generator=draw).to(like).requires_grad_()
    names = {id(p): name for name, p in model.named_parameters()}
    tape = Tape(2, names=names, refuses_branches=True)
    try:
        with tape:
            logits = model(images.flatten(0, 1))
    except REFUSALS as error:
        raise DoesNotFactor(f"a forward pass fails ({one_line(error)})") from None
    targets = torch.eye(logits.shape[1])[[0, 1, 1, 0]].view(2, 2, -1).to(like)
    used = [n for call in tape.calls for n in (call.weight, call.bias) if n is not None]
    twice = sorted({n for n in used if used.count(n) > 1})
    if twice:
        raise DoesNotFactor(f"{twice[0]!r} is used more than once")
    copied = frozenset(i for i, call in enumerate(tape.calls) if call.overwritten)
    idle = without_part(model, shape)
    plain = {
        n: sample_shape(n, p)
        for n, p in model.named_parameters()
        if n not in used and n not in idle
    }
    anatomy = Anatomy(plain, copied, positions(tape.calls))
    with computing_in("float32"):
        check(model, anatomy, idle, images, targets)
    return anatomy


def positions(calls: Sequence[Call]) -> dict[str, int]:
    """How many columns one sample gives each large weight."""
    return {
        call.weight: call.output[0].numel() // call.output.shape[1 if call.kind == "conv" else -1]
        for call in calls
        if call.weight is not None
        and (call.kind == "linear" or (call.kind == "conv" and call.geometry["groups"] == 1))
    }


def sample_shape(name: str, parameter: Tensor) -> tuple[int, ...]:
    """How a plain parameter is given a sample axis: in place of a leading 1, else before tokens."""
    shape = tuple(parameter.shape)
    if shape and shape[0] == 1:
        return shape
    if len(shape) == 1:
        return (1, 1, *shape)
    raise DoesNotFactor(f"parameter {name!r} is used outside linear, conv and norm layers")


def check(
    model: nn.Module,
    anatomy: Anatomy,
    idle: frozenset[str],
    images: Tensor,
    targets: Tensor,
) -> None:
    """Raises :class:`DoesNotFactor` unless the factored gradients are autograd's."""
    named = {n: p for n, p in model.named_parameters() if n not in idle}
    zeros = {n: torch.zeros(2, *p.shape).to(p) for n, p in named.items()}
    matcher = FactoredMatcher(model, anatomy, ThinTargets(zeros, {}, {}))
    try:
        match = matcher(images, targets, None)
    except REFUSALS as error:
        raise DoesNotFactor(f"its factored gradient fails ({one_line(error)})") from None
    missing = [n for n in zeros if n not in match.names]
    if missing:
        raise DoesNotFactor(f"parameter {missing[0]!r} is not seen in any layer")
    for victim in range(2):
        expected = autograd_gradient(model, images[victim], targets[victim])
        whole = float(torch.stack([g.norm() for g in expected.values()]).norm())
        for name, gradient in ((n, g) for n, g in expected.items() if n not in idle):
            got = match.gradient(name)[victim]
            if (got - gradient).norm() > SAME * max(float(gradient.norm()), ROUNDING * whole):
                raise DoesNotFactor(f"the gradient of {name!r} does not follow from its layer")


def autograd_gradient(model: nn.Module, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """One victim's gradient the plain way."""
    probe = copy.deepcopy(model).requires_grad_(True)
    with Tape(1):
        logits = probe(images.detach())
    loss = -(targets * logits.log_softmax(-1)).sum() / len(images)
    named = dict(probe.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    return dict(zip(named, found, strict=True))
