from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import PCA
from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.report.vit_pictures import (
    accumulated_curves,
    attention_overlay,
    overlaid,
    patch_attention,
    pca,
    place_colours,
    position_projection,
    turned,
)

GRID = (4, 6)
TABLES = {name: torch.randn(24, 10) for name in ("plain", "MJP")}
IMAGES = torch.rand(2, 3, 32, 48)


def maps(heads: int = 2, prefix: int = 1) -> Tensor:
    return torch.rand(2, heads, 24 + prefix).softmax(-1)


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
    single = width(position_projection(one, GRID, path))
    assert width(position_projection(TABLES, GRID, path)) > single
    width(accumulated_curves(TABLES, path))
    narrow = width(attention_overlay(IMAGES, {"plain": maps()}, GRID, path))
    assert width(attention_overlay(IMAGES, {"plain": maps(), "MJP": maps()}, GRID, path)) > narrow


def test_grey_images_are_shown_too(tmp_path: Path) -> None:
    path = tmp_path / "grey.png"
    width(attention_overlay(IMAGES[:, :1], {"plain": maps()}, GRID, path))


def test_the_same_figure_is_written_to_the_byte(tmp_path: Path) -> None:
    once, again = (accumulated_curves(TABLES, tmp_path / f"{i}.png") for i in range(2))
    assert once.read_bytes() == again.read_bytes()


def test_umap_adds_a_line_of_panels_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Umap:
        def __init__(self, **options: object) -> None:
            assert options["random_state"] == 0

        def fit_transform(self, rows: np.ndarray) -> np.ndarray:
            return rows[:, :2]

    without = position_projection(TABLES, GRID, tmp_path / "without.png")
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Umap))
    both = position_projection(TABLES, GRID, tmp_path / "both.png")
    with Image.open(without) as one, Image.open(both) as two:
        assert two.height == 2 * one.height


def test_the_plane_is_scikit_learns() -> None:
    table = TABLES["plain"]
    expected = PCA(2, svd_solver="full").fit_transform(table.double().numpy())
    found = pca(table).numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-8)


@pytest.mark.parametrize("mirror", [1.0, -1.0])
@pytest.mark.parametrize("angle", [0.0, 0.7, 2.5])
def test_points_are_turned_to_lie_as_the_patches_do(angle: float, mirror: float) -> None:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    places = torch.stack([columns, rows], dim=-1).view(-1, 2).double()
    c, s = np.cos(angle), np.sin(angle)
    hidden = places @ torch.tensor([[c, -s], [s, c]]) * torch.tensor([mirror, 1.0]) + 3
    torch.testing.assert_close(turned(hidden, GRID), places - places.mean(0))


def test_no_other_turn_brings_points_nearer_to_their_patches() -> None:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    places = torch.stack([columns - 2.5, rows - 1.5], dim=-1).view(-1, 2).double()
    points = places @ torch.tensor([[0.2, 1.0], [0.6, -0.9]]).double() + 0.3 * torch.randn(24, 2)
    centred, found = points - points.mean(0), turned(points, GRID)
    angles = torch.linspace(0, 2 * torch.pi, 721, dtype=torch.double)
    for mirror in (1.0, -1.0):
        cos, sin = angles.cos(), angles.sin()
        turns = torch.stack([cos, -sin * mirror, sin, cos * mirror], -1).view(-1, 2, 2)
        gaps = (centred @ turns - places).square().sum((1, 2))
        assert float((found - places).square().sum()) <= float(gaps.min()) + 1e-9


def test_turning_keeps_distances() -> None:
    points = torch.randn(24, 2, dtype=torch.double)
    torch.testing.assert_close(torch.pdist(turned(points, GRID)), torch.pdist(points))


def test_every_place_has_a_colour_of_its_own() -> None:
    colours = place_colours((14, 14))
    assert colours.shape == (14, 14, 3)
    assert colours.min() >= 0
    assert colours.max() <= 1
    assert float(torch.pdist(colours.flatten(0, 1)).min()) > 0.01
    brightness = colours.mean((1, 2))
    assert (brightness.diff() > 0).all(), "rows grow lighter, for eyes that see no hue"


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_attention_is_told_in_multiples_of_an_even_spread(prefix: int) -> None:
    even = torch.full((2, 3, 24 + prefix), 1 / (24 + prefix))
    torch.testing.assert_close(patch_attention(even, GRID, 2), torch.ones(2, *GRID).double())


def test_prefix_tokens_are_left_out_and_patches_lie_row_by_row() -> None:
    given = torch.zeros(1, 1, 25)
    given[..., 0], given[..., 1 + 6 * 2 + 5] = 0.9, 0.1
    found = patch_attention(given, GRID, 1)[0]
    assert found.nonzero().tolist() == [[2, 5]]
    assert float(found[2, 5]) == pytest.approx(0.1 * 25)


def test_heat_is_drawn_where_attention_is() -> None:
    grey = torch.full((3, 32, 48), 0.5)
    heat = torch.zeros(GRID, dtype=torch.double)
    heat[0, 0] = 1.0
    found = overlaid(grey, heat)
    assert found.shape == (3, 32, 48)
    colourful = found.std(0)
    assert float(colourful[:4, :4].mean()) > 0.1
    assert float(colourful[16:, 24:].max()) < 0.01


@pytest.mark.parametrize("shape", [(23, 10), (24,), (24, 1)], ids=str)
def test_tables_that_do_not_fill_the_grid_are_refused(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(DoesNotFit, match="does not fill"):
        position_projection({"odd": torch.randn(shape)}, GRID, tmp_path / "none.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(2, 2, 23), (1, 2, 25), (2, 25)], ids=str)
def test_maps_that_do_not_fit_the_images_are_refused(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(DoesNotFit, match="does not show 2 images"):
        attention_overlay(IMAGES, {"odd": torch.rand(shape)}, GRID, tmp_path / "none.png")
