"""What a connection to Ray leaves alone: standard output, and a cluster when the work is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyhole.progress import NullProgress
from keyhole.scale import Ray, open_store, run_pieces
from keyhole.scale import on_ray as module
from keyhole.scale.outcome import Outcome
from piece_works import squares


class TalkingRay:
    """Prints on standard output, as Ray does when a worker is lost."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: Any) -> None:
        self.calls.append("init")
        print("(raylet) started")

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        print("(raylet) ended")


class TalkingDriver:
    def __init__(self, ray: TalkingRay, *_: Any) -> None:
        self.ray = ray

    def run(self, pieces: Any) -> Iterator[Outcome]:
        for piece in pieces:
            print("(raylet) A worker died or was killed")
            yield Outcome(piece)

    def cancel(self) -> None:
        self.ray.calls.append("cancel")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> TalkingRay:
    made = TalkingRay()
    monkeypatch.setattr(module, "import_ray", lambda: made)
    monkeypatch.setattr(module, "Driver", TalkingDriver)
    return made


def test_what_ray_prints_does_not_mix_with_results(
    ray: TalkingRay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_pieces(squares(1, 2), open_store(tmp_path), on=Ray())
    print('{"findings": []}')
    out, err = capsys.readouterr()
    assert out == '{"findings": []}\n'
    assert err.count("A worker died") == 2
    assert ray.calls == ["init", "cancel", "shutdown"]


def test_an_interrupted_driver_cancels_its_work_at_once(
    ray: TalkingRay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(NullProgress):
        def advance(self, units: int) -> None:
            if units:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pieces(squares(1, 2), open_store(tmp_path), on=Ray(), progress=Interrupted())
    assert ray.calls == ["init", "cancel", "shutdown"]
    print("here")
    assert capsys.readouterr().out == "here\n"
