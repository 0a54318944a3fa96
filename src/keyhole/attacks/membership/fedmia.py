"""FedMIA: who was in a client's images, from the updates that a server captured.

In round t client k changed the global weights w_t by delta_{k,t}. An image x pulls the weights
along ``-grad l(w_t; x)``, so that

    s_{k,t}(x) = cos(grad l(w_t; x), -delta_{k,t})

is greater if x was among the images of client k. The same value of the other clients' updates,
which x was not in, says how great it would be otherwise: with mean m and deviation d of theirs,
``z_t = (s - m) / d``. One-sided tails are joined over rounds (Fisher): ``-sum log(1 - Phi(z))``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

GRADIENTS_AT_ONCE, GRADIENTS_AT_ONCE_ON_GPU = 1 << 22, 1 << 26
"""Numbers of single images' gradients that are held at once; on a CPU few, which caches hold."""
PRIOR_CLIENTS = 20
"""How many clients the variance over all images counts for, beside that of a single image."""
LEAST_SPREAD = 1e-3
"""The least deviation of the other clients' values."""


def gradient_cosines(
    model: nn.Module, images: Tensor, labels: Tensor, changes: Sequence[Mapping[str, Tensor]]
) -> Tensor:
    """``cos(grad l(w; x), -delta_k)`` of every client's change and every image, ``[clients, n]``.

    Args:
        model: The model as the server sent it, in evaluation mode.
        images: Model inputs ``[n, C, H, W]``.
        labels: Their classes ``[n]``.
        changes: What each client changed, by parameter; all report the same parameters.
    """
    weights = {n: p.detach() for n, p in model.named_parameters() if n in changes[0]}
    fixed = {n: p.detach() for n, p in model.named_parameters() if n not in weights}
    fixed.update({n: b.detach() for n, b in model.named_buffers()})
    deltas = {n: torch.stack([change[n].to(w) for change in changes]) for n, w in weights.items()}
    lengths = torch.stack([d.flatten(1).double().square().sum(1) for d in deltas.values()]).sum(0)

    def loss(own: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, {**fixed, **own}, (image[None],))
        return F.cross_entropy(logits, label[None])

    size = sum(w.numel() for w in weights.values())
    dots, norms = [], []
    most = GRADIENTS_AT_ONCE_ON_GPU if images.is_cuda else GRADIENTS_AT_ONCE
    at_once = max(1, most // size)
    pairs_at_once = zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True)
    for some, classes in pairs_at_once:
        gradients = vmap(grad(loss), (None, 0, 0), randomness="different")(weights, some, classes)
        pairs = [(deltas[n].flatten(1), gradients[n].flatten(1)) for n in weights]
        dots.append(torch.stack([(d @ g.T).double() for d, g in pairs]).sum(0))
        sizes = [torch.linalg.vector_norm(g, dim=1).double() for _, g in pairs]
        norms.append(torch.stack(sizes).square().sum(0))
    lengths = lengths[:, None] * torch.cat(norms)[None]
    return -torch.cat(dots, 1) / lengths.clamp_min(1e-300).sqrt()


def join_tails(cosines: Sequence[Tensor], clients: Sequence[int]) -> Tensor:
    """One score per image, from the cosines ``[clients, n]`` of every round, ``[n]``.

    Args:
        cosines: Those of every client of a round.
        clients: Which of the round's clients is the target.
    """
    total = torch.zeros(cosines[0].shape[1], dtype=torch.double)
    for values, target in zip(cosines, clients, strict=True):
        values = values.double().cpu()
        others = values[torch.arange(len(values)) != target]
        z = (values[target] - others.mean(0)) / estimate_spread(others)
        total -= torch.special.log_ndtr(-z)
    return total


def estimate_spread(others: Tensor) -> Tensor:
    """The deviation of the other clients' values ``[clients, n]`` for each image, ``[n]``.

    Few clients tell little of a single image: the mean variance over all images counts as that of
    ``PRIOR_CLIENTS`` more.
    """
    clients, own = len(others), others.var(0)
    shrunk = (clients * own + PRIOR_CLIENTS * own.mean()) / (clients + PRIOR_CLIENTS)
    return shrunk.sqrt().clamp_min(LEAST_SPREAD)


def mean_cosine(cosines: Sequence[Tensor], clients: Sequence[int]) -> Tensor:
    """The target's mean cosine over the rounds, ``[n]``: no other client is needed."""
    pairs = zip(cosines, clients, strict=True)
    return torch.stack([values[target].double().cpu() for values, target in pairs]).mean(0)
