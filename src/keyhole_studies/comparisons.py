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
        return abs(self.ours - self.paper) <= TOLERANCES[self.scale] + 1e-9

    def __str__(self) -> str:
        digits = 3 if self.scale == "ssim" else 1
        ours, paper = f"{self.ours:.{digits}f}", f"{self.paper:g}"
        return f"{self.what} {ours} ({paper}) {UNITS[self.scale]}"
