"""Which backend is chosen where there is a GPU; none is needed to test it."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.federation import TrainingPlan, build_federation, choosing
from keyhole.federation.backends import Backend, CudaGraphTrainer, LoopTrainer, VmapTrainer
from keyhole.federation.choosing import BackendFacts, choose_backend


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Lets steps be recorded anywhere; what is in the list is why the next trials fail."""
    waiting: list[str | None] = []
    monkeypatch.setattr(CudaGraphTrainer, "supports", lambda *_: True)
    monkeypatch.setattr(
        choosing, "why_recording_fails", lambda *_: waiting.pop(0) if waiting else None
    )
    return waiting


def chosen(**values: Any) -> Backend:
    plan = TrainingPlan(**{"clients": 6, "images": 4, **values})
    return choose_backend(plan, build_federation(plan, data_dir=None))


@pytest.mark.parametrize(
    ("values", "slots"),
    [
        ({"model": "lenet"}, choosing.SLOTS),
        ({"model": "lenet", "clients": 2}, 2),
        ({"model": "lenet", "together": "no"}, 1),
        ({"model": "resnet18"}, 1),
    ],
)
def test_small_models_take_turns(
    values: dict[str, Any], slots: int, refusals: list[str | None]
) -> None:
    backend = chosen(**values)
    assert isinstance(backend, CudaGraphTrainer)
    assert (len(backend.slots), backend.compiled) == (slots, False)


def test_together_is_one_tensor_axis_on_any_device(refusals: list[str | None]) -> None:
    assert isinstance(chosen(model="lenet", together="yes"), VmapTrainer)


@pytest.mark.parametrize(
    ("values", "compiled"),
    [
        ({"compiled": "yes"}, True),
        ({"compiled": "no", "rounds": 10**7}, False),
        ({"rounds": 10**7}, True),
        ({"rounds": 10}, False),
    ],
)
def test_long_trainings_are_compiled(
    values: dict[str, Any], compiled: bool, refusals: list[str | None]
) -> None:
    backend = chosen(model="lenet", **values)
    assert isinstance(backend, CudaGraphTrainer)
    assert backend.compiled is compiled


def test_what_cannot_be_compiled_is_recorded_as_it_is(
    refusals: list[str | None], caplog: pytest.LogCaptureFixture
) -> None:
    refusals.append("no compiler")
    backend = chosen(model="lenet", compiled="yes")
    assert isinstance(backend, CudaGraphTrainer)
    assert not backend.compiled
    assert "cannot be compiled (no compiler)" in caplog.text


def test_what_cannot_be_recorded_is_launched(
    refusals: list[str | None], caplog: pytest.LogCaptureFixture
) -> None:
    refusals.append("asks the GPU for a number")
    assert isinstance(chosen(model="resnet18", together="no"), LoopTrainer)
    assert "cannot be recorded (asks the GPU for a number)" in caplog.text


@pytest.mark.parametrize(
    "facts",
    [
        BackendFacts(False, 4, False, "bf16"),
        BackendFacts(False, 1, True, "tf32"),
        BackendFacts(True, 0, False, "float32"),
        BackendFacts(False, 0, False, None),
    ],
    ids=str,
)
def test_a_checkpoint_says_how_clients_were_trained(facts: BackendFacts) -> None:
    federation = build_federation(TrainingPlan(clients=2, images=4), data_dir=None)
    BackendFacts.from_json({"round": 3, **facts.to_json()}).apply(federation)
    assert BackendFacts.of(federation) == facts


def test_checkpoints_of_earlier_versions_say_less() -> None:
    assert BackendFacts.from_json({"together": True}) == BackendFacts(True, 0, False, None)
