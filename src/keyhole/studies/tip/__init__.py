"""Targeted interpretable perturbation: Tables 1 and 2, Figure 3, and who looks past the noise."""

from pathlib import Path

from keyhole.studies.base import Study
from keyhole.studies.tip import curves, front
from keyhole.studies.tip.heatmaps import heat_map_pieces
from keyhole.studies.tip.inversion import all_inversions
from keyhole.studies.tip.tables import tables


def draw(results: Path, out: Path) -> list[Path]:
    """Figure 3, and privacy against accuracy."""
    return [*curves.draw(results, out), *front.draw(results, out)]


STUDY = Study(
    name="tip",
    title="Targeted interpretable perturbation",
    paper="Wang and Su 2025 (TIP)",
    pieces=(
        *all_inversions(),
        *heat_map_pieces(),
        *curves.all_curves(),
        *front.all_utilities(),
    ),
    tables=tables,
    draw=draw,
)
