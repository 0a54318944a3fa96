"""Puts images back together whose blocks were shuffled within regions and colour planes (CSVAR).

What is certain is the thumbnail (:mod:`thumbnails`). Planes are matched block by block
(:mod:`planes`), neighbouring blocks are judged by their seams (:mod:`seams`), and belief
propagation weighs all seams of the image together (:mod:`..belief`, :mod:`links`,
:mod:`solving`). Several noisy versions of an image make one clean version (:mod:`versions`).
"""

from keyhole.attacks.jigsaw.regions.solving import Solved, solve
from keyhole.attacks.jigsaw.regions.thumbnails import region_means, thumbnail
from keyhole.attacks.jigsaw.regions.versions import combined

__all__ = ["Solved", "combined", "region_means", "solve", "thumbnail"]
