"""Hostile captured folders: each mutation is what one client, or a torn disk, may leave there."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

NUMBERS: tuple[Any, ...] = (
    *(0, -1, -5, 3, 2**31, 2**63, 1e12, 1e300, 10**400, 10**5000, 0.5, -0.0),
    *(float("nan"), float("inf"), float("-inf"), True, False, None),
)
WORDS: tuple[str, ...] = (
    *("", " ", ".", "..", "/", "../../etc/passwd", "/dev/zero", "a/b", "a\\b", "\x00", "\x1b[31m"),
    *(
        "[/x]",
        "[bold]x",
        "<script>",
        "\ud800",
        "\u202e",
        "x" * 10_000,
        "none",
        "auto",
        "all",
        "1,2",
    ),
    *(
        "gaussian(sigma=1e309)",
        "mjp(gamma=0.5)",
        "dp",
        "((((",
        "adam",
        "sleep",
        "224",
        "8x8",
        "0x0",
    ),
)
LARGEST = 1 << 26
"""Bytes of a file that another mutation may read."""
NAMES = (
    *("round", "config", "clients", "lost", "left_out", "node", "file", "examples", "metrics"),
    *(
        "lr",
        "batch-size",
        "local-steps",
        "local-epochs",
        "num-examples",
        "partition-id",
        "momentum",
    ),
    *(
        "optimiser",
        "client-mode",
        "defense",
        "image-size",
        "by-user",
        "run",
        "about",
        "mean",
        "std",
    ),
)


def mutate(folder: Path, rng: random.Random) -> str:
    """Damages a captured folder in one way, or a few; says how."""
    return "; ".join(_mutate_once(folder, rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _mutate_once(folder: Path, rng: random.Random) -> str:
    kind = rng.choice((_facts, _facts, _facts, _text, _tensors, _tensors, _bytes, _file, _place))
    file = _some_file(folder, rng, kind)
    return f"{kind.__name__.strip('_')} of {file.relative_to(folder)}: {kind(file, rng)}"


def _some_file(folder: Path, rng: random.Random, kind: Callable[..., str]) -> Path:
    suffix = {_facts: ".json", _text: ".json", _tensors: ".safetensors"}.get(kind, "")
    found = [f for f in folder.rglob(f"*{suffix}") if f.is_file() and not f.is_symlink()]
    files = sorted(f for f in found if f.stat().st_size < LARGEST)
    return rng.choice(files or [folder / "capture.json"])


def _facts(file: Path, rng: random.Random) -> str:
    """Changes one value of a JSON file."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return "nothing"
    if not isinstance(found, dict | list):
        return "nothing"
    place, key = rng.choice(list(_places(found)) or [({}, "x")])
    value = _odd_value(rng)
    if rng.random() < 0.2 and isinstance(place, dict):
        key = rng.choice((*NAMES, *WORDS))
    place[key] = value
    file.write_text(_dumped(found), encoding="utf-8", errors="surrogatepass")
    return f"{str(key)[:30]!r} = {_dumped(value)[:40]}"


def _places(value: Any) -> Any:
    """Every spot of a JSON value that can be set."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(inner):
        yield value, key
        if isinstance(child, dict | list):
            yield from _places(child)


def _odd_value(rng: random.Random) -> Any:
    scalars = (*NUMBERS, *WORDS)
    return rng.choice(
        (
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(WORDS),
            lambda: [rng.choice(scalars) for _ in range(rng.randrange(4))],
            lambda: {rng.choice(NAMES): rng.choice(scalars) for _ in range(rng.randrange(4))},
            lambda: rng.randrange(10**9),
        )
    )()


def _dumped(value: Any) -> str:
    """JSON in which an integer may have any length, which Python itself refuses to write."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(k))}:{_dumped(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_dumped(v) for v in value) + "]"
    if isinstance(value, int) and abs(value) > 10**300:
        return "1" + "0" * (400 if value < 10**401 else 5000)
    return json.dumps(value)


def _text(file: Path, rng: random.Random) -> str:
    """Replaces the text of a JSON file."""
    deep = rng.choice((30, 3000, 300_000))
    texts = {
        "nothing": "",
        "a list": "[]",
        "a number": "3",
        "null": "null",
        f"{deep} deep": "[" * deep + "]" * deep,
        f"{deep} deep objects": '{"a":' * deep + "1" + "}" * deep,
        "half": file.read_text(errors="replace")[: rng.randrange(200)],
        "not UTF-8": None,
    }
    name = rng.choice(list(texts))
    text = texts[name]
    file.write_bytes(b"\xff\xfe\x00{" if text is None else text.encode(errors="replace"))
    return name


