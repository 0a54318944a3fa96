"""A plan that lists values: one audit for each combination of them.

A list may stand wherever a plan has one value: ``seed = [0, 1, 2]``, ``batch_size = [1, 8]`` or
``model = ["mlp", "lenet"]`` in a stage, and ``gaussian(sigma=[1e-5, 1e-4])`` in a name.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.auditing.plan import Plan, Stage, make_plan, read_plan_values
from keyhole.errors import BadValue
from keyhole.spelling import (
    expand_lists,
    parse_call,
    shorten,
    spell,
    split_names,
    split_outside_brackets,
    unknown_name,
)

NAMES = ("defenses", "attacks")
"""Fields of a stage that hold several names in any plan."""
VECTORS = ("metrics", "mean", "std")
"""Fields of a stage whose lists are one value."""
SEED = "seed"
MOST = 100_000
"""Settings of a plan, at most: each defense before each attack, in each stage, with each seed."""


@dataclass(frozen=True)
class Sweep:
    """All audits of a plan.

    Args:
        plans: One plan without lists for each seed.
        swept: The parameters of which the plan lists several values: ``seed``, ``batch_size``,
            ``gaussian.sigma``.
    """

    plans: tuple[Plan, ...]
    swept: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The heading of the page."""
        return self.plans[0].title

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, one or more."""
        return tuple(plan.seed for plan in self.plans)

    def to_json(self) -> dict[str, Any]:
        """The plan without lists as JSON holds it; with seeds and parameters if there are any."""
        plain = self.plans[0].to_json()
        return plain | (
            {"seeds": list(self.seeds), "swept": list(self.swept)} if self.swept else {}
        )

    @property
    def digest(self) -> str:
        """Eight hex digits that identify the plan."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def read_sweep(path: Path) -> Sweep:
    """A plan from a TOML file, in which lists may stand for single values.

    Args:
        path: The file.
    """
    return expand_plan(read_plan_values(path), where=f" in {path}")


def expand_plan(values: Mapping[str, Any], *, where: str = "") -> Sweep:
    """The audits of a plan whose values may be lists.

    Args:
        values: The fields of a plan by name; its stages are mappings.
        where: Where they were written, for errors: `` in plan.toml``.
    """
    stages = read_stages(values, where)
    listed = values.get(SEED, 0)
    seeds = check_list(listed, SEED, where) if isinstance(listed, list | tuple) else [listed]
    swept: list[str] = [SEED] if len(seeds) > 1 else []
    expanded: list[dict[str, Any]] = []
    settings = 0
    for stage in stages:
        choices = list_choices(stage, swept, where)
        settings += len(seeds) * count_settings(choices)
        if settings > MOST:
            raise BadValue(f"stage{where}: more than {MOST:,} settings: list fewer values")
        expanded += combine_choices(choices)
    plans = [
        make_plan({**values, SEED: seed, "stage": expanded}, where=where)
        for seed in dict.fromkeys(seeds)
    ]
    return Sweep(tuple(plans), tuple(dict.fromkeys(swept)))


def read_stages(values: Mapping[str, Any], where: str) -> Sequence[Mapping[str, Any]]:
    """The tables of a plan's stages; raises where there are none, or something else."""
    for name in values:
        if name not in Plan.model_fields:
            raise unknown_name(f"key{where}", name, Plan.model_fields)
    stages: Any = values.get("stage")
    if not isinstance(stages, list | tuple) or not stages:
        raise BadValue(f"stage{where}: write one [[stage]] table or more")
    for each in stages:
        if not isinstance(each, Mapping):
            raise BadValue(f"stage{where}: write [[stage]] tables, got {shorten(each)}")
    return list(stages)


def list_choices(stage: Mapping[str, Any], swept: list[str], where: str) -> dict[str, list[Any]]:
    """The values of each field of a stage; notes those of which there are several in ``swept``."""
    choices: dict[str, list[Any]] = {}
    for name, value in stage.items():
        if name in NAMES:
            check_not_empty(value, name, where)
            choices[name] = [expand_names(value, swept)]
        elif name in VECTORS or name not in Stage.model_fields:
            choices[name] = [value]
        else:
            found = check_list(value, name, where) if isinstance(value, list) else [value]
            if name == "model":
                found = expand_each(found, swept)
            if isinstance(value, list) and len(value) > 1:
                swept.append(name)
            choices[name] = found
    return choices


def count_settings(choices: Mapping[str, Sequence[Any]]) -> int:
    """How many settings a stage has, before they are built: a list may be far too long."""
    names = [choices[name][0] for name in NAMES if name in choices]
    listed = [len(each) for each in names if isinstance(each, tuple)]
    return math.prod([*map(len, choices.values()), *listed])


def combine_choices(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """One stage for each combination of the listed values."""
    return [
        dict(zip(choices, chosen, strict=True)) for chosen in itertools.product(*choices.values())
    ]


def expand_names(value: Any, swept: list[str]) -> Any:
    """Names with one value for each parameter; a value of another type is returned as it is."""
    if isinstance(value, str):
        value = split_names(value)
    if not isinstance(value, list | tuple):
        return value
    return tuple(expand_each(value, swept))


def expand_each(names: Sequence[Any], swept: list[str]) -> list[Any]:
    found: list[Any] = []
    for name in names:
        text = spell_table(name)
        if not isinstance(text, str):
            found.append(text)
            continue
        found += expand_lists(text)
        for each in split_outside_brackets(text, "+"):
            part, values = parse_call(each)
            swept += [f"{part}.{key}" for key, v in values.items() if isinstance(v, list) and v[1:]]
    return found


def spell_table(value: Any) -> Any:
    """A table ``{name = "gaussian", sigma = [1e-5, 1e-4]}`` as a text; other values as they are.

    >>> spell_table({"name": "gaussian", "sigma": [1e-5, 1e-4]})
    'gaussian(sigma=[1e-05, 0.0001])'
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return value
    parameters = {key: each for key, each in value.items() if key != "name"}
    return spell(value["name"], parameters, off=parameters)


def check_list(values: Sequence[Any], name: str, where: str) -> list[Any]:
    """A list's values, each once; raises where it is empty."""
    check_not_empty(values, name, where)
    if any(isinstance(value, list | dict) for value in values):
        raise BadValue(f"{name.replace('_', '-')}{where}: a list in a list, {shorten(values)}")
    return list(dict.fromkeys(values))


def check_not_empty(values: Any, name: str, where: str) -> None:
    """Raises where a list is empty."""
    if isinstance(values, list | tuple) and not values:
        raise BadValue(f"{name.replace('_', '-')}{where}: an empty list: write one value or more")
