"""What runs, what is recorded and what is replayed; the recordings are fakes, for any machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from keyhole.federation.backends.epoch_feed import EpochFeed
from keyhole.federation.backends.recorder import WARM_UP, Recorder


class Fake:
    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


def test_pieces_are_recorded_after_they_were_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    recorder = Recorder(torch.device("cpu"))
    recorder.records = True
    monkeypatch.setattr(recorder, "record", lambda work: Fake(lambda: done.append("replayed")))
    for _ in range(WARM_UP + 2):
        recorder.run("often", lambda: done.append("launched"))
    assert done == ["launched"] * WARM_UP + ["replayed"] * 2
    recorder.run("seldom", lambda: done.append("launched"))
    assert done[-1] == "launched"
    recorder.forget()
    recorder.run("often", lambda: done.append("launched anew"))
    assert done[-1] == "launched anew"


def test_on_a_cpu_nothing_is_recorded() -> None:
    done: list[int] = []
    recorder = Recorder(torch.device("cpu"))
    for number in range(WARM_UP + 3):
        recorder.run("piece", lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(WARM_UP + 3))


def test_batches_come_in_the_order_of_the_epoch() -> None:
    inputs, labels = torch.rand(7, 1, 4, 4), torch.arange(7)
    feed = EpochFeed(inputs, labels, 9)
    feed.load(inputs, labels)
    for order in (torch.tensor([6, 0, 3, 1, 2]), torch.arange(7)):
        feed.begin_epoch(order, None)
        for batch in order.split(2):
            x, y = feed.next_batch(len(batch))
            assert torch.equal(x, inputs[batch])
            assert torch.equal(y, labels[batch])


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((9, 1, 4, 4), torch.float32, True),
        ((10, 1, 4, 4), torch.float32, False),
        ((3, 1, 4, 5), torch.float32, False),
        ((3, 1, 4, 4), torch.float64, False),
    ],
)
def test_a_feed_has_room_for_equal_images(
    shape: tuple[int, ...], dtype: torch.dtype, fits: bool
) -> None:
    feed = EpochFeed(torch.rand(7, 1, 4, 4), torch.arange(7), 9)
    assert feed.fits(torch.zeros(shape, dtype=dtype)) is fits
