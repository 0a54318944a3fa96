"""Pieces run once, are found again, and fail without harm to others."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from keyhole.errors import RunFolderError
from keyhole.progress import NullProgress
from keyhole.scale import Local, Machine, PiecesFailed, build_piece, open_store, run_pieces
from keyhole.scale.board import Board
from keyhole.scale.local import show_reports
from piece_works import squares


class Recorder(NullProgress):
    def __init__(self) -> None:
        self.total, self.done, self.shown = 0, 0, list[str]()

    def begin(self, total: int) -> None:
        self.total = total

    def advance(self, units: int) -> None:
        self.done += units

    def show(self, what: str) -> None:
        self.shown.append(what)


def calls(store: Path, *numbers: int) -> list[int]:
    found = [open_store(store).fetch(piece) / "calls" for piece in squares(*numbers)]
    return [len(file.read_text()) if file.is_file() else 0 for file in found]


def test_results_come_in_the_order_of_the_pieces_and_are_found_again(tmp_path: Path) -> None:
    seen = Recorder()
    first = run_pieces(squares(3, 1, 3), open_store(tmp_path), progress=seen)
    assert [each.result["square"] for each in first] == [9, 1, 9]
    assert (seen.total, seen.done) == (2, 2)
    assert any("square of 3" in text for text in seen.shown)
    again = Recorder()
    later = run_pieces(squares(1, 2, 3), open_store(tmp_path), progress=again)
    assert [each.result["square"] for each in later] == [1, 4, 9]
    assert calls(tmp_path, 1, 2, 3) == [1, 1, 1]
    assert (again.total, again.done) == (3, 3)
    assert first[0].cost["seconds"] >= 0
    assert first[0].folder.is_dir()


def test_a_piece_that_fails_stops_no_other(tmp_path: Path) -> None:
    pieces = [*squares(1), *squares(5, refused=True), *squares(2)]
    with pytest.raises(PiecesFailed, match=r"1 of 3 pieces failed.*square of 5: number: too odd"):
        run_pieces(pieces, open_store(tmp_path))
    assert calls(tmp_path, 1, 2) == [1, 1]
    assert not open_store(tmp_path).is_finished(pieces[1])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_defect_stops_no_other_piece_and_keeps_its_traceback(
    workers: int, tmp_path: Path
) -> None:
    pieces = [*squares(1, broken=True), *squares(2, 3), *squares(5, refused=True)]
    with pytest.raises(ZeroDivisionError, match="a defect") as caught:
        run_pieces(pieces, open_store(tmp_path), on=Local(workers))
    (note,) = caught.value.__notes__
    assert note.startswith("This was raised by the piece square of 1; 2 of 4 pieces failed")
    assert calls(tmp_path, 2, 3) == [1, 1]


def test_what_a_piece_reports_too_late_is_not_shown() -> None:
    """Else a piece that has ended would be one that is at work, to the end."""
    seen = Recorder()
    reports = multiprocessing.get_context("spawn").SimpleQueue()
    reports.put(("ended", "square of 1", 0.9, ""))
    reports.put(("begun", "square of 2", 0.1, ""))
    show_reports(reports, {"begun"}, Board(seen))
    assert seen.shown == ["square of 2"]
    assert reports.empty()


def test_a_piece_continues_where_it_stopped(tmp_path: Path) -> None:
    piece = build_piece("piece_works:count_slowly", {"steps": 5, "number": 2})
    store = open_store(tmp_path)
    with store.work_folder(piece) as folder:
        (folder / "state").write_text("3 12")
    assert store.has_begun(piece)
    (found,) = run_pieces([piece], store)
    assert found.result == {"total": 30}
    assert (found.folder / "begun").read_text() == "3\n"


def test_processes_give_the_same_results_and_use_one_thread(tmp_path: Path) -> None:
    wait = [build_piece("piece_works:pid", {"n": n, "seconds": 0.5}) for n in range(2)]
    seen = Recorder()
    pieces = [*wait, *squares(7), *squares(5, refused=True)]
    with pytest.raises(PiecesFailed, match="too odd"):
        run_pieces(pieces, open_store(tmp_path), on=Local(2), progress=seen)
    found = run_pieces(pieces[:3], open_store(tmp_path))
    assert found[2].result == {"square": 49}
    assert {each.result["threads"] for each in found[:2]} == {1}
    assert seen.done == 4


def test_threads_are_as_asked_and_restored(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    pieces = [build_piece("piece_works:pid", {})]
    (found,) = run_pieces(pieces, open_store(tmp_path), machine=Machine(cpus=2))
    assert found.result["threads"] == 2
    assert torch.get_num_threads() == before


def test_a_damaged_result_is_said(tmp_path: Path) -> None:
    (piece,) = squares(1)
    store = open_store(tmp_path)
    run_pieces([piece], store)
    (tmp_path / piece.key / "result.json").write_text("[]")
    with pytest.raises(RunFolderError, match="remove it, and its piece is run again"):
        store.read(piece)
    store.forget(piece)
    assert run_pieces([piece], store)[0].result == {"square": 1}
