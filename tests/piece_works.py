"""Work for pieces in tests: small, and told by its values what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole.errors import BadValue
from keyhole.scale import Piece, Workspace, build_piece


def square(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """Counts in its folder how often it was called."""
    with (space.folder / "calls").open("a") as calls:
        calls.write("x")
    if values.get("refused"):
        raise BadValue("number: too odd")
    if values.get("broken"):
        raise ZeroDivisionError("a defect")
    return {"square": values["number"] ** 2}


def count_slowly(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """Counts to ``steps`` and adds up, writing down each step; says in which steps it began."""
    state, begun = space.folder / "state", space.folder / "begun"
    done, total = (int(word) for word in state.read_text().split()) if state.exists() else (0, 0)
    with begun.open("a") as record:
        record.write(f"{done}\n")
    space.progress.begin(values["steps"])
    space.progress.advance(done)
    while done < values["steps"]:
        time.sleep(values.get("seconds", 0.0))
        done, total = done + 1, total + values["number"] * (done + 1)
        half = Path(f"{state}.{os.getpid()}.half")
        half.write_text(f"{done} {total}")
        half.replace(state)
        space.progress.advance(1)
    return {"total": total}


def pid(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """The process that it runs in, and the threads that torch may use there."""
    import torch

    time.sleep(values.get("seconds", 0.0))
    return {"pid": os.getpid(), "threads": torch.get_num_threads()}


def squares(*numbers: int, **values: Any) -> list[Piece]:
    return [
        build_piece("piece_works:square", {"number": n, **values}, title=f"square of {n}")
        for n in numbers
    ]
