"""Reads the study's grid from ``cells.toml``: networks x weights x batches x local x servers."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator
from importlib import resources

from pydantic import BaseModel, ConfigDict

from keyhole.settings import make_settings
from keyhole_studies.base import Study
from keyhole_studies.regimes.experiments import (
    Local,
    Network,
    RegimeExperiment,
    Scale,
    Server,
    Settings,
    Weights,
)
from keyhole_studies.regimes.figure import draw_maps
from keyhole_studies.regimes.tables import format_tables


class Grid(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    batches: tuple[int, ...]
    scales: dict[str, Scale]
    networks: dict[str, Network]
    weights: dict[str, Weights]
    local: dict[str, Local]
    servers: dict[str, Server]


def read_grid() -> Grid:
    """The grid of ``cells.toml``."""
    text = resources.files(__package__).joinpath("cells.toml").read_text(encoding="utf-8")
    return make_settings(Grid, tomllib.loads(text), where=" of the cells of study regimes")


def read_regimes(scale: str = "full") -> Study:
    """The study, at one of the scales of ``cells.toml``.

    Args:
        scale: ``full``, or ``quick`` for tests.
    """
    grid = read_grid()
    return Study(
        name=grid.name,
        title=grid.title,
        paper="what is measured here, not a paper's",
        experiments=tuple(unroll(grid, grid.scales[scale])),
        labels={
            "network": {name: each.label for name, each in grid.networks.items()},
            "weights": {name: each.label for name, each in grid.weights.items()},
            "batch": {str(size): str(size) for size in grid.batches},
            "local": {name: each.label for name, each in grid.local.items()},
            "server": {name: each.label for name, each in grid.servers.items()},
        },
        format_tables=format_tables,
        draw_figures=draw_maps,
    )


def unroll(grid: Grid, scale: Scale) -> Iterator[RegimeExperiment]:
    """All experiments: one network after another, small batches first."""
    combined = itertools.product(
        grid.networks.items(),
        grid.weights.items(),
        grid.batches,
        grid.local.items(),
        grid.servers.items(),
    )
    for (net, network), (start, weights), batch, (done, local), (who, server) in combined:
        yield RegimeExperiment(
            name=f"{net}-{start}-b{batch}-{done}-{who}",
            network=net,
            weights=start,
            batch=batch,
            local=done,
            server=who,
            settings=Settings(network, weights, local, server, scale),
        )
