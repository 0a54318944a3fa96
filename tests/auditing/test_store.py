from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from keyhole.auditing import Plan, Stage, run_plan
from keyhole.auditing.results import AuditResult
from keyhole.auditing.run_folder import PLAN
from keyhole.auditing.store import FOLDERS, Store
from keyhole.errors import RunFolderError
from keyhole.lock import LOCK, FolderLock

TITLE: dict[str, Any] = {"title": "an audit", "stage": []}
AUDIT = Plan(
    stage=(
        Stage(data="digits", victims=2, attacks=("linear", "labels"), defenses=("none", "pruning")),
    )
)


def opened(root: Path, plan: dict[str, Any], *, fresh: bool = False) -> Store:
    store = Store.open(root, plan, fresh=fresh)
    store.release()
    return store


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("made", range(len(FOLDERS) + 1))
def test_folders_without_a_plan_are_taken_up(tmp_path: Path, made: int, fresh: bool) -> None:
    """A killed audit left them so."""
    for folder in FOLDERS[:made]:
        (tmp_path / folder).mkdir()
    (tmp_path / ".plan.json.123.half").write_text("{")
    (tmp_path / LOCK).write_text("123\n")
    assert opened(tmp_path, TITLE, fresh=fresh).plan() == TITLE
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted((*FOLDERS, PLAN))


def test_parts_of_an_audit_without_its_plan_are_replaced_only_when_asked(tmp_path: Path) -> None:
    for name in ("findings/linear-0.json", "pictures/linear-0.safetensors", "summary.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"verdicts": []}')
    with pytest.raises(RunFolderError, match=r"parts of an audit but no plan\.json.*--fresh"):
        Store.open(tmp_path, TITLE)
    assert len(list(tmp_path.rglob("*.*"))) == 3
    opened(tmp_path, TITLE, fresh=True)
    assert [p.name for p in tmp_path.rglob("*.*")] == [PLAN]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["pictures/holiday.jpg", "report.html", "findings", "my.json"])
def test_files_of_a_user_are_never_taken_for_ours(tmp_path: Path, name: str, fresh: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    with pytest.raises(RunFolderError, match="holds other files"):
        Store.open(tmp_path, TITLE, fresh=fresh)
    assert (tmp_path / name).read_text() == "years of work"
    assert not (tmp_path / LOCK).exists()


def test_the_plan_is_there_before_all_else_and_as_long_as_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is made or removed, and whenever a kill comes: the folder can be told for ours."""
    others: list[str] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def watched(path: object, *rest: object, **named: object) -> object:
            if tmp_path in Path(str(path)).parents and not (tmp_path / "run" / PLAN).is_file():
                others.append(f"{name} {Path(str(path)).name}")
            return real(path, *rest, **named)

        monkeypatch.setattr(os, name, watched)

    for name in ("mkdir", "unlink", "rmdir", "replace"):
        watch(name)
    run_plan(AUDIT, out=tmp_path / "run")
    run_plan(AUDIT.with_all(seed=3), out=tmp_path / "run", fresh=True)
    allowed = ("mkdir run", "replace .plan.json.", "unlink .keyhole.lock")
    assert others
    assert [each for each in others if not each.startswith(allowed)] == []


@pytest.mark.parametrize("fresh", [False, True])
def test_the_folder_of_a_training_is_never_replaced(tmp_path: Path, fresh: bool) -> None:
    plan = json.dumps({"data": "digits", "clients": 10, "partition": "iid"})
    (tmp_path / PLAN).write_text(plan)
    (tmp_path / "checkpoint.safetensors").write_text("weeks of training")
    with pytest.raises(RunFolderError, match="no audit: choose another --out"):
        Store.open(tmp_path, TITLE, fresh=fresh)
    assert (tmp_path / PLAN).read_text() == plan


def test_a_plan_that_cannot_be_read_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / PLAN).write_text("")
    with pytest.raises(RunFolderError, match="cannot be read"):
        Store.open(tmp_path, TITLE)
    assert opened(tmp_path, TITLE, fresh=True).plan() == TITLE


def test_an_audit_holds_its_folder_and_gives_it_back(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(RunFolderError, match="another keyhole is at work"):
        run_plan(AUDIT, out=tmp_path)
    lock.release()
    run_plan(AUDIT, out=tmp_path)
    run_plan(AUDIT, out=tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_findings_have_the_order_of_the_plan_whenever_they_were_written(tmp_path: Path) -> None:
    result = run_plan(AUDIT, out=tmp_path)
    found = sorted((tmp_path / "findings").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for number, path in enumerate(reversed(found)):
        os.utime(path, (number, number))
    again = AuditResult.load(tmp_path)
    assert len(found) == 5
    assert json.dumps(again.to_json()) == json.dumps(result.to_json())
    (tmp_path / "order.json").unlink()  # an older folder: as it concluded
    again = AuditResult.load(tmp_path)
    assert json.dumps(again.to_json()) == json.dumps(result.to_json())
    (tmp_path / "summary.json").unlink()  # an older one that was stopped: as they were written
    again = AuditResult.load(tmp_path)
    assert [f.key for f in again.findings] == [f.key for f in reversed(result.findings)]


@pytest.mark.parametrize("where", ["a file", "a file/run", "/proc/keyhole"])
def test_where_nothing_can_be_written_words_say_so(tmp_path: Path, where: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(RunFolderError, match="choose another --out"):
        Store.open(tmp_path / where, TITLE)


def test_a_disk_that_turns_read_only_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path, TITLE)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("shutil.rmtree", read_only)
    with pytest.raises(RunFolderError, match=r"cannot remove .*Read-only file system"):
        Store.open(tmp_path, TITLE, fresh=True)
    monkeypatch.setattr(Path, "replace", read_only)
    with pytest.raises(RunFolderError, match=r"cannot write .*Read-only file system"):
        Store.open(tmp_path, TITLE)
