"""Pictures of all victims are kept where they fit, else the first and the clearest."""

from __future__ import annotations

import pytest
import torch

from keyhole.auditing import kept_pictures
from keyhole.auditing.accumulator import RunAccumulator, SettingAccumulator
from keyhole.auditing.kept_pictures import FIRST_VICTIMS, ROOM, choose_kept
from keyhole.auditing.pictures import check_pictures, victims_of
from keyhole.auditing.scoring import ScoredReconstruction

VICTIMS = 40
CLEAR = {31: 0.99, 12: 0.95, 3: 0.9}


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for no more than the first and as many others."""
    monkeypatch.setattr(kept_pictures, "ROOM", 0)


def accumulate(victims: range) -> SettingAccumulator:
    """Two attackers: one sees some images clearly, one sees nothing."""
    totals = SettingAccumulator([RunAccumulator(), RunAccumulator()])
    for run in (0, 1):
        for victim in victims:
            ssim = CLEAR.get(victim, 0.1) if run == 0 else 0.0
            image = torch.full((1, 1, 4, 4), victim / VICTIMS)
            totals.add_pictures(victim, run, image, ScoredReconstruction(image, {"ssim": [ssim]}))
    return totals


def test_where_there_is_room_everything_is_kept() -> None:
    totals = SettingAccumulator.empty(2)
    totals.extend(accumulate(range(VICTIMS)))
    pictures = totals.stack_pictures(0)
    assert victims_of(pictures) == list(range(VICTIMS))
    check_pictures(pictures)
    assert torch.equal(pictures["truth"], pictures["seen"])


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("size", [1, 7, VICTIMS])
def test_where_there_is_not_the_first_and_the_clearest_are_however_the_run_is_cut(
    size: int,
) -> None:
    totals = SettingAccumulator.empty(2)
    for start in range(0, VICTIMS, size):
        part = accumulate(range(start, min(start + size, VICTIMS)))
        read = SettingAccumulator.from_json(part.to_json(), part.pictures)
        totals.extend(read)
    clear, blind = (victims_of(totals.stack_pictures(run)) for run in (0, 1))
    first = list(range(FIRST_VICTIMS))
    assert clear == [*first, 8, 9, 10, 11, 12, 13, 14, 31]
    assert blind == [*first, *range(FIRST_VICTIMS, 2 * FIRST_VICTIMS)]
    for run in (0, 1):
        pictures = totals.stack_pictures(run)
        assert torch.equal(pictures["truth"], pictures["seen"])
        shown = [round(float(p.max()) / 255 * VICTIMS) for p in pictures["seen"]]
        assert shown == victims_of(pictures)


def test_a_picture_of_any_size_is_kept_of_the_first() -> None:
    kept = choose_kept(dict.fromkeys(range(100), 0.0), 10 * ROOM)
    assert kept == set(range(2 * FIRST_VICTIMS))


def test_an_older_folder_shows_the_first_victims() -> None:
    assert victims_of({"seen": torch.zeros(3, 1, 4, 4, dtype=torch.uint8)}) == [0, 1, 2]
    assert victims_of({}) == []


@pytest.mark.parametrize("places", [[0, -1], [0], [0.0, 1.0]])
def test_places_that_cannot_be_are_refused(places: list[float]) -> None:
    pictures = {
        "seen": torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        "seen.at": torch.tensor(places),
    }
    with pytest.raises(ValueError, match=r"seen"):
        check_pictures(pictures)
