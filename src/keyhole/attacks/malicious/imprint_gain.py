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
FAINT = (0.1, 0.01)
"""Gains that are tried where clients withstand none of the others."""
DIVERGENCE = 1e-3
"""The weight of a bottleneck's divergence in the clients' loss, as far as the server knows."""
TRIED = 16
"""Public images that are tried, at most."""
NEARLY = 0.5
"""The least gain counts that reaches so much of the largest slope: it changes the network least."""
MARGIN = 2.0
"""Clients must withstand so many times their learning rate: their images are not those tried."""
GROWTH = 2.0
"""How much the norm of all weights may grow in local steps; beyond, they are about to diverge."""
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
    tried = set_trial_mode(copy.deepcopy(model), public.step_images or public.batch_size)
    slopes = {
        gain: measure_slope(tried, ImprintBlock(row, thresholds, sparse=sparse, gain=gain), public)
        for gain in GAINS
    }
    left = list(GAINS)
    while left:
        enough = NEARLY * max(slopes[gain] for gain in left)
        chosen = next(gain for gain in left if slopes[gain] >= enough)
        if withstands(tried, ImprintBlock(row, thresholds, sparse=sparse, gain=chosen), public):
            return chosen
        left = [gain for gain in left if gain < chosen]
    for gain in FAINT[:-1]:
        if withstands(tried, ImprintBlock(row, thresholds, sparse=sparse, gain=gain), public):
            return gain
    return FAINT[-1]


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
    """Whether clients' weights do not diverge; True where one step is taken, or no rate is known.

    Args:
        model: The network behind the block, in the clients' mode.
        block: The block.
        public: What the server knows; clients with its images, and random labels, take their steps.
    """
    if public.lr is None or public.steps == 1:
        return True
    draw = generator(0, "imprint gain", "steps")
    for _ in range(CLIENTS):
        chosen = torch.randint(len(public.images), (public.batch_size,), generator=draw)
        labels = torch.randint(public.classes, (public.batch_size,), generator=draw)
        if diverges(insert_block(model, block), public, chosen, labels):
            return False
    return True


def diverges(model: nn.Module, public: PublicKnowledge, chosen: Tensor, labels: Tensor) -> bool:
    """Whether weights grow without bound in a client's steps.

    Args:
        model: What the client trains.
        public: Images, the number of steps and the learning rate.
        chosen: Which public images the client has.
        labels: Their labels.
    """
    weights = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.SGD(weights, lr=MARGIN * (public.lr or 0.0))
    images, labels = public.images[chosen].to(weights[0]), labels.to(weights[0].device)
    everyone = torch.arange(len(chosen), device=labels.device)
    parts = torch.split(everyone, public.step_images or len(chosen))
    before = torch.nn.utils.get_total_norm(weights)
    with torch.enable_grad(), seeded_globally(derive(0, "imprint gain")):
        for number in range(min(public.steps, STEPS)):
            part = parts[number % len(parts)]
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(images[part]), labels[part]))
            optimiser.step()
    return not bool(torch.nn.utils.get_total_norm(weights) <= GROWTH * before)
