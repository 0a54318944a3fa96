"""How strongly an imprint block should act on the network behind it, tried on public images."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.malicious.imprint_block import ImprintBlock, insert_block
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
MARGIN = 2.0
"""Clients must withstand so many times their learning rate: their images are not those tried."""
CLIENTS, STEPS = 8, 20
"""Clients whose local steps are tried, and steps of each, at most."""
WEAK = 0.05
"""The quantile of the images' slopes that counts: most images are to be read, not the loudest. A
softmax that is sure of its class leaves images of that class none."""


def choose_gain(
    model: nn.Module, row: Tensor, thresholds: Tensor, sparse: bool, public: PublicKnowledge
) -> float:
    """The gain at which the rows of the block get the largest gradient from single images.

    What hides an image is noise, and the rounding of weights, against that gradient. A network
    without norms passes a large gain on and back. Sigmoids and softmax saturate, norms divide it
    out. Where clients take several steps at a known rate, a gain at which they would diverge is no
    use: the largest slope counts of those gains that they withstand.

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
    left = list(GAINS)
    while len(left) > 1:
        enough = NEARLY * max(slopes[gain] for gain in left)
        chosen = next(gain for gain in left if slopes[gain] >= enough)
        if withstands(tried, ImprintBlock(row, thresholds, sparse=sparse, gain=chosen), public):
            return chosen
        left = [gain for gain in left if gain < chosen] or left[:1]
    return left[0]


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


def withstands(model: nn.Module, block: ImprintBlock, public: PublicKnowledge) -> bool:
    """Whether clients' weights stay finite; True where one step is taken, or the rate is unknown.

    Args:
        model: The network behind the block, in the clients' mode.
        block: The block.
        public: What the server knows; clients with its images, and random labels, take their steps.
    """
    if public.lr is None or public.steps == 1:
        return True
    draw = generator(0, "imprint gain", "steps")
    for _ in range(CLIENTS):
        trained = insert_block(model, block)
        weights = [each for each in trained.parameters() if each.requires_grad]
        optimiser = torch.optim.SGD(weights, lr=MARGIN * public.lr)
        chosen = torch.randint(len(public.images), (public.batch_size,), generator=draw)
        labels = torch.randint(public.classes, (public.batch_size,), generator=draw)
        images, labels = public.images[chosen].to(weights[0]), labels.to(weights[0].device)
        with torch.enable_grad(), seeded_globally(derive(0, "imprint gain")):
            for _ in range(min(public.steps, STEPS)):
                optimiser.zero_grad()
                torch.autograd.backward(F.cross_entropy(trained(images), labels))
                optimiser.step()
        if not all(bool(each.isfinite().all()) for each in weights):
            return False
    return True
