"""Pictures of where a vision transformer's position embeddings lie."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.data import Size
from keyhole.errors import DoesNotFit
from keyhole_studies.drawing import COLOURS, DASHES, GREY, save_png
from keyhole_studies.mjp.positions import accumulated_eigenvalues, explained_variance

CORNERS = ((0.00, 0.15, 0.40), (0.45, 0.14, 0.00), (0.45, 0.78, 1.00), (1.00, 0.76, 0.30))
"""Columns run from blue to orange, rows from dark to light: RGB at the grid's four corners."""


def draw_positions(tables: Mapping[str, Tensor], grid: Size, path: Path) -> Path:
    """Draws position embeddings in the plane, one panel per table, neighbours in the grid joined.

    By PCA, and in a second line by UMAP where umap-learn is installed. Returns ``path``, a PNG.

    Args:
        tables: Position embeddings ``[N, D]`` by name.
        grid: Rows and columns of the N patches.
        path: The file to write.
    """
    for name, table in tables.items():
        if table.ndim != 2 or len(table) != grid[0] * grid[1] or table.shape[1] < 2:
            shape = tuple(table.shape)
            raise DoesNotFit(f"table {name!r} of shape {shape} does not fill a {grid} grid")
    methods = {"PCA": project_by_pca, **({"UMAP": project_by_umap} if has_umap() else {})}

    def draw(figure: Any) -> None:
        widths = [*(1 for _ in tables), 0.45]
        panels = figure.subplots(
            len(methods), len(widths), squeeze=False, gridspec_kw={"width_ratios": widths}
        )
        for line, (method, project) in zip(panels, methods.items(), strict=True):
            for axes, (name, table) in zip(line, tables.items(), strict=False):
                draw_grid(axes, turn_to_grid(project(table), grid), grid)
                share = f"\n{explained_variance(table, 2):.0%} of variance" * (method == "PCA")
                axes.set_title(f"{name}, {method}{share}")
            draw_key(line[-1], grid)

    return save_png(draw, path, size=(3 * len(tables) + 1.5, 3.4 * len(methods)))


def draw_variances(tables: Mapping[str, Tensor], path: Path) -> Path:
    """Draws the share of variance in the n largest directions of each table ``[N, D]``, over n.

    Returns ``path``, a PNG.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for i, (name, table) in enumerate(tables.items()):
            shares = accumulated_eigenvalues(table)
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
            axes.plot(range(1, len(shares) + 1), shares, label=name, linewidth=2, **style)
        axes.set_xscale("log")
        axes.set_xticks([n for n in (1, 2, 3, 5, 10, 20, 50, 100, 200) if n <= axes.get_xlim()[1]])
        axes.get_xaxis().set_major_formatter("{x:.0f}")
        axes.minorticks_off()
        axes.get_yaxis().set_major_formatter(lambda share, at: f"{share:.0%}")
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("largest directions n of the position embeddings")
        axes.set_ylabel("share of variance")
        axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")

    return save_png(draw, path, size=(5.2, 3.4))


def project_by_pca(table: Tensor) -> Tensor:
    """The rows in the plane of most variance, ``[N, 2]``."""
    rows = table.detach().cpu().double()
    left, values, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    points: Tensor = left[:, :2] * values[:2]
    return points


def has_umap() -> bool:
    try:
        importlib.import_module("umap")
    except ImportError:
        return False
    return True


def project_by_umap(table: Tensor) -> Tensor:
    """The rows in umap-learn's plane, ``[N, 2]``."""
    maker = importlib.import_module("umap").UMAP(n_components=2, random_state=0, n_jobs=1)
    return torch.as_tensor(np.asarray(maker.fit_transform(table.detach().cpu().numpy())))


def turn_to_grid(points: Tensor, grid: Size) -> Tensor:
    """Turns points ``[N, 2]``, and mirrors them if need be, to lie as the patches do in the image.

    Distances stay. The rotation is the nearest one to ``points -> (column, row)`` (Procrustes).
    """
    centred = points.double() - points.double().mean(0)
    rows, columns = torch.meshgrid(*(torch.arange(n).double() for n in grid), indexing="ij")
    places = torch.stack([columns - columns.mean(), rows - rows.mean()], dim=-1).view(-1, 2)
    U, _, Vh = torch.linalg.svd(centred.T @ places)
    lying: Tensor = centred @ (U @ Vh)
    return lying


def draw_grid(axes: Any, points: Tensor, grid: Size) -> None:
    """Draws points, each joined to its right and lower neighbours."""
    placed = points.view(*grid, 2).numpy()
    for along in (placed, placed.transpose(1, 0, 2)):
        for strand in along:
            axes.plot(*strand.T, color=GREY, linewidth=0.5, zorder=1)
    axes.scatter(*points.T, c=colour_grid(grid).flatten(0, 1).numpy(), s=16, zorder=2)
    axes.set_aspect("equal", adjustable="datalim")
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(GREY)


def draw_key(axes: Any, grid: Size) -> None:
    """Draws which colour stands for which place in the image."""
    axes.imshow(colour_grid(grid).numpy())
    axes.set_title("patch in the image")
    axes.set_xlabel(f"{grid[1]} columns")
    axes.set_ylabel(f"{grid[0]} rows")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def colour_grid(grid: Size) -> Tensor:
    """An RGB colour for each place, ``[rows, columns, 3]``: mixed from those of the corners."""
    corners = torch.tensor(CORNERS).T.reshape(1, 3, 2, 2)
    return F.interpolate(corners, grid, mode="bilinear", align_corners=True)[0].permute(1, 2, 0)
