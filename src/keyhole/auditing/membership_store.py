"""The run folder of a membership experiment.

OUT/plan.json                the plan
OUT/models/NAME.safetensors  models trained so far in the trial that is not finished
OUT/trials/NUMBER-KEY.json   what a trial found
OUT/result.json              what all trials found, when they are finished
OUT/report.html              the page
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from keyhole.atomic import read_json, remove_tree, remove_unfinished, write_json, write_tensors
from keyhole.attacks.membership.target_training import Weights
from keyhole.auditing.membership_result import MembershipResult, Trial
from keyhole.auditing.run_folder import ANNEX, PLAN
from keyhole.auditing.store_folder import is_leftover
from keyhole.errors import BadUpdate, RunFolderError
from keyhole.lock import make_folder
from keyhole.update import read_safetensors

T = TypeVar("T")

RESULT, REPORT = "result.json", "report.html"
TRIALS, MODELS = "trials", "models"
OWN = (REPORT, ANNEX, RESULT, TRIALS, MODELS)
"""What an experiment writes beside its plan, which is written first and removed last."""
PLAN_KEY = "members"
"""A key that only a membership plan has; plans of audits and trainings do not."""


class MembershipStore:
    """The folder of one experiment. A killed run leaves whole files; the same plan continues it.

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
        known = self._read_plan(fresh=fresh)
        if known is None:
            if any(path.is_file() and not is_leftover(path) for path in self.root.rglob("*")):
                raise RunFolderError(f"{self.root} holds other files: choose another --out")
            return
        if PLAN_KEY not in known:
            raise RunFolderError(f"{self.root} holds another run: choose another --out")
        if known != self.plan and not fresh:
            raise RunFolderError(
                f"{self.root} holds another membership run: choose another --out, or replace it "
                "with --fresh"
            )

    def _read_plan(self, *, fresh: bool) -> dict[str, Any] | None:
        """The plan in the folder; with ``fresh``, one that cannot be read counts as ours."""
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
        """Prepares the folder for this plan and keeps what an earlier run of it has done."""
        self.check(fresh=fresh)
        if fresh:
            for name in OWN:
                remove_tree(self.root / name)
        write_json(self.root / PLAN, self.plan)
        remove_unfinished(self.root)
        for name in (TRIALS, MODELS):
            make_folder(self.root / name)

    def discard_if_empty(self) -> None:
        """Removes what was begun here if nothing was trained: a failed start leaves no trace."""
        if any(path for name in (TRIALS, MODELS) for path in (self.root / name).glob("*")):
            return
        for name in (*OWN, PLAN):
            remove_tree(self.root / name)

    def load(self, name: str) -> Weights | None:
        """The weights of a model that an interrupted run has trained; None if it has not."""
        path = self.model_path(name)
        if not path.is_file():
            return None
        try:
            return read_safetensors(path)[0]
        except BadUpdate as error:
            raise RunFolderError(f"{error}: remove it, or start over with --fresh") from None

    def save(self, name: str, weights: Mapping[str, Tensor]) -> None:
        write_tensors(self.model_path(name), weights)

    def model_path(self, name: str) -> Path:
        return self.root / MODELS / f"{name}.safetensors"

    def read_trial(self, number: int, key: str) -> Trial | None:
        """What an earlier run found in a trial; None if it did not finish it."""
        path = self.root / TRIALS / f"{number}-{key}.json"
        return read_checked(Trial, path) if path.is_file() else None

    def write_trial(self, number: int, key: str, trial: Trial) -> None:
        """Writes what a trial found, and removes its models."""
        write_json(self.root / TRIALS / f"{number}-{key}.json", trial.to_json())
        self._remove_models()

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Writes what all trials found; a kill may have left models of the last one."""
        write_json(self.root / RESULT, result)
        self._remove_models()

    def _remove_models(self) -> None:
        for path in (self.root / MODELS).glob("*.safetensors"):
            remove_tree(path)


def read_membership_result(root: Path) -> MembershipResult:
    """What the finished membership experiment in a folder has found."""
    path = root / RESULT
    if not path.is_file():
        raise RunFolderError(f"{root} holds no result yet: run its keyhole membership again")
    return replace(read_checked(MembershipResult, path), run=str(root))


def read_checked(kind: type[T], path: Path) -> T:
    """Builds ``kind`` from a JSON file; the type of every field is checked."""
    values = read_json(path)
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RunFolderError(
            f"{path} is damaged ({field}: {first['msg'].lower()}): start over with --fresh"
        ) from None
