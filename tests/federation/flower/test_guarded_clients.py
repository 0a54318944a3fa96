"""Clients under Flower that test their update before they send it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, Message

from flower_federations import CLIENTS, Run, alone, app_of, plan_of, recorded
from keyhole.auditing.guard import guard_mod
from keyhole.defenses import (
    Gaussian,
)
from keyhole.federation import (
    Capture,
    build_federation,
)
from keyhole.federation.flower import (
    CallNext,
    as_mod,
)


def test_a_guarded_client_withholds_what_would_leak(run: Run, tmp_path: Path) -> None:
    federation = build_federation(
        plan_of("vit-small", images=1, batch_size=1, steps=1), data_dir=None
    )

    def noise_for_two(message: Message, context: Context, call_next: Any) -> Message:
        if context.node_config["partition-id"] == 0:
            return call_next(message, context)
        return as_mod(Gaussian(sigma=1.0), seed=7)(message, context, call_next)

    run(
        app_of(federation, guard_mod(0.5, client=alone(federation), seconds=0), noise_for_two),
        federation.model,
    )
    (seen,) = Capture.open(tmp_path).rounds
    assert set(recorded(tmp_path, lost=1)) == {1, 2}
    assert "patch-lstsq (naive) reads 1 of 1 images" in seen.lost["100"]


@pytest.mark.parametrize(
    ("choices", "lost"),
    [({}, 3), ({"untested": "warn"}, 0), ({"warn": True}, 0)],
    ids=["by default", "untested may pass", "all may pass"],
)
def test_a_guarded_client_withholds_what_could_not_be_tested_unless_told_otherwise(
    run: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    choices: dict[str, Any],
    lost: int,
) -> None:
    federation = build_federation(plan_of("lenet", images=1, batch_size=1, steps=1), data_dir=None)
    mod = guard_mod(client=alone(federation), seconds=0, **choices)
    run(app_of(federation, mod), federation.model)
    warned = [r.getMessage() for r in caplog.records if r.name == "keyhole"]
    assert sum("no attack on images was tried" in text for text in warned) == CLIENTS
    assert len(recorded(tmp_path, lost=lost)) == CLIENTS - lost


def test_a_guard_may_only_warn(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = build_federation(
        plan_of("vit-small", images=1, batch_size=1, steps=1), data_dir=None
    )

    run(app_of(federation, guard_mod(client=alone(federation), warn=True)), federation.model)
    assert len(recorded(tmp_path)) == CLIENTS
    assert caplog.text.count("reads 1 of 1 images") == CLIENTS


def test_a_guard_withholds_tensors_that_the_model_does_not_have(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = build_federation(
        plan_of("vit-small", images=1, batch_size=1, steps=1), data_dir=None
    )

    def adds_images(message: Message, context: Any, call_next: CallNext) -> Message:
        reply = call_next(message, context)
        sent = reply.content["arrays"].to_torch_state_dict()
        reply.content["arrays"] = ArrayRecord({**sent, "images": torch.rand(1, 8, 8)})
        return reply

    guard = guard_mod(client=alone(federation), warn=True, seconds=0)
    assert run(app_of(federation, guard, adds_images), federation.model) == {}
    (seen,) = Capture.open(tmp_path).rounds
    assert all("'images', which the model does not have" in why for why in seen.lost.values())
