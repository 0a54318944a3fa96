"""A round holds no more updates than clients that train at once, however many there are."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole.federation import Federation, TrainingPlan, average_updates, build_federation, train
from keyhole.federation.averaging import RunningMean
from keyhole.federation.backends import vmap
from keyhole.update import Update


class Alive:
    """Counts the updates that are in memory whenever one more is added up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[weakref.ref[Tensor]] = []
        self.most = 0
        add = RunningMean.add

        def counted(mean: RunningMean, update: Update) -> None:
            self.seen.append(weakref.ref(next(iter(update.change.values()))))
            self.most = max(self.most, sum(each() is not None for each in self.seen))
            add(mean, update)

        monkeypatch.setattr(RunningMean, "add", counted)


def federation_of(clients: int, **settings: Any) -> Federation:
    plan = TrainingPlan(clients=clients, images=2, steps=1, batch_size=2, together="no", **settings)
    return build_federation(plan, data_dir=None)


@pytest.mark.parametrize("capture", [False, True])
def test_updates_are_let_go_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: bool
) -> None:
    alive = Alive(monkeypatch)
    plan = TrainingPlan(clients=12, images=1, steps=1, batch_size=1, rounds=2, together="no")
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen" if capture else None)
    assert len(alive.seen) == 24
    assert alive.most <= 2


def test_clients_side_by_side_are_as_many_as_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, other = federation_of(12), federation_of(12)
    size = sum(t.numel() * t.element_size() for t in federation.model.state_dict().values())
    other.backend = vmap.VmapTrainer()
    assert other.backend.clients_at_once(other.model) > 12
    expected = other.run_round(1, keep_updates=False)
    monkeypatch.setattr(vmap, "STACKED_BYTES", 3 * size)
    alive = Alive(monkeypatch)
    federation.backend = vmap.VmapTrainer()
    found = federation.run_round(1, keep_updates=False)
    assert alive.most <= 2 * 3
    assert [each.client for each in found.summaries] == list(range(12))
    for name, tensor in federation.model.state_dict().items():
        torch.testing.assert_close(tensor, other.model.state_dict()[name], rtol=0, atol=3e-7)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)


def test_what_is_kept_changes_no_bit() -> None:
    one, other = federation_of(5), federation_of(5)
    kept, let_go = one.run_round(1), other.run_round(1, keep_updates=False)
    assert (len(kept.updates), len(let_go.updates)) == (5, 0)
    assert {**kept.to_json(), "seconds": 0} == {**let_go.to_json(), "seconds": 0}
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])
    again = average_updates(kept.sent, [share.update for share in kept.updates])
    assert all(torch.equal(again[name], t) for name, t in one.model.state_dict().items())


def test_the_running_mean_weighs_by_what_arrived() -> None:
    sent = {"w": torch.zeros(2), "n": torch.tensor(4)}
    mean = RunningMean(sent, examples=8)
    mean.add(Update({"w": torch.tensor([1.0, 0.0]), "n": torch.tensor(2)}, examples=1))
    mean.add(Update({"w": torch.tensor([0.0, 4.0]), "n": torch.tensor(4)}, examples=3))
    assert mean.new_weights()["w"].tolist() == [0.25, 3.0]
    assert int(mean.new_weights()["n"]) == 8


PEAK = """
import resource, sys
from pathlib import Path
from keyhole.federation import TrainingPlan, train
plan = TrainingPlan(model="vit-small", clients=int(sys.argv[1]), images=1, steps=1, batch_size=1,
                    rounds=1, together=sys.argv[2])
train(plan, out=Path(sys.argv[3]) / "run", capture=Path(sys.argv[3]) / "seen")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["no", "yes"])
def test_the_peak_does_not_grow_with_clients(tmp_path: Path, way: str) -> None:
    peaks = []
    for clients in (20, 100):
        command = [sys.executable, "-c", PEAK, str(clients), way, str(tmp_path / str(clients))]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(found.stdout) / 1024)
    assert peaks[1] - peaks[0] < 100  # MB; 80 more updates have 508
