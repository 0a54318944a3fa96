"""Clients that train in bfloat16, and how the precision is chosen and recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.data import load
from keyhole.defenses import NoDefense
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, RoundClient, TrainingPlan, build_federation, train
from keyhole.federation.backends import Backend, CudaGraphTrainer, LoopTrainer, VmapTrainer
from keyhole.federation.precision import autocast, choose_precision, multiply_in
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update
from trainings import PLAN

digits = load("digits")
TRAINING = LocalTraining(lr=0.05, epochs=2, batch_size=4, momentum=0.9, precision="bf16")


def clients(training: LocalTraining) -> list[RoundClient]:
    shares = [list(range(8)), list(range(8, 16))]
    return [
        RoundClient(
            digits.images(share), digits.labels[share], generator(0, i), {}, digits, training
        )
        for i, share in enumerate(shares)
    ]


def updates(backend: Backend, training: LocalTraining, name: str = "lenet") -> list[Update]:
    model = build(name, classes=10, channels=1, image_size=8, seed=0)
    found = backend.train(model, clients(training), defense=NoDefense())
    return [update for update, _ in found]


def distance(one: Update, other: Update) -> float:
    """Relative to the norm of the other."""
    gaps = [(one.change[n] - t).double().norm() for n, t in other.change.items()]
    return float(torch.stack(gaps).norm()) / other.norm()


@pytest.mark.parametrize("backend", [VmapTrainer(), CudaGraphTrainer()], ids=["vmap", "graph"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_all_backends_train_in_bfloat16_alike(backend: Backend, optimiser: Any) -> None:
    training = replace(TRAINING, optimiser=optimiser, lr=0.05 if optimiser == "sgd" else 1e-3)
    exact = updates(LoopTrainer(), replace(training, precision="float32"))
    rounded = updates(LoopTrainer(), training)
    for ours, loop, float32 in zip(updates(backend, training), rounded, exact, strict=True):
        assert all(tensor.dtype == torch.float32 for tensor in ours.change.values())
        assert 1e-4 < distance(loop, float32) < 0.1
        assert distance(ours, loop) < 0.05


def test_small_changes_are_not_lost_in_bfloat16() -> None:
    """Weights stay in float32: steps below a bfloat16's last digit add up."""
    training = replace(TRAINING, lr=1e-5, momentum=0.0)
    exact = updates(LoopTrainer(), replace(training, precision="float32"))
    for ours, float32 in zip(updates(CudaGraphTrainer(), training), exact, strict=True):
        assert distance(ours, float32) < 0.1


def test_float32_is_what_no_precision_is() -> None:
    plain = updates(LoopTrainer(), replace(TRAINING, precision=None))
    for ours, other in zip(
        updates(LoopTrainer(), replace(TRAINING, precision="float32")), plain, strict=True
    ):
        assert all(torch.equal(ours.change[name], t) for name, t in other.change.items())


def test_a_gpus_settings_are_put_back() -> None:
    backends = torch.backends.cuda.matmul, torch.backends.cudnn

    def seen() -> tuple[bool, ...]:
        matmul, cudnn = backends
        return matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic

    before = seen()
    for precision, tf32 in (("float32", False), ("tf32", True), ("bf16", True)):
        with multiply_in(precision):  # type: ignore[arg-type]
            assert seen() == (tf32, tf32, False, True)
        assert seen() == before
    with multiply_in(None):
        assert seen() == before


def test_an_outer_autocast_is_left_alone() -> None:
    cpu = torch.device("cpu")
    with torch.autocast("cpu", torch.bfloat16), autocast(None, cpu):
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("device", "capability", "parameters", "chosen"),
    [
        ("cpu", None, 2_000_000, "float32"),
        ("cuda", (9, 0), 2_000_000, "bf16"),
        ("cuda", (9, 0), 100, "tf32"),
        ("cuda", (7, 5), 2_000_000, "float32"),
    ],
)
def test_the_precision_is_chosen_by_device_and_model(
    device: str,
    capability: tuple[int, int] | None,
    parameters: int,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Placed:
        """Parameters on a device that need not exist."""

        def parameters(self) -> Any:
            weight = nn.Parameter(torch.empty(parameters))

            class OnDevice:
                device = torch.device(weights_device)
                numel = weight.numel

            yield OnDevice()

    weights_device = device
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    model: Any = Placed()
    assert choose_precision("auto", model) == chosen
    assert choose_precision("bf16", model) == "bf16"
    if chosen == "float32":
        with pytest.raises(DoesNotFit, match="no TF32 here"):
            choose_precision("tf32", model)


def test_the_plan_says_what_was_chosen_and_a_continuation_keeps_to_it(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"precision": "bf16", "rounds": 2})
    whole = train(plan, out=tmp_path / "whole")
    train(plan.model_copy(update={"rounds": 1}), out=tmp_path / "run")
    resumed = train(plan, out=tmp_path / "run")
    noted = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (noted["precision"], noted["precision_used"]) == ("bf16", "bf16")
    assert (noted["clients_trained"], noted["steps_run"]) == ("one by one", "launched")
    ours, theirs = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    other = train(PLAN.model_copy(update={"rounds": 2}), out=tmp_path / "float32")
    ends = other.model.state_dict()
    assert any(not torch.equal(ends[name], tensor) for name, tensor in theirs.items())


def test_a_training_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    train(PLAN.model_copy(update={"rounds": 1}), out=tmp_path)
    path = tmp_path / "plan.json"
    plan = json.loads(path.read_text())
    for later in ("precision", "compiled", "precision_used", "steps_run"):
        del plan[later]
    path.write_text(json.dumps(plan))
    assert train(PLAN, out=tmp_path).resumed_after == 1


def test_a_cpu_trains_in_float32_unless_told() -> None:
    plan = TrainingPlan(clients=2, images=4)
    assert build_federation(plan, data_dir=None).training.precision == "float32"
    half = plan.model_copy(update={"precision": "bf16"})
    assert build_federation(half, data_dir=None).training.precision == "bf16"
