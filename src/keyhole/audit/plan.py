"""What an audit is to do: models x data x defenses x attackers, as text that can be repeated."""

from __future__ import annotations

import hashlib
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from keyhole.data.normalisation import Deviations, Means, check_both
from keyhole.errors import BadValue, one_line
from keyhole.models.modes import ClientMode
from keyhole.registry import split_names
from keyhole.settings import Count, Seed, checked
from keyhole.untrusted import check_depth, read_regular

AUTO = "auto"
"""Every closed form that applies and does not need the server to alter the model; where none of
them reads images also IG, GIFD (for images of its generator's shape), the attacks the defense was
published with and those that know it."""

Names = tuple[str, ...]


class Stage(BaseModel):
    """One model on one data set, under some defenses, before some attacks.

    ``batch_size`` images make a client's batch; each client is one victim. Without ``lr`` clients
    share the gradient of one step, with it the change of their weights after ``steps`` steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "mlp"
    data: str = "faces"
    image_size: str | int | None = None
    weights: Path | None = None
    mean: Means | None = None
    """Of pixels in [0, 1], for the model's inputs: one number, or one per channel; with ``std``.
    None: as a captured folder says, else the data set's own, which is an assumption."""
    std: Deviations | None = None
    defenses: Annotated[Names, Field(min_length=1)] = ("none",)
    attacks: Annotated[Names, Field(min_length=1)] = (AUTO,)
    victims: Count = 4
    batch_size: Count = 1
    steps: Count = 1
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    client_mode: ClientMode | None = None
    """None: train, or what a captured folder says; a batch norm that would see one image only
    keeps to its running statistics."""
    repeats: Count = 1
    """How often a client sends an update by the same images; attacks may combine them."""
    checkpoint_epoch: Annotated[int, Field(ge=0, lt=2**31)] = 0
    iterations: Count | None = None
    """Of every iterative attack; None: its own."""
    captured: Path | None = None
    """A folder that a curious server wrote: its updates are attacked, nobody trains."""
    rounds: str | None = None
    """Of the captured ones: ``1,3`` or ``all``; None: the first."""
    nodes: str | None = None
    """Captured clients, by name; None: the first ``victims`` of a round."""
    truth: Path | None = None
    """Whose images were whose, if the captured folder does not say so itself."""
    parity: Literal["paper"] | None = None
    """``paper``: iterative attacks with the settings of their papers, which take far longer."""

    @field_validator("defenses", "attacks", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(split_names(value)) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _both(self) -> Stage:
        check_both(self.mean, self.std)
        return self


class Plan(BaseModel):
    """Stages that share a seed. The same plan gives the same findings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = "Audit"
    seed: Seed = 0
    stage: Annotated[tuple[Stage, ...], Field(min_length=1)]

    def with_all(self, **values: Any) -> Plan:
        """The plan with these values in every stage, ``seed`` in itself; None changes nothing."""
        given = {k: v for k, v in values.items() if v is not None}
        seed = given.pop("seed", self.seed)
        stages = [checked(Stage, {**s.model_dump(exclude_unset=True), **given}) for s in self.stage]
        return checked(Plan, {"title": self.title, "seed": seed, "stage": tuple(stages)})

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """Eight hex digits that tell this plan from others."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def read_plan(path: Path) -> Plan:
    """A plan from a TOML file: ``seed = 0`` and any number of ``[[stage]]`` tables.

    A plan can name code (``model = "package:function"``), which the audit imports and runs.
    """
    try:
        values = tomllib.loads(read_regular(path, LONGEST).decode("utf-8"))
        check_depth(values)
    except FileNotFoundError:
        raise BadValue(f"{path} does not exist: name a TOML file with [[stage]] tables") from None
    except RecursionError:
        raise BadValue(f"{path} cannot be read as TOML (its lists lie too deep)") from None
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise BadValue(f"{path} cannot be read as TOML ({why})") from None
    return checked(Plan, values, where=f" in {path}", inner=Stage.model_fields)


LONGEST = 1 << 20
"""Bytes of a plan."""


def tour() -> Plan:
    """The built-in tour: images that ship with Keyhole's dependencies, about half a minute."""
    text = resources.files("keyhole.audit").joinpath("tour.toml").read_text(encoding="utf-8")
    return Plan(**tomllib.loads(text))
