"""Puts images back together whose blocks were shuffled within regions and colour planes (CSVAR).

Only the thumbnail is certain (:mod:`thumbnails`). Planes are matched block by block
(:mod:`planes`), neighbouring blocks are judged by their seams (:mod:`seams`), and belief
propagation weighs all seams of the image together (:mod:`..belief`, :mod:`region_puzzle`,
:mod:`solving`). Several noisy versions of an image make one clean version (:mod:`versions`).
"""

from keyhole.attacks.jigsaw.regions.cells import Cells, average_planes, build_cells, reorder_pieces
from keyhole.attacks.jigsaw.regions.planes import match_planes
from keyhole.attacks.jigsaw.regions.region_puzzle import compute_region_beliefs
from keyhole.attacks.jigsaw.regions.seams import RegionSeamCosts, compute_region_seam_costs
from keyhole.attacks.jigsaw.regions.solving import Solution, solve
from keyhole.attacks.jigsaw.regions.thumbnails import build_thumbnail
from keyhole.attacks.jigsaw.regions.versions import combine_versions

__all__ = [
    "Cells",
    "RegionSeamCosts",
    "Solution",
    "average_planes",
    "build_cells",
    "build_thumbnail",
    "combine_versions",
    "compute_region_beliefs",
    "compute_region_seam_costs",
    "match_planes",
    "reorder_pieces",
    "solve",
]
