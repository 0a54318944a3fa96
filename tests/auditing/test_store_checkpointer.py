from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from keyhole.auditing import store_checkpointer
from keyhole.auditing.store import Store
from keyhole.auditing.store_checkpointer import StoreCheckpointer
from keyhole.errors import RunFolderError
from keyhole.progress import NullProgress
from keyhole.update import read_safetensors


class Watcher(NullProgress):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str]] = []

    def iterate(self, done: int, total: int, text: str) -> None:
        self.seen.append((done, total, text))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "run", {"title": "a plan"})


def test_what_was_saved_last_is_what_is_loaded(store: Store) -> None:
    kept = StoreCheckpointer(store.state("setting-0-0"), NullProgress())
    assert kept.load() is None
    kept.save({"x": torch.zeros(2), "old": torch.ones(1)}, {"begun": 1})
    state = {
        "x": torch.randn(3, 4),
        "half": torch.randn(2).half(),
        "wide": torch.randn(2, dtype=torch.double),
        "alive": torch.tensor([True, False]),
        "count": torch.tensor(7),
    }
    facts = {"begun": 2, "history": {"0": [[[50, 0.1]], 0, False, [0, 50]]}, "notes": ["slow"]}
    kept.save(state, facts)
    found = StoreCheckpointer(store.state("setting-0-0"), NullProgress()).load()
    assert found is not None
    assert set(found[0]) == set(state)
    for name, tensor in state.items():
        assert found[0][name].dtype == tensor.dtype
        assert torch.equal(found[0][name], tensor)
    assert found[1] == facts


def test_a_loss_that_is_not_a_number_survives_being_kept(store: Store) -> None:
    kept = StoreCheckpointer(store.state("setting-0-0"), NullProgress())
    kept.save({}, {"outcomes": {"0": [float("inf"), 3]}})
    found = kept.load()
    assert found is not None
    assert found[1] == {"outcomes": {"0": [float("inf"), 3]}}


def test_each_attack_has_a_drawer_of_its_own(store: Store) -> None:
    one, other = (
        StoreCheckpointer(store.state(f"setting-0-{row}"), NullProgress()) for row in range(2)
    )
    one.save({"x": torch.zeros(1)}, {})
    assert other.load() is None


def test_what_is_saved_is_a_copy(store: Store) -> None:
    kept, x = StoreCheckpointer(store.state("setting-0-0"), NullProgress()), torch.zeros(2)
    kept.save({"x": x}, {})
    x += 1
    found = kept.load()
    assert found is not None
    assert found[0]["x"].tolist() == [0, 0]


def test_a_setting_that_is_finished_leaves_nothing_and_others_stay(store: Store) -> None:
    for name in ("ab12-0-0", "ab12-2-1", "ab123-0-0"):
        store.state(name).write({"x": torch.zeros(1)}, {})
    store.add_chunk("ab12-0", {"rows": []}, {"x": torch.zeros(1)})
    store.remove_unfinished("ab12")
    assert [p.name for p in (store.root / "states").iterdir()] == ["ab123-0-0.safetensors"]
    assert not list((store.root / "chunks").iterdir())


def test_without_a_run_folder_nothing_is_kept_and_nothing_fails() -> None:
    bare = StoreCheckpointer(None, NullProgress())
    bare.save({"x": torch.zeros(1)}, {})
    assert bare.load() is None


def test_it_is_time_to_save_when_the_last_time_is_long_ago(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    kept = StoreCheckpointer(store.state("setting-0-0"), NullProgress())
    assert not kept.due()
    clock[0] += store_checkpointer.SECONDS_BETWEEN_SAVES
    assert kept.due()
    kept.save({"x": torch.zeros(1)}, {})
    assert not kept.due()


def test_progress_is_passed_on_and_the_number_of_victims_handed_over() -> None:
    watcher = Watcher()
    context = StoreCheckpointer(None, watcher, 3)
    context.watch(50, 200, "loss 0.1")
    assert watcher.seen == [(50, 200, "loss 0.1")]
    assert context.victims_at_once == 3
    assert StoreCheckpointer(None, watcher).victims_at_once is None


def test_nothing_that_an_attack_is_handed_is_a_path(store: Store) -> None:
    """Pictures of earlier findings, with the truth, lie beside an attack's state."""
    looked_at: list[object] = [StoreCheckpointer(store.state("setting-0-0"), NullProgress())]
    for each in looked_at:
        assert not isinstance(each, Path | Store)
        assert str(store.root) not in str(each)
        looked_at += vars(each).values() if hasattr(each, "__dict__") else ()
    assert len(looked_at) > 4


@pytest.mark.parametrize("what", ["facts", "tensors", "no digest"])
def test_a_state_that_was_changed_is_refused_in_words(store: Store, what: str) -> None:
    kept, facts = StoreCheckpointer(store.state("setting-0-0"), NullProgress()), {"begun": 1}
    kept.save({"x": torch.zeros(2), "b": torch.ones(3)}, facts)
    path = store.root / "states" / "setting-0-0.safetensors"
    tensors, header = read_safetensors(path)
    if what == "facts":
        header["facts"] = '{"begun": 2}'
    elif what == "tensors":
        tensors["x"][0] = 1
    else:
        del header["digest"]
    save_file(tensors, path, header)
    with pytest.raises(RunFolderError, match="remove it, and its attack starts again"):
        kept.load()


@pytest.mark.parametrize("what", ["value", "pictures", "no digest"])
def test_a_chunk_that_was_changed_is_refused_in_words(store: Store, what: str) -> None:
    value = {"rows": [{"seconds": 0.1}], "client_seconds": 2.5e-7}
    store.add_chunk("ab12-0", value, {"x": torch.zeros(2), "b": torch.ones(3)})
    found = store.chunk("ab12-0")
    assert found is not None
    assert found[0] == value
    path = store.root / "chunks" / "ab12-0.json"
    held = json.loads(path.read_text())
    if what == "value":
        held["rows"] = 7
    elif what == "pictures":
        save_file({"x": torch.ones(2), "b": torch.ones(3)}, path.with_suffix(".safetensors"))
    else:
        del held["digest"]
    path.write_text(json.dumps(held))
    with pytest.raises(RunFolderError, match="remove it, and its victims are attacked again"):
        store.chunk("ab12-0")
