"""Reads the study's grid from ``cells.toml``: defenses x strengths x networks x servers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict

from keyhole.attacks import ATTACKS
from keyhole.auditing import Stage
from keyhole.defenses import DEFENSES
from keyhole.settings import make_settings
from keyhole_studies.base import Experiment, Study
from keyhole_studies.field.experiments import FieldAccuracy, FieldAudit
from keyhole_studies.field.figure import draw_trade
from keyhole_studies.field.tables import format_tables
from keyhole_studies.tip.averaging import FedAvgSettings

STRENGTHS = ("off", "weak", "medium", "strong")


class Strict(BaseModel):
    """A table of ``cells.toml``, without other keys than these."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Clients(Strict):
    """The clients of an audit."""

    victims: int
    batch_size: int


class Scale(Strict):
    """How much is measured."""

    lr: float
    honest: Clients
    malicious: Clients
    training: dict[str, float]
    iterations: int | None = None


class Network(Strict):
    """A network, and the attacks of an honest server on it."""

    model: str
    label: str
    attacks: tuple[str, ...]
    private: str | None = None


class Family(BaseModel):
    """A defense and its strengths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    per_image: bool = False
    off: str | None = None
    weak: str | None = None
    medium: str | None = None
    strong: str | None = None

    def strengths(self) -> Iterator[tuple[str, str]]:
        """The strengths that it has, each with the defense as a user writes it."""
        for strength in STRENGTHS:
            text = getattr(self, strength)
            if text is not None:
                yield strength, text


class Grid(Strict):
    """The whole file."""

    name: str
    title: str
    data: str
    scales: dict[str, Scale]
    networks: dict[str, Network]
    servers: dict[str, tuple[str, ...]]
    defenses: dict[str, Family]


def read_field(scale: str = "full") -> Study:
    """The study, at one of the scales of ``cells.toml``.

    Args:
        scale: ``full``, or ``quick`` for tests.
    """
    text = resources.files(__package__).joinpath("cells.toml").read_text(encoding="utf-8")
    grid = make_settings(Grid, tomllib.loads(text), where=" of the field study's cells")
    return Study(
        name=grid.name,
        title=grid.title,
        paper="what is measured here, not a paper's",
        experiments=tuple(unroll(grid, grid.scales[scale])),
        labels={
            "network": {name: network.label for name, network in grid.networks.items()},
            "defense": {name: family.label for name, family in grid.defenses.items()},
        },
        format_tables=format_tables,
        draw_figures=draw_trade,
    )


def unroll(grid: Grid, scale: Scale) -> Iterator[Experiment]:
    """All experiments, the small network's first, its audits before its trainings."""
    for name, network in grid.networks.items():
        for family, defense in grid.defenses.items():
            model = (network.private or network.model) if defense.per_image else network.model
            for strength, text in defense.strengths():
                about: dict[str, Any] = {"family": family, "strength": strength, "network": name}
                for server, attacks in grid.servers.items():
                    chosen = choose_attacks(attacks or network.attacks, text, alter=bool(attacks))
                    sizes = scale.malicious if attacks else scale.honest
                    yield FieldAudit(
                        name=f"{family}-{strength}-{name}-{server}",
                        stage=Stage(
                            model=model,
                            data=grid.data,
                            defenses=(text,),
                            attacks=chosen,
                            lr=scale.lr,
                            iterations=scale.iterations,
                            victims=sizes.victims,
                            batch_size=sizes.batch_size,
                        ),
                        server=server,
                        **about,
                    )
                yield FieldAccuracy(
                    name=f"{family}-{strength}-{name}-accuracy",
                    defense=text,
                    data=grid.data,
                    settings=make_training(scale, model),
                    **about,
                )


def choose_attacks(own: tuple[str, ...], defense: str, *, alter: bool) -> tuple[str, ...]:
    """A server's own attacks, and those that the defense was published with, each once.

    Args:
        own: The attacks on every defense.
        defense: The defense.
        alter: Whether the server changes the model; attacks that do are left to such a server.
    """
    known = {attack.partition("(")[0] for attack in own}
    published = [
        attack
        for attack in DEFENSES.parse(defense).paper_attacks
        if attack not in known and (ATTACKS.parse(attack).altered_model is not None) == alter
    ]
    return (*own, *published)


def make_training(scale: Scale, model: str) -> FedAvgSettings:
    """How the clients of a training learn; accuracy is taken after the last round alone."""
    rounds = int(scale.training["rounds"])
    whole: dict[str, Any] = {
        k: int(v) for k, v in scale.training.items() if k not in ("momentum", "clip")
    }
    return FedAvgSettings(
        name="field",
        lr=scale.lr,
        momentum=scale.training["momentum"],
        clip=scale.training["clip"],
        model=model,
        every=rounds,
        **whole,
    )
