from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA

from keyhole.errors import DoesNotFit
from keyhole_studies.mjp.vit_pictures import (
    colour_grid,
    draw_positions,
    draw_variances,
    project_by_pca,
    turn_to_grid,
)

GRID = (4, 6)
TABLES = {name: torch.randn(24, 10) for name in ("plain", "MJP")}


def width(path: Path) -> int:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert np.asarray(picture).std() > 5, "something is drawn"
        return picture.width


@pytest.fixture(autouse=True)
def no_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)


def test_every_figure_is_a_picture_and_grows_with_what_it_shows(tmp_path: Path) -> None:
    path, one = tmp_path / "new" / "figure.png", {"plain": TABLES["plain"]}
    single = width(draw_positions(one, GRID, path))
    assert width(draw_positions(TABLES, GRID, path)) > single
    width(draw_variances(TABLES, path))


def test_the_same_figure_is_written_to_the_byte(tmp_path: Path) -> None:
    once, again = (draw_variances(TABLES, tmp_path / f"{i}.png") for i in range(2))
    assert once.read_bytes() == again.read_bytes()


def test_umap_adds_a_line_of_panels_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Umap:
        def __init__(self, **options: object) -> None:
            assert options["random_state"] == 0

        def fit_transform(self, rows: np.ndarray) -> np.ndarray:
            return rows[:, :2]

    without = draw_positions(TABLES, GRID, tmp_path / "without.png")
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Umap))
    both = draw_positions(TABLES, GRID, tmp_path / "both.png")
    with Image.open(without) as one, Image.open(both) as two:
        assert two.height == 2 * one.height


def test_the_plane_is_scikit_learns() -> None:
    table = TABLES["plain"]
    expected = PCA(2, svd_solver="full").fit_transform(table.double().numpy())
    found = project_by_pca(table).numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-8)


@pytest.mark.parametrize("mirror", [1.0, -1.0])
@pytest.mark.parametrize("angle", [0.0, 0.7, 2.5])
def test_points_are_turned_to_lie_as_the_patches_do(angle: float, mirror: float) -> None:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    places = torch.stack([columns, rows], dim=-1).view(-1, 2).double()
    c, s = np.cos(angle), np.sin(angle)
    hidden = places @ torch.tensor([[c, -s], [s, c]]) * torch.tensor([mirror, 1.0]) + 3
    torch.testing.assert_close(turn_to_grid(hidden, GRID), places - places.mean(0))


def test_no_other_turn_brings_points_nearer_to_their_patches() -> None:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    places = torch.stack([columns - 2.5, rows - 1.5], dim=-1).view(-1, 2).double()
    points = places @ torch.tensor([[0.2, 1.0], [0.6, -0.9]]).double() + 0.3 * torch.randn(24, 2)
    centred, found = points - points.mean(0), turn_to_grid(points, GRID)
    angles = torch.linspace(0, 2 * torch.pi, 721, dtype=torch.double)
    for mirror in (1.0, -1.0):
        cos, sin = angles.cos(), angles.sin()
        turns = torch.stack([cos, -sin * mirror, sin, cos * mirror], -1).view(-1, 2, 2)
        gaps = (centred @ turns - places).square().sum((1, 2))
        assert float((found - places).square().sum()) <= float(gaps.min()) + 1e-9


def test_turning_keeps_distances() -> None:
    points = torch.randn(24, 2, dtype=torch.double)
    torch.testing.assert_close(torch.pdist(turn_to_grid(points, GRID)), torch.pdist(points))


def test_every_place_has_a_colour_of_its_own() -> None:
    colours = colour_grid((14, 14))
    assert colours.shape == (14, 14, 3)
    assert colours.min() >= 0
    assert colours.max() <= 1
    assert float(torch.pdist(colours.flatten(0, 1)).min()) > 0.01
    brightness = colours.mean((1, 2))
    assert (brightness.diff() > 0).all(), "rows grow lighter, for eyes that see no hue"


@pytest.mark.parametrize("shape", [(23, 10), (24,), (24, 1)], ids=str)
def test_tables_that_do_not_fill_the_grid_are_refused(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(DoesNotFit, match="does not fill"):
        draw_positions({"odd": torch.randn(shape)}, GRID, tmp_path / "none.png")
    assert not list(tmp_path.iterdir())
