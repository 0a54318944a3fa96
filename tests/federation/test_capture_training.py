"""What a training of Keyhole's own captures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyhole.errors import RunFolderError
from keyhole.federation import Capture, Round, TrainingPlan, train
from recorded_rounds import assert_same

PLAN = TrainingPlan(clients=3, images=4, rounds=2, epochs=1, together="no", fraction=0.67)


class Killed(Exception):
    """Stands for a kill in the middle of the work."""


def test_a_training_captures_what_its_server_sees(tmp_path: Path) -> None:
    seen: list[Round] = []
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen", watchers=[seen.append])
    capture = Capture.open(tmp_path / "seen")
    assert capture.about.items() >= {"model": "mlp", "data": "digits", "by-user": False}.items()
    for live, kept in zip(seen, capture.rounds, strict=True):
        assert_same(kept.read_weights(), dict(live.sent))
        assert [c["node"] for c in kept.clients] == [str(share.client) for share in live.updates]
        assert [c["examples"] for c in kept.clients] == [4, 4]
        for client, share in zip(kept.clients, live.updates, strict=True):
            assert_same(kept.read_change(client), dict(share.update.change))
        assert kept.config == {
            "lr": 0.03,
            "batch-size": 16,
            "optimiser": "sgd",
            "momentum": 0.9,
            "client-mode": "train",
            "defense": "none",
            "local-epochs": 1,
        }
    assert capture.truth is not None
    assert [len(held) for held in capture.truth["clients"].values()] == [4, 4, 4]


def test_a_stopped_training_goes_on_capturing(tmp_path: Path) -> None:
    def kill(_: Round) -> None:
        raise Killed

    with pytest.raises(Killed):
        train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen", watchers=[kill])
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen")
    train(PLAN, out=tmp_path / "other", capture=tmp_path / "whole")
    one, other = Capture.open(tmp_path / "seen"), Capture.open(tmp_path / "whole")
    assert (one.about, one.truth, one.problems) == (other.about, other.truth, other.problems)
    for mine, others in zip(one.rounds, other.rounds, strict=True):
        assert (mine.config, mine.clients) == (others.config, others.clients)
        assert_same(mine.read_weights(), others.read_weights())
        for client in mine.clients:
            assert_same(mine.read_change(client), others.read_change(client))


def test_the_limit_reaches_the_recorder(tmp_path: Path) -> None:
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen", limit_gb=0.0)
    assert json.loads((tmp_path / "seen" / "capture.json").read_text())["left_out"] == [1, 2]


def test_a_capture_does_not_mix_two_trainings(tmp_path: Path) -> None:
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen")
    other = PLAN.model_copy(update={"rounds": 1, "seed": 5})
    try:
        train(other, out=tmp_path / "run", capture=tmp_path / "seen", fresh=True)
    except RunFolderError:
        return
    assert [seen.number for seen in Capture.open(tmp_path / "seen").rounds] == [1]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_training_that_is_refused_leaves_captures_alone(tmp_path: Path, fresh: bool) -> None:
    train(PLAN, out=tmp_path / "run", capture=tmp_path / "seen")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for name in ("seen", "new"):
        with pytest.raises(RunFolderError, match="mine holds other files"):
            train(PLAN, out=tmp_path / "mine", capture=tmp_path / name, fresh=fresh)
    assert [seen.number for seen in Capture.open(tmp_path / "seen").rounds] == [1, 2]
    assert not (tmp_path / "new").exists()
