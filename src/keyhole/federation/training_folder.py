"""The run folder of a federated training: checkpoints, exact resume, a log of every round.

OUT/plan.json               what is trained
OUT/checkpoint.safetensors  the global weights after the last round, and what defenses remember
OUT/rounds.jsonl            one line per round: accuracy, loss, update norms, seconds, telemetry
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keyhole.atomic import (
    append_line,
    is_unfinished,
    read_json,
    remove_tree,
    remove_unfinished,
    write_json,
    write_tensors,
    write_text,
)
from keyhole.errors import BadUpdate, RunFolderError, one_line
from keyhole.federation.choosing import BackendFacts
from keyhole.federation.plan import TrainingPlan
from keyhole.federation.rounds import Federation, Round
from keyhole.lock import LOCK
from keyhole.update import read_safetensors

PLAN, CHECKPOINT, ROUNDS = "plan.json", "checkpoint.safetensors", "rounds.jsonl"
PLAN_KEY = "partition"
"""A key that only a training's plan has; plans of audits and membership runs do not."""
NOTES = ("clients_trained", "precision_used", "steps_run")
"""What ``plan.json`` holds besides the plan: how clients are trained."""

LATER_FIELDS = {"precision": "auto", "compiled": "auto"}
"""Fields that plans of earlier versions do not have."""


class TrainingFolder:
    """The folder of a training; one checkpoint file holds all that is needed to continue."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, root: Path, plan: TrainingPlan, *, fresh: bool) -> TrainingFolder:
        """Returns the folder, or raises if this plan must not use it.

        An existing folder may hold the same plan with another number of rounds.
        """
        path = root / PLAN
        if root.exists() and not root.is_dir():
            raise RunFolderError(f"{root} is not a folder: choose another --out")
        if path.is_file():
            check_same_plan(path, plan, fresh=fresh)
        elif root.is_dir():
            check_no_other_files(root, fresh=fresh)
        return cls(root)

    def begin(self, plan: TrainingPlan, federation: Federation, *, fresh: bool) -> int:
        """Continues an earlier run, or starts a new one; returns the number of rounds done.

        The plan is written first and never removed: it tells whose files lie in the folder.
        """
        if fresh:
            for name in (CHECKPOINT, ROUNDS):
                remove_tree(self.root / name)
        begun = (self.root / CHECKPOINT).is_file()
        done = self.resume(federation) if begun else 0
        notes = BackendFacts.of(federation).notes()
        write_json(self.root / PLAN, plan.to_json() | dict(zip(NOTES, notes, strict=True)))
        remove_unfinished(self.root, below=False)
        if not begun:
            write_text(self.root / ROUNDS, "")
            self.write_checkpoint(federation, 0, None)
        return done

    def resume(self, federation: Federation) -> int:
        """Loads the last checkpoint into ``federation``; returns the number of rounds done."""
        path = self.root / CHECKPOINT
        try:
            tensors, header = read_safetensors(path)
            federation.model.load_state_dict(tensors)
            facts = json.loads(header["facts"])
            federation.memory = {int(client): memory for client, memory in facts["memory"].items()}
            BackendFacts.from_json(facts).apply(federation)
            done = int(facts["round"])
            lines = [line for line in self.read_log() if line["round"] < done]
        except (BadUpdate, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunFolderError(
                f"{path} is not the checkpoint of this training ({one_line(error)}): replace it "
                "with --fresh"
            ) from None
        lines += [facts["record"]] if done else []
        write_text(self.root / ROUNDS, "".join(json.dumps(line) + "\n" for line in lines))
        return done

    def save_round(self, federation: Federation, seen: Round) -> None:
        """Appends the round to the log, then replaces the checkpoint."""
        line = seen.to_json()
        append_line(self.root / ROUNDS, json.dumps(line))
        self.write_checkpoint(federation, seen.number, line)

    def write_checkpoint(
        self, federation: Federation, number: int, line: dict[str, Any] | None
    ) -> None:
        """Writes all that is needed to continue after round ``number``, in one file."""
        facts = {
            "round": number,
            "record": line,
            "memory": federation.memory,
            **BackendFacts.of(federation).to_json(),
        }
        write_tensors(
            self.root / CHECKPOINT, federation.model.state_dict(), {"facts": json.dumps(facts)}
        )

    def read_log(self) -> list[dict[str, Any]]:
        """Returns the log's lines, without one that was cut off by a kill."""
        path = self.root / ROUNDS
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return lines


def check_same_plan(path: Path, plan: TrainingPlan, *, fresh: bool) -> None:
    """Refuses a folder with another plan; with ``fresh``, any training's plan may be replaced.

    A plan that cannot be read may be replaced, too.
    """
    try:
        found = read_json(path)
    except RunFolderError:
        if fresh:
            return
        raise
    if not isinstance(found, dict) or PLAN_KEY not in found:
        raise RunFolderError(f"{path.parent} holds another run, no training: choose another --out")
    wanted = {k: v for k, v in plan.to_json().items() if v is not None}
    same = {k: v for k, v in found.items() if v is not None and k not in NOTES}
    if LATER_FIELDS | same | {"rounds": plan.rounds} != wanted and not fresh:
        raise RunFolderError(
            f"{path.parent} holds another training: choose another --out, or replace it with "
            "--fresh"
        )


def check_no_other_files(root: Path, *, fresh: bool) -> None:
    """Refuses a folder without a plan, unless all its files are those of a killed training."""
    files = [path for path in root.iterdir() if path.is_file() and not is_unfinished(path)]
    parts = [path for path in files if path.name != LOCK]
    if any(not is_training_file(path) for path in parts):
        raise RunFolderError(f"{root} holds other files: choose another --out")
    if parts and not fresh:
        raise RunFolderError(
            f"{root} holds parts of a training but no {PLAN}: choose another --out, or replace "
            "them with --fresh"
        )


def is_training_file(path: Path) -> bool:
    """Returns whether a training of ours wrote this file."""
    if path.name == CHECKPOINT:
        return "facts" in read_safetensors(path)[1]
    return path.name == ROUNDS
