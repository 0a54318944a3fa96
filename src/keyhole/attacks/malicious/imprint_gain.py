"""How strongly an imprint block should act on the network behind it, tried on public images."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.malicious.imprint_block import ImprintBlock
from keyhole.models.bottleneck import LossCollector, find_bottleneck
from keyhole.models.modes import BATCH_NORMS, default_mode
from keyhole.seeds import derive, generator, seeded_globally
from keyhole.threat import PublicKnowledge

GAINS = (1.0, 10.0, 30.0, 100.0, 1000.0, 10000.0)
"""The gains that are tried. A network without norms passes any of them on; beyond the last one
activations lose their digits."""
DIVERGENCE = 1e-3
"""The weight of a bottleneck's divergence in the clients' loss, as far as the server knows."""
TRIED = 16
"""Public images that are tried, at most."""
NEARLY = 0.5
"""The least gain counts that reaches so much of the largest slope: it changes the network least."""
WEAK = 0.05
"""The quantile of the images' slopes that counts: most images are to be read, not the loudest. A
softmax that is sure of its class leaves images of that class none."""


def choose_gain(
    model: nn.Module, row: Tensor, thresholds: Tensor, sparse: bool, public: PublicKnowledge
) -> float:
    """The gain at which the rows of the block get the largest gradient from single images.

    What hides an image is noise, and the rounding of weights, against that gradient. A network
    without norms passes a large gain on and back. Sigmoids and softmax saturate, norms divide it
    out.

    Args:
        model: The network behind the block.
        row: The functional that all rows share, ``[D]``.
        thresholds: Where rows begin to fire.
        sparse: Whether a row stops to respond at the next threshold.
        public: What the server knows; its images are tried, with random labels.
    """
    tried = set_trial_mode(copy.deepcopy(model), public.batch_size)
    slopes = {
        gain: measure_slope(tried, ImprintBlock(row, thresholds, sparse=sparse, gain=gain), public)
        for gain in GAINS
    }
    enough = NEARLY * max(slopes.values())
    return next(gain for gain in GAINS if slopes[gain] >= enough)


def set_trial_mode(model: nn.Module, batch_size: int) -> nn.Module:
    """Lets batch norms and a bottleneck work as clients' do; nothing is dropped."""
    model.eval()
    bottleneck = find_bottleneck(model)
    if bottleneck is not None:  # its exponentials overflow where features are large
        bottleneck.samples, bottleneck.divergence_weight = True, DIVERGENCE
        bottleneck.train()
    if default_mode(model, batch_size) == "train":
        for module in model.modules():
            if isinstance(module, BATCH_NORMS):
                module.train()
    return model


def measure_slope(model: nn.Module, block: ImprintBlock, public: PublicKnowledge) -> float:
    """The gradient of one row's bias that 95% of public images exceed; 0 where it is not finite.

    Args:
        model: The network behind the block.
        block: The block.
        public: What the server knows.
    """
    like = next(model.parameters())
    images = public.images[:TRIED].to(like)
    labels = torch.randint(public.classes, (len(images),), generator=generator(0, "imprint gain"))
    with torch.no_grad():
        shift = block(images) - images
    shift = shift.mean((1, 2, 3)).requires_grad_()
    drawn = seeded_globally(derive(0, "imprint gain"))
    with torch.enable_grad(), drawn, LossCollector() as added:
        logits = model(images + shift[:, None, None, None])
        loss = F.cross_entropy(logits, labels.to(images.device), reduction="sum")
        (slopes,) = torch.autograd.grad(sum((term.sum() for term in added.terms), loss), shift)
    weak = float((slopes * float(block.mix.weight[0, 0].detach())).abs().quantile(WEAK))
    return weak if weak < float("inf") else 0.0
