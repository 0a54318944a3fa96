"""On a GPU: the step is captured in a CUDA graph and gives what the CPU gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from keyhole.attacks import DropoutInversion, InvertingGradients
from keyhole.data import load
from keyhole.defenses import Dropout
from keyhole.models import build
from keyhole.threat import Server

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["mlp", "lenet", "vit-small"])
def test_the_gpu_sees_what_the_cpu_sees(observe: Callable[..., Any], name: str) -> None:
    digits = load("digits")
    model = build(name, classes=10, channels=1, image_size=8)
    victim = observe(model, digits, [3], Dropout(p=0.25)).telling("labels")
    seen = victim.observation
    there = Server(model.cuda()).receive(
        seen.update.map(lambda _, tensor: tensor.cuda()), seen.knowledge
    )
    for attack in (InvertingGradients(iterations=5), DropoutInversion(iterations=5)):
        here, found = attack(seen), attack(there)
        assert found.notes == ()
        assert found.images is not None
        assert found.images.isfinite().all()
        losses = here.diagnostics["loss"], found.diagnostics["loss"]
        assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_a_compiled_step_sees_what_a_plain_one_sees(observe: Callable[..., Any]) -> None:
    digits = load("digits")
    model = build("mlp", classes=10, channels=1, image_size=8)
    victim = observe(model, digits, [3], Dropout(p=0.25)).telling("labels")
    seen = victim.observation
    there = Server(model.cuda()).receive(
        seen.update.map(lambda _, tensor: tensor.cuda()), seen.knowledge
    )
    plain = InvertingGradients(iterations=20, compiled="never")(there)
    found = InvertingGradients(iterations=20, compiled="always")(there)
    assert found.notes == ()
    assert found.diagnostics["loss"] == pytest.approx(plain.diagnostics["loss"], rel=1e-2)
