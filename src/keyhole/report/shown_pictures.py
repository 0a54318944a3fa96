"""Which pictures a page shows: the worst cases first, then a fair sample, within a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from keyhole.auditing.finding import Finding
from keyhole.auditing.pictures import victims_of
from keyhole.report import view
from keyhole.report.drawing import LARGE
from keyhole.report.figures import encode_picture
from keyhole.report.words import count_noun

CLEAREST = 4
"""Pictures of the worst cases in a row."""
FAIR = 4
"""Pictures in a row that are chosen without looking at what was read."""
BUDGET = 1_700_000
"""Bytes of pictures on a page, as they are written into it."""


@dataclass(frozen=True, eq=False)
class KeptPicture:
    """One client's image, as far as it is known, and what was seen of it, uint8 ``[C, H, W]``.

    Args:
        victim: The client's number.
        truth: The original; None: nobody knows it.
        seen: What the attacker saw.
        psnr: Peak signal-to-noise ratio; None without the original.
        ssim: Structural similarity; None without the original.
        confidence: How sure the attacker is; None: it does not say.
    """

    victim: int
    truth: Tensor | None
    seen: Tensor
    psnr: float | None
    ssim: float | None
    confidence: float | None

    @property
    def clearness(self) -> float:
        """By this pictures are sorted, the worst cases first."""
        if self.ssim is not None:
            return self.ssim
        return self.confidence or 0.0


def list_pictures(finding: Finding, pictures: Mapping[str, Tensor]) -> list[KeptPicture]:
    """All pictures that the run folder holds of a finding, in the audit's order.

    Args:
        finding: The finding.
        pictures: Its pictures by name.
    """
    batch = view.batch_size_of(finding)

    def score(name: str, place: int) -> float | None:
        values = finding.metrics[name].per_image if name in finding.metrics else ()
        return values[place] if place < len(values) else None

    return [
        KeptPicture(
            victim,
            truth,
            seen,
            score("psnr", victim * batch),
            score("ssim", victim * batch),
            view.confidence_at(finding, victim * batch),
        )
        for victim, (truth, seen) in zip(
            victims_of(pictures), view.pair_pictures(pictures), strict=True
        )
        if victim < finding.victims
    ]


def choose_shown(kept: Sequence[KeptPicture]) -> list[KeptPicture]:
    """The clearest pictures, the worst case first; then the first of the others.

    The audit's order does not depend on what was read.
    """
    order = sorted(kept, key=lambda each: -each.clearness)
    worst = order[:CLEAREST]
    rest = [each for each in kept if all(each is not other for other in worst)]
    return [*worst, *rest[:FAIR]]


def describe_choice(kept: Sequence[KeptPicture], clients: int, file: str) -> str:
    """Says which pictures are shown of how many clients; empty where all of them are.

    Args:
        kept: The pictures in the run folder.
        clients: How many clients were attacked.
        file: Where they are.
    """
    if len(kept) <= CLEAREST + FAIR and len(kept) == clients:
        return ""
    found = f"Of {count_noun(clients, 'client')}: the {min(CLEAREST, len(kept))} clearest"
    if len(kept) > CLEAREST:
        fair = min(FAIR, len(kept) - CLEAREST)
        found += f", worst case first, then {fair} in the audit's order, taken without looking"
    return f"{found}. {count_noun(len(kept), 'picture')} {file}"


@dataclass
class PictureBudget:
    """Encodes pictures as long as the page has room for them.

    Once there was none for pictures of a size, there is none for others of that size.

    Args:
        room: Bytes that are left.
        left_out: How many pictures there was no room for.
        refused: Shapes of pictures that there was no room for.
    """

    room: int = BUDGET
    left_out: int = 0
    refused: set[tuple[int, ...]] = field(default_factory=set)

    def draw(self, svg: str) -> str:
        """A drawing, or nothing if there is no room for it."""
        if len(svg) > self.room:
            return ""
        self.room -= len(svg)
        return svg

    def show(self, *images: Tensor | None) -> list[dict[str, Any] | None] | None:
        """What a template needs of pictures that belong together; None if they do not all fit.

        Args:
            images: uint8 ``[C, H, W]`` each; None for one that is not known.
        """
        shapes = {tuple(image.shape) for image in images if image is not None}
        found: list[str | None] = []
        if not shapes & self.refused:
            found = [None if image is None else encode_picture(image) for image in images]
        size = sum(len(each) for each in found if each is not None)
        if not found or size > self.room:
            self.refused |= shapes
            self.left_out += sum(image is not None for image in images)
            return None
        self.room -= size
        return [
            None
            if address is None or image is None
            else {"address": address, "small": min(image.shape[-2:]) < LARGE}
            for address, image in zip(found, images, strict=True)
        ]


def interleave(rows: Iterable[Sequence[Any]]) -> list[tuple[int, int]]:
    """Places (row, column): the first of every row, then the second of every row, and so on.

    >>> interleave(["ab", "c"])
    [(0, 0), (1, 0), (0, 1)]
    """
    sizes = [len(row) for row in rows]
    return [
        (row, at) for at in range(max(sizes, default=0)) for row, n in enumerate(sizes) if at < n
    ]
