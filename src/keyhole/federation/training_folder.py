"""The folder of a federated training: checkpoints, exact resume, a record of every round.

OUT/plan.json               what is trained
OUT/checkpoint.safetensors  the global weights after the last round, and what clients remember
OUT/rounds.jsonl            one line a round: accuracy, loss, update norms, seconds, telemetry
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keyhole.atomic import (
    add_line,
    is_half,
    read_json,
    remove_tree,
    sweep,
    write_json,
    write_tensors,
    write_text,
)
from keyhole.errors import BadUpdate, RunFolderError, one_line
from keyhole.federation.fedavg import Federation, Round
from keyhole.federation.plan import TrainingPlan
from keyhole.federation.together import Together
from keyhole.lock import LOCK
from keyhole.update import read_safetensors

PLAN, CHECKPOINT, ROUNDS = "plan.json", "checkpoint.safetensors", "rounds.jsonl"
MARK = "partition"
"""What tells a training's plan from those of audits and membership runs."""
TRAINED = "clients_trained"
"""What a plan says in its folder besides: whether clients are trained together or one by one."""


class TrainingFolder:
    """A training's folder; one file holds all that is needed to go on."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def checked(cls, root: Path, plan: TrainingPlan, *, fresh: bool) -> TrainingFolder:
        """The folder for this plan, if it may be used; more rounds than before may be asked."""
        path = root / PLAN
        if root.exists() and not root.is_dir():
            raise RunFolderError(f"{root} is not a folder: choose another --out")
        if path.is_file():
            check_planned(path, plan, fresh=fresh)
        elif root.is_dir():
            check_unplanned(root, fresh=fresh)
        return cls(root)

    def begin(self, plan: TrainingPlan, federation: Federation, *, fresh: bool) -> int:
        """Takes up an earlier run, or starts one; returns the rounds done.

        The plan is there before all else and goes last: without it, nobody knows whose files lie
        here.
        """
        if fresh:
            for name in (CHECKPOINT, ROUNDS):
                remove_tree(self.root / name)
        begun = (self.root / CHECKPOINT).is_file()
        done = self.resume(federation) if begun else 0
        how = "one by one" if federation.together is None else "together"
        write_json(self.root / PLAN, plan.to_json() | {TRAINED: how})
        sweep(self.root, below=False)
        if not begun:
            write_text(self.root / ROUNDS, "")
            self.checkpoint(federation, 0, None)
        return done

    def resume(self, federation: Federation) -> int:
        """Puts ``federation`` where the last checkpoint was; returns the rounds done."""
        path = self.root / CHECKPOINT
        try:
            tensors, header = read_safetensors(path)
            federation.model.load_state_dict(tensors)
            facts = json.loads(header["facts"])
            federation.memory = {int(client): kept for client, kept in facts["memory"].items()}
            federation.together = Together() if facts["together"] else None
            done = int(facts["round"])
            kept_lines = [line for line in self.lines() if line["round"] < done]
        except (BadUpdate, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunFolderError(
                f"{path} is not the checkpoint of this training ({one_line(error)}): replace it "
                "with --fresh"
            ) from None
        kept_lines += [facts["record"]] if done else []
        write_text(self.root / ROUNDS, "".join(json.dumps(line) + "\n" for line in kept_lines))
        return done

    def keep(self, federation: Federation, seen: Round) -> None:
        """Appends to the record, then replaces the checkpoint."""
        line = seen.telemetry()
        add_line(self.root / ROUNDS, json.dumps(line))
        self.checkpoint(federation, seen.number, line)

    def checkpoint(
        self, federation: Federation, number: int, record: dict[str, Any] | None
    ) -> None:
        """All that is needed to go on after round ``number``, in one file."""
        facts = {
            "round": number,
            "record": record,
            "memory": federation.memory,
            "together": federation.together is not None,
        }
        write_tensors(
            self.root / CHECKPOINT, federation.model.state_dict(), {"facts": json.dumps(facts)}
        )

    def lines(self) -> list[dict[str, Any]]:
        """What is on record; a line that was being written at a kill does not count."""
        path = self.root / ROUNDS
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found


def check_planned(path: Path, plan: TrainingPlan, *, fresh: bool) -> None:
    """Refuses a folder whose plan is another one, unless that is a training's and ``fresh``.

    A plan that cannot be read may be replaced.
    """
    try:
        found = read_json(path)
    except RunFolderError:
        if fresh:
            return
        raise
    if not isinstance(found, dict) or MARK not in found:
        raise RunFolderError(f"{path.parent} holds another run, no training: choose another --out")
    wanted = {k: v for k, v in plan.to_json().items() if v is not None}
    same = {k: v for k, v in found.items() if v is not None and k != TRAINED}
    if same | {"rounds": plan.rounds} != wanted and not fresh:
        raise RunFolderError(
            f"{path.parent} holds another training: choose another --out, or replace it with "
            "--fresh"
        )


def check_unplanned(root: Path, *, fresh: bool) -> None:
    """Refuses a folder without a plan, unless a killed training of ours left all its files."""
    files = [path for path in root.iterdir() if path.is_file() and not is_half(path)]
    parts = [path for path in files if path.name != LOCK]
    if any(not is_part(path) for path in parts):
        raise RunFolderError(f"{root} holds other files: choose another --out")
    if parts and not fresh:
        raise RunFolderError(
            f"{root} holds parts of a training but no {PLAN}: choose another --out, or replace "
            "them with --fresh"
        )


def is_part(path: Path) -> bool:
    """Whether a training of ours has written this file."""
    if path.name == CHECKPOINT:
        return "facts" in read_safetensors(path)[1]
    return path.name == ROUNDS
