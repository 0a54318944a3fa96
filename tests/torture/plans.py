"""Plans: TOML files whose values, keys or bytes are not as they should be."""

from __future__ import annotations

import json
import math
import random
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import torch

from keyhole.auditing.plan import Plan, Stage, read_plan
from keyhole.auditing.resolve import resolve_stage
from torture.fuzzing import Fuzzer
from torture.mutations import NUMBERS, TEXTS, nasty_value, spoil_bytes, spoil_text

PARTS = (
    *("[", "]", "[[", "]]", "=", '"', "'''", "\n", "#", "inf", "nan", "-1", "9" * 5000, "1e400"),
    *("[" * 3000, "{a=" * 3000, "a." * 3000, "2023-13-45", "1979-05-27", "\\u0000", "[[stage]]"),
)
SMALL = {"mlp", "lenet"}
BUILT_IN = {"digits", "faces"}


class Plans(Fuzzer):
    name: ClassVar[str] = "plans"

    def prepare(self) -> None:
        room = resources.files("keyhole.auditing")
        self.text = room.joinpath("tour.toml").read_text(encoding="utf-8")

    def run(self, draw: random.Random, folder: Path) -> None:
        path = folder / "plan.toml"
        match draw.randrange(4):
            case 0:
                path.write_bytes(spoil_bytes(draw, self.text.encode()))
            case 1:
                path.write_text(spoil_text(draw, self.text, PARTS), encoding="utf-8")
            case _:
                path.write_text(written_out(draw), encoding="utf-8")
        plan = read_plan(path).with_all(victims=draw.choice([None, 1, 2]))
        json.dumps(plan.to_json(), allow_nan=False)
        for stage in plan.stage:
            if is_small(stage):
                resolve_stage(stage, seed=plan.seed, data_dir=None, device=torch.device("cpu"))


def is_small(stage: Stage) -> bool:
    """Whether a stage can be set up at once."""
    size = stage.image_size is None or (isinstance(stage.image_size, int) and stage.image_size < 64)
    few = stage.victims * stage.batch_size <= 16 and stage.repeats <= 4
    named = stage.model in SMALL and stage.data in BUILT_IN
    return named and size and few and stage.captured is None and stage.weights is None


def written_out(draw: random.Random) -> str:
    """A plan with some of its keys, and one value in it that does not belong there."""
    names = draw.sample(sorted(Stage.model_fields), draw.randrange(4))
    stage: dict[str, Any] = {"model": "mlp", "data": "digits", "attacks": ["linear"], "victims": 1}
    for name in names:
        stage[name] = draw.choice([nasty_value(draw), draw.choice(NUMBERS), draw.choice(TEXTS)])
    head = {draw.choice([*Plan.model_fields, "sead"]): nasty_value(draw)}
    head = head if draw.random() < 0.3 and "stage" not in head else {}
    lines = [f"{key} = {toml(value)}" for key, value in head.items()]
    return "\n".join([*lines, "[[stage]]", *(f"{k} = {toml(v)}" for k, v in stage.items())])


def toml(value: Any) -> str:
    """A JSON value in TOML's letters; None, which TOML has not, as an empty list."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(toml(v) for v in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "inf"
    return "[]" if value is None else json.dumps(value)
