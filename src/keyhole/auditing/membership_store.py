"""The folder of a membership experiment: its plan, each trial, and the models of the one at work.

OUT/plan.json                what is asked
OUT/models/NAME.safetensors  models trained so far of the trial that is not done
OUT/trials/NUMBER-KEY.json   what a trial found
OUT/result.json              all of it, when it is done
OUT/report.html              the page
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.atomic import (
    is_unfinished,
    read_json,
    remove_tree,
    remove_unfinished,
    write_json,
    write_tensors,
)
from keyhole.attacks.membership.target_training import Weights
from keyhole.auditing.membership_result import MembershipResult, Trial
from keyhole.auditing.run_folder import PLAN
from keyhole.errors import BadUpdate, RunFolderError
from keyhole.lock import LOCK, make_folder
from keyhole.update import read_safetensors

RESULT, REPORT = "result.json", "report.html"
TRIALS, MODELS = "trials", "models"
OWN = (REPORT, RESULT, TRIALS, MODELS)
"""What an experiment writes beside its plan, which is written first and removed last."""


class MembershipStore:
    """Whole files only: whatever a kill leaves, the same plan goes on from there.

    Only one process may use it at a time (see :func:`keyhole.lock.locked`).
    """

    def __init__(self, root: Path, plan: Mapping[str, Any]) -> None:
        self.root, self.plan = root, dict(plan)

    def check(self, *, fresh: bool) -> None:
        """Refuses a folder that holds anything else; ``fresh`` may replace another experiment."""
        if not self.root.exists():
            return
        if not self.root.is_dir():
            raise RunFolderError(f"{self.root} is not a folder: choose another --out")
        known = self.known_plan(fresh=fresh)
        if known is None:
            if any(path.is_file() and not is_stray(path) for path in self.root.rglob("*")):
                raise RunFolderError(f"{self.root} holds other files: choose another --out")
            return
        if "members" not in known:
            raise RunFolderError(f"{self.root} holds another run: choose another --out")
        if known != self.plan and not fresh:
            raise RunFolderError(
                f"{self.root} holds another membership run: choose another --out, or replace it "
                "with --fresh"
            )

    def known_plan(self, *, fresh: bool) -> dict[str, Any] | None:
        """The plan in the folder; one that cannot be read is taken for ours where ``fresh``."""
        path = self.root / PLAN
        if not path.is_file():
            return None
        try:
            found = read_json(path)
        except RunFolderError:
            if not fresh:
                raise
            return self.plan
        return found if isinstance(found, dict) else {}

    def begin(self, *, fresh: bool) -> None:
        """Makes the folder ready for this plan, with all that an earlier run of it has done."""
        self.check(fresh=fresh)
        if fresh:
            for name in OWN:
                remove_tree(self.root / name)
        write_json(self.root / PLAN, self.plan)
        remove_unfinished(self.root)
        for name in (TRIALS, MODELS):
            make_folder(self.root / name)

    def discard_if_empty(self) -> None:
        """Removes what was begun here, if nothing was trained yet: no trace of a failed start."""
        if any(path for name in (TRIALS, MODELS) for path in (self.root / name).glob("*")):
            return
        for name in (*OWN, PLAN):
            remove_tree(self.root / name)

    def load(self, name: str) -> Weights | None:
        path = self.model(name)
        if not path.is_file():
            return None
        try:
            return read_safetensors(path)[0]
        except BadUpdate as error:
            raise RunFolderError(f"{error}: remove it, or start anew with --fresh") from None

    def save(self, name: str, weights: Mapping[str, Tensor]) -> None:
        write_tensors(self.model(name), weights)

    def model(self, name: str) -> Path:
        return self.root / MODELS / f"{name}.safetensors"

    def trial(self, number: int, key: str) -> Trial | None:
        """What an earlier run found in a trial."""
        path = self.root / TRIALS / f"{number}-{key}.json"
        return Trial.from_json(read_json(path), path) if path.is_file() else None

    def keep_trial(self, number: int, key: str, trial: Trial) -> None:
        """Keeps what a trial found; its models are needed no longer."""
        write_json(self.root / TRIALS / f"{number}-{key}.json", trial.to_json())
        self._drop_models()

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Keeps what all trials found; a kill may have left models of the last one."""
        write_json(self.root / RESULT, result)
        self._drop_models()

    def _drop_models(self) -> None:
        for path in (self.root / MODELS).glob("*.safetensors"):
            remove_tree(path)


def read_result(root: Path) -> MembershipResult:
    """What a membership experiment that was run before has found."""
    path = root / RESULT
    if not path.is_file():
        raise RunFolderError(f"{root} holds no result yet: run its keyhole membership again")
    return MembershipResult.from_json(read_json(path), path)


def is_stray(path: Path) -> bool:
    """What a killed process may have left."""
    return path.name == LOCK or is_unfinished(path)