def _tensors(file: Path, rng: random.Random) -> str:
    """Changes one tensor of a file, or which there are."""
    try:
        found = load_file(file)
        name = rng.choice(sorted(found))
    except Exception:  # noqa: BLE001  an earlier mutation was there
        return "nothing"
    old = found[name]
    file.unlink()  # copies share it
    changes: dict[str, Callable[[], torch.Tensor | None]] = {
        "gone": lambda: None,
        "nan": lambda: torch.full_like(old, torch.nan) if old.is_floating_point() else old,
        "huge": lambda: torch.full(old.shape, 3e38),
        "doubles": lambda: torch.full(old.shape, 1e300, dtype=torch.double),
        "zeros": lambda: torch.zeros_like(old),
        "bool": lambda: torch.ones(old.shape, dtype=torch.bool),
        "int8": lambda: torch.ones(old.shape, dtype=torch.int8),
        "complex": lambda: torch.ones(old.shape, dtype=torch.complex64),
        "half": lambda: old.half(),
        "bfloat16": lambda: old.bfloat16(),
        "float8": lambda: old.float().to(torch.float8_e4m3fn),
        "empty": lambda: torch.zeros(0),
        "scalar": lambda: torch.tensor(1.0),
        "another shape": lambda: torch.ones(3, 5),
        "transposed": lambda: old.T.contiguous() if old.dim() == 2 else old[None],
    }
    how = rng.choice(list(changes))
    made = changes[how]()
    found = {n: t for n, t in found.items() if n != name}
    if made is not None:
        found[rng.choice((name, name, name, "stranger", "0", "[/x]\x1b"))] = made
    save_file(found, file)
    return f"{name} {how}"


def _bytes(file: Path, rng: random.Random) -> str:
    """Flips, cuts or adds bytes; lies in the header of a safetensors file."""
    whole = bytearray(file.read_bytes())
    file.unlink()
    kind = rng.choice(("flip", "cut", "add", "length", "header", "sparse"))
    if kind == "flip" and whole:
        for _ in range(rng.randrange(1, 20)):
            whole[rng.randrange(min(len(whole), 4000))] = rng.randrange(256)
    elif kind == "cut":
        del whole[rng.randrange(len(whole) + 1) :]
    elif kind == "add":
        whole += rng.randbytes(rng.randrange(1, 1000))
    elif kind == "length":
        whole[:8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1)))
    elif kind == "header":
        whole = bytearray(_lying_header(rng))
    file.write_bytes(whole)
    if kind == "sparse":
        os.truncate(file, rng.choice((2**33, 2**40)))
    return kind


def _lying_header(rng: random.Random) -> bytes:
    shape = rng.choice(([], [0], [2**40], [2**32, 2**32], [-1], [0, 2**62], [1.5]))
    offsets = rng.choice(([0, 8], [8, 0], [0, 2**63], [0, 0], [-1, 1], []))
    kind = rng.choice(("F32", "F64", "I8", "BOOL", "BF16", "F4", "C64", "X", "", 7))
    entry = {"dtype": kind, "shape": shape, "data_offsets": offsets}
    text = json.dumps({rng.choice(("head.bias", "", "x" * 1000)): entry}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


def _file(file: Path, rng: random.Random) -> str:
    """Puts something else in a file's place."""
    file.unlink()
    kind = rng.choice(("nothing", "pipe", "socket", "folder", "device", "link", "loop", "no link"))
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(file.parent)  # a socket's path must be short
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(file.name[:90])
        finally:
            os.chdir(here)
    elif kind == "folder":
        file.mkdir()
    elif kind in ("device", "link", "loop", "no link"):
        target = {"device": "/dev/zero", "link": "/etc/passwd", "loop": file.name}
        file.symlink_to(target.get(kind, "nowhere"))
    return kind


def _place(file: Path, rng: random.Random) -> str:
    """Adds, moves or removes round folders."""
    root = file.parent if (file.parent / "capture.json").exists() else file.parent.parent
    rounds = sorted(f for f in root.glob("round-*") if f.is_dir()) or [root]
    some = rng.choice(rounds)
    name = rng.choice(
        ("round-1", "round-0000", "round-0007", "round-", "round-x", f"round-{10**17}", "round-²")
    )
    target = root / name
    kind = rng.choice(("copy", "move", "file", "empty", "remove"))
    if some == root or (target.exists() and kind != "remove"):
        return "nothing"
    if kind == "copy":
        shutil.copytree(some, target, symlinks=True, ignore=_no_pipes)
    elif kind == "move":
        some.rename(target)
    elif kind == "file":
        target.write_text("no folder")
    elif kind == "empty":
        target.mkdir()
    else:
        shutil.rmtree(some)
    return f"{kind} {some.name} {name}"


def _no_pipes(folder: str, names: list[str]) -> list[str]:
    """Names that cannot be copied: reading a pipe would wait for ever."""
    paths = {name: Path(folder) / name for name in names}
    return [n for n, p in paths.items() if not (p.is_file() or p.is_dir() or p.is_symlink())]
