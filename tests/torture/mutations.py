"""Ways to spoil bytes, text and JSON."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

NUMBERS = (0, -1, 1, 2, 7, 10**6, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.5, 0.5, 1e-300, 1e300)
TEXTS = (
    *("", " ", "\0", "a\nb", "../..", "../../../etc/passwd", "/", "/dev/zero", "a/b", ".", "nan"),
    *("inf", "[/x]", "[red]", "\x1b[2J", "<script>", "{{7*7}}", "%s", "ü\u202e", "none", "1e309"),
    *("'; --", "x" * 5000, "gaussian(sigma=1)", "linear", "naive", "0", "-1", "1,2", "all", "true"),
)


def nasty_value(draw: random.Random, depth: int = 2) -> Any:
    """A JSON value where nobody expects it."""
    kind = draw.randrange(8)
    if kind == 0:
        return draw.choice([None, True, False])
    if kind in (1, 2):
        return draw.choice(NUMBERS)
    if kind in (3, 4):
        return draw.choice(TEXTS)
    if kind == 5 and depth:
        return [nasty_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 6 and depth:
        names = draw.sample(TEXTS, draw.randrange(3))
        return {name: nasty_value(draw, depth - 1) for name in names}
    return draw.choice([[], {}, [[]], [None], {"a": {}}, "NaN"])


def spoil_json(draw: random.Random, value: Any) -> Any:
    """The value with one to three places changed, removed, added, copied or swapped."""
    made = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        made = _spoil_once(draw, made)
    return made


def _spoil_once(draw: random.Random, value: Any) -> Any:
    places = list(_places(value))
    if not places or draw.random() < 0.02:
        return nasty_value(draw)
    holder, name = draw.choice(places)
    match draw.randrange(7):
        case 0:
            del holder[name]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = holder.pop(name)
        case 1:
            holder.insert(draw.randrange(len(holder) + 1), nasty_value(draw))
        case 2:
            other, place = draw.choice(places)
            holder[name] = copy.deepcopy(other[place])
        case 3 if isinstance(holder[name], int | float) and not isinstance(holder[name], bool):
            holder[name] = draw.choice([-1, 0.5, 2, 1000, 1e12]) * holder[name]
        case 4 if isinstance(holder[name], list | dict):
            holder[name] = type(holder[name])()
        case _:
            holder[name] = nasty_value(draw)
    return value


def _places(value: Any) -> Any:
    """Every place inside a value: what holds it, and under which name or number."""
    if isinstance(value, dict | list):
        names = value.keys() if isinstance(value, dict) else range(len(value))
        for name in list(names):
            yield value, name
            if isinstance(value[name], dict | list):
                yield from _places(value[name])


def spoil_bytes(draw: random.Random, content: bytes) -> bytes:
    """Bytes flipped, cut, put in, repeated or replaced; now and then nothing is left."""
    made = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 4, 16])):
        at = draw.randrange(len(made) + 1)
        length = draw.choice([1, 1, 2, 8, 100, 4000])
        match draw.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << draw.randrange(8)
            case 1:
                del made[at:]
            case 2:
                del made[at : at + length]
            case 3:
                made[at:at] = draw.randbytes(length)
            case 4:
                made[at : at + length] = made[:length]
            case 5:
                made[at : at + length] = draw.choice([b"\0", b"\xff", b"9", b"["]) * length
            case _:
                made[at : at + 8] = draw.choice([0, 1, 2**31, 2**63, 2**64 - 1]).to_bytes(8)
    return bytes(made) if draw.random() > 0.01 else b""


def spoil_text(draw: random.Random, text: str, parts: tuple[str, ...]) -> str:
    """Text with letters removed, repeated and swapped, and with some of ``parts`` put in."""
    made = text
    for _ in range(draw.choice([1, 1, 2, 3])):
        at = draw.randrange(len(made) + 1)
        to = min(len(made), at + draw.choice([0, 1, 1, 5, 20]))
        match draw.randrange(4):
            case 0:
                made = made[:at] + made[to:]
            case 1:
                made = made[:to] + made[at:]
            case 2:
                made = (
                    made[:at] + chr(draw.choice([0, 9, 10, 34, 39, 92, 233, 0x1F600])) + made[to:]
                )
            case _:
                made = made[:at] + draw.choice(parts) + made[to:]
    return made


def spoil_json_file(draw: random.Random, path: Path) -> None:
    """A JSON file with other values, or with other bytes, or nested too deep."""
    text = path.read_text()
    match draw.randrange(10):
        case 0:
            path.write_bytes(spoil_bytes(draw, text.encode()))
        case 1:
            at = text.find(":") + 1
            deep = draw.choice(["[" * 100_000, "[" * 200 + "]" * 200, "9" * 5000, "1e999", "NaN"])
            path.write_text(text[:at] + deep + text[at:])
        case _:
            path.write_text(json.dumps(spoil_json(draw, json.loads(text))))


def spoil_path(draw: random.Random, path: Path) -> None:
    """A file that is gone, renamed, or something else than a file."""
    match draw.randrange(6):
        case 0:
            path.unlink()
        case 1:
            path.rename(path.with_name(draw.choice(["x", "plan.json", f"{path.name}~"])))
        case 2:
            path.unlink()
            path.mkdir()
        case 3:
            path.unlink()
            path.symlink_to(draw.choice(["/dev/zero", "/dev/null", "nowhere", path.name, ".."]))
        case 4:
            path.unlink()
            os.mkfifo(path)
        case _:
            path.write_bytes(b"")
