"""Our figures beside the paper's, and how far apart they may be to count as the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scale = Literal["ssim", "psnr", "points"]

TOLERANCES: dict[Scale, float] = {"ssim": 0.05, "psnr": 2.0, "points": 3.0}
"""By what our figure and the paper's may differ: SSIM, dB, percentage points."""

UNITS: dict[Scale, str] = {"ssim": "SSIM", "psnr": "dB", "points": "%"}


@dataclass(frozen=True)
class Comparison:
    """One figure.

    Args:
        what: What it says of what, such as ``ig``.
        scale: SSIM, PSNR in dB, or percent.
        ours: Our figure.
        paper: The paper's.
    """

    what: str
    scale: Scale
    ours: float
    paper: float

    @property
    def agrees(self) -> bool:
        """Whether the two differ by no more than the tolerance.

        >>> Comparison("ig", "ssim", 0.44, 0.48).agrees, Comparison("ig", "psnr", 24.9, 14.6).agrees
        (True, False)
        """
        return self.distance <= TOLERANCES[self.scale] + 1e-9

    @property
    def distance(self) -> float:
        """By what the two differ."""
        return abs(self.ours - self.paper)

    def is_explained_by(self, other: Comparison) -> bool:
        """Whether the same figure of another experiment agrees, or differs by half as much.

        >>> sigmoid = Comparison("ig", "ssim", 0.006, 0.48)
        >>> sigmoid.is_explained_by(Comparison("ig", "ssim", 0.349, 0.48))
        True
        >>> sigmoid.is_explained_by(Comparison("ig", "ssim", 0.2, 0.48))
        False
        """
        same = (self.what, self.scale) == (other.what, other.scale)
        return same and (other.agrees or other.distance <= self.distance / 2)

    def __str__(self) -> str:
        digits = 3 if self.scale == "ssim" else 1
        ours, paper = f"{self.ours:.{digits}f}", f"{self.paper:g}"
        return f"{self.what} {ours} ({paper}) {UNITS[self.scale]}"
