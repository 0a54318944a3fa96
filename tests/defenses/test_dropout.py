from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.defenses import ClientSide, Dropout
from keyhole.errors import DoesNotFit
from keyhole.models import build


@cache
def model(name: str) -> nn.Module:
    return build(name, classes=10, image_size=32)


@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("mlp", 3),
        ("lenet", 1),
        ("resnet18", 1),
        ("vit-small", 17),
        ("timm:vit_tiny_patch16_224", 2 + 12 * 4),
        ("timm:resnet10t", 1),
    ],
)
def test_every_site_gets_the_rate(name: str, sites: int) -> None:
    side = ClientSide()
    protected = Dropout(p=0.37).on_model(model(name), side)
    layers = [m for m in protected.modules() if isinstance(m, nn.Dropout)]
    assert all(layer.p == 0.37 for layer in layers)
    assert side.telemetry == {"dropout_sites": sites}


def drops(protected: nn.Module, shape: tuple[int, int, int]) -> bool:
    protected.train()
    image = torch.rand(2, *shape)
    return not torch.equal(protected(image), protected(image))


@pytest.mark.parametrize("name", ["mlp", "lenet", "vit-small", "timm:vit_tiny_patch16_224"])
def test_the_protected_model_drops_while_training(name: str) -> None:
    assert drops(Dropout(p=0.5).on_model(model(name)), (3, 32, 32))
    assert not drops(Dropout(p=0).on_model(model(name)), (3, 32, 32))


def test_networks_that_drop_by_a_function_drop_too() -> None:
    assert drops(Dropout(p=0.5).on_model(model("timm:resnet10t")), (3, 32, 32))


@pytest.mark.parametrize("name", ["vit-small", "timm:vit_tiny_patch16_224"])
def test_attention_itself_drops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0, **rest: object) -> Tensor:
        rates.append(dropout_p)
        return v

    protected = Dropout(p=0.25).on_model(model(name)).train()
    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    for module in protected.modules():
        if type(module).__name__ == "Attention":
            assert module.attn_drop.p == 0.25
            module.attn_drop.register_forward_hook(lambda m, args, out: rates.append(m.p))
    protected(torch.rand(1, 3, 32, 32))
    assert rates == [0.25] * len(protected.blocks)


def test_multi_head_attention_drops() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    protected = Dropout(p=0.3).on_model(encoder)
    assert protected.self_attn.dropout == 0.3
    assert protected.dropout.p == protected.dropout1.p == protected.dropout2.p == 0.3


def test_the_given_model_is_left_alone() -> None:
    given = copy.deepcopy(model("vit-small"))
    protected = Dropout(p=0.5).on_model(given)
    assert protected is not given
    assert all(m.p == 0 for m in given.modules() if isinstance(m, nn.Dropout))
    with torch.no_grad():
        protected.head.weight.zero_()
    assert given.head.weight.any()


def test_weights_stay_as_they_were() -> None:
    given = model("mlp")
    protected = Dropout(p=0.5).on_model(given)
    for name, tensor in given.state_dict().items():
        assert torch.equal(protected.state_dict()[name], tensor)


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(2, 2), lambda: nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU())]
)
def test_a_model_without_dropout_is_refused_with_a_reason(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(DoesNotFit, match=r"'dropout' does not fit the model: it has no dropout"):
        Dropout().on_model(make())
    assert "add nn.Dropout(0.0)" in Dropout().incompatibilities(make())[0]


@pytest.mark.parametrize("p", [1, -0.1, float("nan")])
def test_rates_it_cannot_take_are_refused(p: float) -> None:
    with pytest.raises(ValidationError):
        Dropout(p=p)
