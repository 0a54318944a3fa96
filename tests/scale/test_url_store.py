"""Pieces behind a URL: each machine works on a copy, and what is at the URL counts."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from keyhole.errors import RunFolderError
from keyhole.scale import build_piece, open_store, run_pieces
from keyhole.scale.url_store import Copier, UrlStore

pytest.importorskip("fsspec")


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL that fsspec opens, as it does s3://."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    if request.param == "file":
        return (tmp_path / "bucket").as_uri()
    return f"memory://{uuid.uuid4().hex}/pieces"


def count(steps: int) -> Any:
    return build_piece("piece_works:count_slowly", {"steps": steps, "number": 1})


def names_at(store: UrlStore, piece: Any) -> set[str]:
    found = store.files.find(f"{store.base}/{piece.key}")
    return {path[path.rindex(piece.key) + len(piece.key) + 1 :] for path in found}


def test_another_machine_continues_what_one_has_begun(url: str, tmp_path: Path) -> None:
    piece = count(4)
    first = UrlStore(url, tmp_path / "machine-1")
    with first.work_folder(piece) as folder:
        (folder / "state").write_text("2 3")
    assert names_at(first, piece) == {"work/state"}
    assert first.has_begun(piece)
    second = UrlStore(url, tmp_path / "machine-2")
    (found,) = run_pieces([piece], second)
    assert found.result == {"total": 10}
    third = open_store(url)
    assert third.is_finished(piece)
    assert not third.has_begun(piece)
    assert run_pieces([piece], third)[0].folder.joinpath("begun").read_text() == "2\n"
    third.forget(piece)
    assert not third.is_finished(piece)
    assert names_at(third, piece) == set()  # type: ignore[arg-type]


def test_a_machine_forgets_what_others_have_removed_or_overtaken(url: str, tmp_path: Path) -> None:
    """Else a machine that gets a piece back would mix an old state with a newer one."""
    piece = count(4)
    first, second = (UrlStore(url, tmp_path / f"machine-{n}") for n in (1, 2))
    with first.work_folder(piece) as folder:
        (folder / "state").write_text("1 1")
        (folder / "only-until-step-2").write_text("")
    with second.work_folder(piece) as folder:
        (folder / "state").write_text("3 6")
        (folder / "only-until-step-2").unlink()
    assert names_at(second, piece) == {"work/state"}
    with first.work_folder(piece) as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["state"]
        assert (folder / "state").read_text() == "3 6"


def test_the_result_is_put_there_after_all_that_belongs_to_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may be lost at any moment: a result without its files could not be used."""
    put: list[str] = []
    plain = UrlStore.put_file

    def note(self: UrlStore, path: Path) -> None:
        put.append(path.name)
        plain(self, path)

    monkeypatch.setattr(UrlStore, "put_file", note)
    run_pieces([count(2)], UrlStore(url, tmp_path / "machine"))
    assert put[-1] == "result.json"
    assert set(put[:-1]) == {"begun", "state"}


def test_work_is_copied_while_it_runs_and_a_failure_is_tried_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keyhole.scale.url_store.SECONDS_BETWEEN_COPIES", 0.01)
    store, piece, failures = UrlStore(url, tmp_path / "machine"), count(2), [0]
    plain = UrlStore.put_file

    class Unreachable(Exception):
        """An error of a file system that is no OSError."""

    def fail_twice(self: UrlStore, path: Path) -> None:
        failures[0] += 1
        if failures[0] <= 2:
            raise Unreachable("no route")
        plain(self, path)

    monkeypatch.setattr(UrlStore, "put_file", fail_twice)
    with store.work_folder(piece) as folder:
        (folder / "state").write_text("1 1")
        for _ in range(500):
            if names_at(store, piece):
                break
            Copier(store, folder).ended.wait(0.01)
        assert names_at(store, piece) == {"work/state"}
    assert "cannot be written now (no route)" in caplog.text


def test_a_url_that_cannot_be_reached_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = UrlStore(f"memory://{uuid.uuid4().hex}", tmp_path / "machine")

    def refuse(*_: object, **__: object) -> None:
        raise LookupError("Unable to locate credentials")

    for call in ("exists", "pipe_file"):
        monkeypatch.setattr(store.files, call, refuse)
    with pytest.raises(RunFolderError, match=r"cannot read memory://.*Unable to locate"):
        run_pieces([count(1)], store)
    with pytest.raises(RunFolderError, match=r"cannot write to memory://.*Unable to locate"):
        store.check()
