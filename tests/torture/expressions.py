"""Names with parameters, as people type them on the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import ClassVar

from keyhole.attacks import ATTACKS
from keyhole.attacks.membership import MEMBERSHIP
from keyhole.data.image_set import parse_size
from keyhole.defenses import DEFENSES
from keyhole.federation import PARTITIONS
from keyhole.parameters import read_parameters
from keyhole.registry import Registry
from keyhole.spelling import split_names
from torture.fuzzing import Fuzzer
from torture.mutations import spoil_text

REGISTRIES: tuple[Registry[object], ...] = (DEFENSES, ATTACKS, MEMBERSHIP, PARTITIONS)
VALUES = (
    *("1", "-1", "0", "1e309", "-1e309", "1e-400", "{[]:1}", "{}", "[]", "()", "None", "True"),
    *("'a'", "b'a'", "1j", "...", "{1}", "[1e309]", "'\\0'", "-" * 3000 + "1", "9" * 5000),
    *("(" * 200, "[" * 2000, "0x1F", "1_0", "1if 1else 2", "lambda: 1", "__import__('os')", "x"),
    *("f'{1}'", "*[1]", "**{}", "1, 2", "'a' 'b'", "not 1", "~1", "[i for i in (1,)]", "x:=1"),
)
PARTS = (*VALUES, "(", ")", "=", ",", "[", "]", "{", "'", "sigma=1", "lr=0.1", "iterations=3")


class Expressions(Fuzzer):
    name: ClassVar[str] = "expressions"

    def run(self, draw: random.Random, folder: Path) -> None:
        registry = draw.choice(REGISTRIES)
        member = draw.choice(registry.names())
        fields = list(read_parameters(registry[member]()))
        if draw.random() < 0.5 and fields:
            text = f"{member}({draw.choice(fields)}={draw.choice(VALUES)})"
        else:
            known = ", ".join(f"{k}={v!r}" for k, v in read_parameters(registry[member]()).items())
            text = spoil_text(draw, f"{member}({known})", PARTS)
        for part in split_names(text):
            made = registry.parse(part)
            json.dumps(read_parameters(made), allow_nan=False)
        parse_size(spoil_text(draw, draw.choice(["224", "112x92"]), ("x", "-", "9" * 5000, "²")))
