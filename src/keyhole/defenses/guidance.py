"""Which channels of a client's network matter most to the client's own images."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.defenses.base import ClientSide
from keyhole.errors import DoesNotFit
from keyhole.models.channel_importance import channel_importance, top_channels
from keyhole.update import Update


def choose_important_channels(
    update: Update, side: ClientSide, *, ratio: float, absolute: bool, defense: str
) -> dict[str, Tensor]:
    """The most important channels of every convolution of the trained model.

    They are judged on one random image of each of the client's classes. The trained model is the
    global one plus the update; a client that shares a gradient (one step of ``lr=1``) has trained
    nothing yet, and its model is the global one.
    """
    if side.model is None or side.images is None or side.labels is None or not len(side.images):
        raise DoesNotFit(
            f"defense {defense!r} chooses channels by the client's own images: "
            "pass ClientSide(model=..., images=..., labels=...)"
        )
    update.check_against(side.model.state_dict())
    like = next(side.model.parameters())
    chosen = pick_one_per_class(side.labels, side.generator)
    found = channel_importance(
        side.model,
        side.normalise(side.images[chosen.to(side.images.device)]).to(like),
        side.labels[chosen.to(side.labels.device)],
        change=None if is_gradient(update) else update.change,
    )
    return {name: top_channels(w, ratio, absolute=absolute) for name, w in found.items()}


def is_gradient(update: Update) -> bool:
    """Whether an update may be a bare gradient, as :meth:`Update.from_gradient` makes it."""
    return update.steps == 1 and update.lr == 1.0


def pick_one_per_class(labels: Tensor, generator: torch.Generator) -> Tensor:
    """The place of one random sample of each class that occurs, classes in order.

    >>> pick_one_per_class(torch.tensor([7, 2, 7]), torch.Generator().manual_seed(0)).tolist()[0]
    1
    """
    own = labels.cpu()
    places = [(own == label).nonzero().view(-1) for label in torch.unique(own)]
    picks = [int(torch.randint(len(p), (), generator=generator)) for p in places]
    return torch.stack([p[i] for p, i in zip(places, picks, strict=True)])
