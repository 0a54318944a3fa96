"""Patches in the span of what a client changed in the first block's LoRA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attack_cases import model as build_case
from captures import audited
from keyhole.attacks import LoraSpan
from keyhole.attacks.analytic.lora_layers import TokenLayer, find_token_layer
from keyhole.attacks.analytic.lora_span import Prior, find_span, solve_patches
from keyhole.auditing import audit
from keyhole.data import load
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, TrainingPlan, train
from keyhole.models import build
from keyhole.models.fine_tuning import fine_tune
from keyhole.optimisers import Adam, Sgd

DIGITS = load("digits")
SHAPE = (1, 8, 8)


@pytest.fixture
def vit() -> nn.Module:
    return build_case("vit-lora")


def test_the_layer_is_found_with_all_that_is_known_of_its_tokens(vit: nn.Module) -> None:
    layer = find_token_layer(vit, SHAPE)
    assert isinstance(layer, TokenLayer)
    assert layer.names == ("blocks.0.attn.qkv.lora_A.default.weight",)
    assert (layer.tokens, layer.rank, layer.embedding.shape) == (5, 8, (256, 16))
    image = torch.randn(1, *SHAPE)
    inputs: list[Tensor] = []
    block: Any = vit.blocks[0]  # type: ignore[index]
    with block.attn.qkv.register_forward_pre_hook(lambda m, args: inputs.append(args[0])):
        vit.eval()(image)
    before = layer.start + image.flatten()[layer.stem.layout].double() @ layer.embedding.T
    after = torch.nn.functional.layer_norm(before, (256,), layer.scale, layer.shift, 1e-5)
    torch.testing.assert_close(inputs[0][0, 1:].double(), after, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("share", "why"),
    [
        ("head", "no LoRA layer"),
        ("lora(r=2, targets='mlp.0')", "all lie deeper"),
        ("lora(r=2, targets='patch_embed,qkv')", "frozen patch embedding"),
    ],
)
def test_other_layers_are_refused_in_words(share: str, why: str) -> None:
    model = build("vit-small", classes=10, channels=1, image_size=8)
    found = find_token_layer(fine_tune(model, share), SHAPE)
    assert isinstance(found, str)
    assert why in found


def test_patches_are_the_solution_in_the_span_of_their_tokens(vit: nn.Module) -> None:
    layer = find_token_layer(vit, SHAPE)
    assert isinstance(layer, TokenLayer)
    layer = replace(layer, shift=torch.linspace(-1, 1, 256).double())
    true = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).double()
    before = layer.start + true @ layer.embedding.T
    tokens = torch.nn.functional.layer_norm(before, (256,), layer.scale, layer.shift, 1e-5)
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).double() @ tokens
    directions, strengths = find_span(rows, 4)
    prior = Prior(torch.zeros(16).double(), torch.eye(16).double())
    found, residual = solve_patches(layer, directions, 1e-9, prior)
    torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)
    assert (len(strengths), residual < 1e-6) == (4, True)


@pytest.mark.parametrize(
    "training", [LocalTraining(), LocalTraining(lr=0.003, steps=3, momentum=0.9)]
)
def test_a_digit_is_read(
    vit: nn.Module, observe: Callable[..., Any], training: LocalTraining
) -> None:
    victim = observe(vit, DIGITS, [3], training=training)
    known = replace(victim.observation.knowledge, optimiser=training.read_optimiser())
    found = LoraSpan()(replace(victim.observation, knowledge=known))
    assert found.images is not None
    assert float((found.images.double() - DIGITS.normalise(victim.images)).square().mean()) < 1e-3
    assert found.confidence is not None
    assert float(found.confidence) > 0.5


def test_what_it_cannot_read_is_said(vit: nn.Module, observe: Callable[..., Any]) -> None:
    def why(optimiser: Any, indices: list[int]) -> str:
        seen = observe(vit, DIGITS, indices).observation
        known = replace(seen.knowledge, optimiser=optimiser)
        return "; ".join(LoraSpan().incompatibilities(replace(seen, knowledge=known)))

    assert why(Sgd(momentum=0.9), [3]) == ""
    assert "SGD without weight decay" in why(Adam(), [3])
    assert "SGD without weight decay" in why(Sgd(weight_decay=0.1), [3])
    assert "SGD without weight decay" in why(None, [3])
    assert "one image per client" in why(Sgd(), [3, 4])


def test_rounds_in_which_b_moves_stack() -> None:
    stage = {"model": "vit-small", "data": "digits", "share": "lora(r=2, head=false)"}
    common = {**stage, "victims": 1, "attacks": ["lora-span"], "lr": 0.3, "steps": 3}
    result = audit(**common, repeats=5, moving=True)  # type: ignore[arg-type]
    assert result.findings[0].metrics["psnr"].per_image[0] > 25
    assert result.findings[0].diagnostics["updates"] == 5
    with pytest.raises(DoesNotFit, match="it needs 3 rounds"):
        audit(**common, repeats=2, moving=True)  # type: ignore[arg-type]


def test_captured_rounds_stack(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small",
        share="lora(r=2, head=false)",
        clients=2,
        images=1,
        batch_size=1,
        steps=3,
        momentum=0.5,
        lr=0.3,
        rounds=6,
        together="no",
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    asked = {"model": "vit-small", "attacks": ("lora-span",)}
    result = audited(tmp_path / "seen", **asked, rounds="6")
    (finding,) = result.findings
    assert finding.diagnostics["updates"] == 6
    assert min(finding.metrics["psnr"].per_image) > 20
    with pytest.raises(DoesNotFit, match="it needs 3 rounds"):
        audited(tmp_path / "seen", **asked)


def test_reports_on_other_models_do_not_mention_it() -> None:
    result = audit(model="vit-small", data="digits", attacks=["auto"], victims=1)
    assert not [s for s in result.skipped if s.attack == "lora-span"]
