"""The result of a client's check of its own update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from keyhole.errors import BadValue


@dataclass(frozen=True)
class NotTried:
    """An attack on images that was not tried on this update, and why."""

    attack: str
    why: str


@dataclass(frozen=True)
class InferredLabels:
    """How many of the client's labels the update's last layer gives away."""

    right: int
    of: int

    def __str__(self) -> str:
        return f"labels: {self.right} of {self.of} inferred from the update"


@dataclass(frozen=True)
class OwnMembership:
    """How much better the updated model knows the client's images than others.

    Args:
        loss_before: Mean loss on the client's images before the update.
        loss_after: The same after it.
        own: How many images the client has.
        others: How many other images there are to compare with.
        auc: The share of pairs (own image, other image) in which the own image's loss fell by more:
            .5 tells nothing, 1 tells every own image from every other. None without other images.
    """

    loss_before: float
    loss_after: float
    own: int
    others: int
    auc: float | None

    def __str__(self) -> str:
        change = f"loss on the client's images {self.loss_before:.3f}, then {self.loss_after:.3f}"
        if self.auc is None:
            return f"membership: {change}; there are no other images to compare with"
        return (
            f"membership: {change}; {self.own} told from {self.others} others with "
            f"AUC {self.auc:.2f}"
        )


@dataclass(frozen=True)
class SelfCheck:
    """What the attacks tried saw of one update.

    Args:
        leaks: Whether an image was read; None: no attack on images was tried, so nobody knows.
        attack: The attack that saw most.
        ssim: How well it saw each image.
        threshold: The SSIM from which on an image counts as read.
        tried: The attacks tried.
        words: The verdict as a sentence.
        not_tried: Attacks on images that were not tried, and why.
        labels: The labels inferred; they do not count as a leak of images.
        membership: What the losses give away; it does not count as a leak of images.
        notes: What was assumed.
    """

    leaks: bool | None
    attack: str | None
    ssim: tuple[float, ...]
    threshold: float
    tried: tuple[str, ...]
    words: str
    not_tried: tuple[NotTried, ...] = ()
    labels: InferredLabels | None = None
    membership: OwnMembership | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe_outcome(
    attack: str | None,
    read: Sequence[bool],
    tried: Sequence[str],
    not_tried: Sequence[NotTried],
) -> str:
    """The verdict on one update in a line."""
    if not tried:
        why = "; ".join(f"{each.attack}: {each.why}" for each in not_tried)
        return (
            "no attack on images was tried, so nobody knows whether this update leaks"
            f"{f' ({why})' if why else ''}"
        )
    if any(read):
        return f"{attack} reads {sum(read)} of {len(read)} images out of this update"
    left_out = f"; not tried: {', '.join(each.attack for each in not_tried)}" if not_tried else ""
    return f"not read by the attacks tried: {', '.join(tried)}{left_out}"


def check_threshold(threshold: float) -> float:
    """Returns ``threshold``, or raises :class:`BadValue` if it cannot be an SSIM."""
    if not 0 <= threshold <= 1:  # refuses NaN as well
        raise BadValue(f"threshold: an SSIM between 0 and 1 is needed, got {threshold}")
    return threshold


def check_seconds(seconds: float) -> float:
    """Returns ``seconds``, or raises :class:`BadValue` if it is not a length of time."""
    if not 0 <= seconds < math.inf:
        raise BadValue(f"seconds: a number from 0 on is needed, got {seconds}")
    return seconds
