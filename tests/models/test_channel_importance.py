"""Grad-CAM's weights of every convolution, against one layer at a time written out."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from keyhole.models import build
from keyhole.models.channel_importance import (
    channel_importance,
    convolutions,
    count_channels,
    top_channels,
    weight_name,
)


def batch(size: int = 32, count: int = 3, channels: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.rand(count, channels, size, size, generator=draw), torch.arange(count) % 10


def adding(shift: Tensor, places: list[int]) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        places.append(output.shape[-1] * output.shape[-2])
        return output + shift.view(-1, 1, 1)

    return hook


def by_hand(model: nn.Module, layer: str, images: Tensor, labels: Tensor) -> Tensor:
    """One sample and one layer at a time: a constant c_k on all M places of channel k moves the
    logit by M * alpha_k * c_k, so that alpha_k is the derivative by that constant, over M.
    """
    model = copy.deepcopy(model).eval()
    total = torch.zeros(model.get_submodule(layer).out_channels)
    for image, label in zip(images, labels, strict=True):
        shift = torch.zeros_like(total).requires_grad_(True)
        places: list[int] = []
        handle = model.get_submodule(layer).register_forward_hook(adding(shift, places))
        (found,) = torch.autograd.grad(model(image[None])[0, label], shift)
        handle.remove()
        total += found / places[0]
    return total / len(images)


@pytest.mark.parametrize(
    ("name", "size", "layers"),
    [
        ("resnet18", 16, ["conv1", "layer2.0.downsample.0", "layer3.1.conv2"]),
        ("torchvision:mobilenet_v2", 32, ["features.0.0", "features.5.conv.1.0"]),
        ("timm:convnext_atto", 32, ["stem.0", "stages.2.blocks.1.conv_dw"]),
    ],
)
def test_one_pass_gives_every_layer_its_weights(name: str, size: int, layers: list[str]) -> None:
    model = build(name, classes=10, image_size=size)
    images, labels = batch(size, 2)
    found = channel_importance(model, images, labels)
    assert set(found) == set(convolutions(model))
    for layer in layers:
        expected = by_hand(model, layer, images, labels)
        assert expected.abs().max() > 0
        worst = (found[layer] - expected).abs().max() / expected.abs().max()
        assert worst < 1e-3


def test_a_change_in_place_after_a_layer_does_not_matter() -> None:
    """The weight is that of the convolution's own output, before the ReLU writes over it."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 5, 3), nn.ReLU(inplace=True), nn.Conv2d(5, 4, 3), nn.ReLU(inplace=True)),
        *(nn.Flatten(), nn.Linear(4 * 4 * 4, 10)),
    )
    images, labels = batch(8)
    found = channel_importance(model, images, labels)
    for layer in ("0", "2"):
        expected = by_hand(model, layer, images, labels)
        assert found[layer].float().allclose(expected, rtol=1e-4, atol=1e-7)


def test_many_samples_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("lenet", classes=10, channels=1, image_size=8)
    images, labels = batch(8, 7, 1)
    whole = channel_importance(model, images, labels)
    monkeypatch.setattr("keyhole.models.channel_importance.IMAGES_PER_PASS", 3)
    parts = channel_importance(model, images, labels)
    assert all(torch.allclose(whole[n], parts[n], rtol=1e-4) for n in whole)


def test_the_model_is_asked_as_the_change_leaves_it() -> None:
    model = build("resnet18", classes=10, image_size=16)
    images, labels = batch(16)
    draw = torch.Generator().manual_seed(2)
    change = {
        n: torch.randn(t.shape, generator=draw) * 0.01 if t.is_floating_point() else t + 1
        for n, t in model.state_dict().items()
        if "running_var" not in n
    }
    after = copy.deepcopy(model)
    moved = {n: t + change.get(n, 0) for n, t in model.state_dict().items()}
    after.load_state_dict(moved)
    found = channel_importance(model, images, labels, change=change)
    expected = channel_importance(after, images, labels)
    start = channel_importance(model, images, labels)
    assert all(torch.equal(found[n], expected[n]) for n in found)
    assert not torch.allclose(found["conv1"], start["conv1"])


def test_nothing_is_left_on_the_model(same_rng: Callable[[], bool]) -> None:
    model = build("resnet18", classes=10, image_size=16).train()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        channel_importance(model, *batch(16))
    assert model.training
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
    assert same_rng()


class Odd(nn.Module):
    """Uses one convolution twice, one not at all, and draws even in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Conv2d(3, 3, 3, padding=1)
        self.never = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x).relu_()) + torch.rand(1)
        return self.head(x.mean((2, 3)))


def test_layers_used_twice_and_never(same_rng: Callable[[], bool]) -> None:
    images, labels = batch(8)
    model = Odd()
    model.load_state_dict({n: torch.randn(t.shape) for n, t in model.state_dict().items()})
    torch.manual_seed(0)
    found = channel_importance(model, images, labels)
    assert torch.equal(found["never"], torch.zeros(4, dtype=torch.double))
    last = model.head.weight[labels].mean(0) / 64
    assert not torch.allclose(found["twice"].float(), last)
    assert torch.equal(channel_importance(model, images, labels)["twice"], found["twice"])
    assert same_rng()


def test_names_of_weights() -> None:
    assert (weight_name("a.b"), weight_name("")) == ("a.b.weight", "weight")
    assert list(convolutions(nn.Conv2d(1, 2, 3))) == [""]
    assert not convolutions(nn.Linear(2, 2))
    hidden = nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 2, 3))
    assert not convolutions(hidden)


@pytest.mark.parametrize("channels", [1, 3, 10, 64, 70, 512])
def test_the_share_of_channels(channels: int) -> None:
    assert count_channels(channels, 0.1) == max(1, channels // 10)
    assert count_channels(channels, 1.0) == channels


def test_channels_are_ranked_with_their_sign_or_without() -> None:
    weights = torch.tensor([0.0, -5.0, 1.0, 3.0])
    assert top_channels(weights, 0.5).tolist() == [3, 2]
    assert top_channels(weights, 0.5, absolute=True).tolist() == [1, 3]
    assert top_channels(torch.zeros(4), 0.5).tolist() == [0, 1]
