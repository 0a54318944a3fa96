"""What clients train of a model, and that a model computes the same at first."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

from keyhole.defenses import Share
from keyhole.errors import KeyholeError
from keyhole.federation import LocalTraining, compute_local_update
from keyhole.models import add_adapters, build
from keyhole.models.fine_tuning import Lora, fine_tune
from keyhole.models.shares import FINE_TUNINGS

peft = pytest.importorskip("peft")
SHARES = ["head", "norm+head", "lora(r=2)", "adapters(width=4)", "all"]


def vit() -> nn.Module:
    return build("vit-small", classes=10, channels=1, image_size=8)


def trained(model: nn.Module) -> list[str]:
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


@pytest.mark.parametrize("share", SHARES)
def test_a_model_computes_the_same_and_stays_as_it_is(share: str) -> None:
    model = vit().eval()
    before = copy.deepcopy(model.state_dict())
    images = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(fine_tune(model, share)(images), model(images))
    assert all(torch.equal(model.state_dict()[n], t) for n, t in before.items())
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("share", SHARES)
def test_clients_report_what_they_train_and_nothing_else_moves(share: str) -> None:
    model = fine_tune(vit(), share)
    images, labels = torch.randn(2, 1, 8, 8), torch.tensor([1, 2])
    training = LocalTraining(lr=0.1, steps=2)
    change = compute_local_update(model, images, labels, training=training, seed=0).change
    assert list(change) == trained(model)
    assert all(bool(tensor.any()) for name, tensor in change.items() if "head" in name)


def test_norm_and_head_is_norms_and_the_head() -> None:
    names = trained(fine_tune(vit(), "norm+head"))
    assert {"head.weight", "blocks.0.norm1.weight"} < set(names)
    assert all(".norm" in name or name.startswith(("norm", "head")) for name in names)


def test_the_head_alone_is_what_the_defense_of_that_name_shares() -> None:
    model = vit()
    shared = set(model.state_dict()) - Share(part="head").unshared(model)
    assert shared == set(trained(fine_tune(model, "head")))


def test_adapters_are_those_of_adapter_models() -> None:
    assert trained(fine_tune(vit(), "adapters")) == trained(add_adapters(vit()))


def test_lora_is_pefts_and_begins_at_zero() -> None:
    model = fine_tune(vit(), "lora(r=3, alpha=6)")
    layer = model.blocks[0].attn.qkv  # type: ignore[union-attr, index]
    assert isinstance(layer, peft.tuners.lora.LoraLayer)
    assert layer.scaling["default"] == 2.0
    assert layer.lora_A["default"].weight.shape == (3, 256)
    assert not layer.lora_B["default"].weight.any()
    assert {"head.weight", "head.bias"} < set(trained(model))
    assert not any("head" in name for name in trained(fine_tune(vit(), "lora(r=3, head=false)")))
    again = fine_tune(vit(), "lora(r=3)").state_dict()
    key = "blocks.0.attn.qkv.lora_A.default.weight"
    assert torch.equal(again[key], model.state_dict()[key])
    assert not torch.equal(again[key], fine_tune(vit(), "lora(r=3, seed=1)").state_dict()[key])


@pytest.mark.parametrize(
    ("name", "expected"), [("mlp", "1"), ("lenet", "0"), ("timm:resnet10t", "conv1.0")]
)
def test_lora_takes_what_there_is_where_there_is_no_attention(name: str, expected: str) -> None:
    model = build(name, classes=10, channels=3, image_size=32)
    found = Lora().find_targets(model)
    assert found[0] == expected
    assert all(not layer.endswith("fc") for layer in found)
    named = dict(model.named_modules())
    assert len({type(named[layer]) for layer in found}) == 1


def test_layers_are_named_by_their_ends() -> None:
    assert Lora(targets="qkv, proj").find_targets(vit())[:2] == [
        "blocks.0.attn.qkv",
        "blocks.0.attn.proj",
    ]


@pytest.mark.parametrize(
    ("share", "model", "word"),
    [
        ("lora(targets='fc9')", "vit-small", "no layer's name ends with 'fc9'"),
        ("lora(r=0)", "vit-small", "greater than or equal to 1"),
        ("lara(r=2)", "vit-small", "did you mean lora"),
        ("adapters", "mlp", "adapters need a ViT"),
        ("norm+head", "mlp", "no norms"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(share: str, model: str, word: str) -> None:
    with pytest.raises(KeyholeError, match=word) as said:
        fine_tune(build(model, classes=10, channels=1, image_size=8), share)
    assert "\n" not in str(said.value)


def test_without_peft_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(KeyholeError, match=r"pip install 'keyhole\[peft\]'"):
        fine_tune(vit(), "lora")
    assert trained(fine_tune(vit(), "head")) == ["head.weight", "head.bias"]


def test_every_name_is_a_fine_tuning() -> None:
    assert [kind.name for kind in FINE_TUNINGS] == FINE_TUNINGS.names()
    assert all(str(FINE_TUNINGS.parse(name)) == name for name in FINE_TUNINGS.names())
