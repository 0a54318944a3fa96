"""Heat maps, against networks whose answer is known and against differences of logits."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.models.channel_importance import IMAGES_PER_PASS, apply_change
from keyhole.models.gradcam import heat_maps, last_convolution


def batch(size: int = 12, count: int = 3, channels: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.rand(count, channels, size, size, generator=draw), torch.arange(count) % 4


class Net(nn.Module):
    """Declared in another order than it runs; batch norm and a ReLU that overwrites the maps."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.second = nn.Conv2d(5, 6, 3, stride=2, padding=1)
        self.first = nn.Conv2d(3, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        return self.head(self.relu(self.second(x)).square().mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(3)
    made = Net()
    made.norm.running_mean = torch.randn(5) / 4
    made.norm.running_var = torch.rand(5) + 0.5
    return made.train()


def finished(coarse: Tensor, size: int) -> Tensor:
    """ReLU, bilinear growth and the peak brought to 1, one map at a time."""
    grown = F.interpolate(coarse.relu()[None, None], (size, size), mode="bilinear")[0, 0]
    return grown / grown.max() if grown.max() > 0 else grown


def by_differences(model: nn.Module, layer: str, image: Tensor, label: int) -> Tensor:
    """The map of one image without a gradient: alpha_k from how the logit moves when a small
    constant is added to all M places of channel k, which is M alpha_k per unit."""
    model = copy.deepcopy(model).double().eval().requires_grad_(False)
    seen: list[Tensor] = []
    shift = torch.zeros(1, dtype=torch.double)

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        seen.append(output.clone())
        return output + shift.view(-1, 1, 1)

    model.get_submodule(layer).register_forward_hook(hook)

    def logit(move: Tensor) -> float:
        nonlocal shift
        shift = move
        return float(model(image[None].double())[0, label])

    logit(shift)
    output, step = seen[0][0], 1e-5
    places = output[0].numel()
    coarse = torch.zeros_like(output[0])
    for k in range(len(output)):
        one = torch.zeros(len(output), dtype=torch.double)
        one[k] = step
        coarse += (logit(one) - logit(-one)) / (2 * step * places) * output[k]
    return finished(coarse, image.shape[-1])


def test_it_is_the_class_activation_map_where_a_linear_layer_follows_the_mean() -> None:
    """There alpha_k is the head's weight over the number of places: the map is W_c . H."""
    torch.manual_seed(0)
    conv, head = nn.Conv2d(3, 7, 3, padding=1), nn.Linear(7, 4)
    model = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    images, labels = batch()
    found = heat_maps(model, images, labels)
    assert found.shape == (3, 12, 12)
    for image, label, heat in zip(images, labels, found, strict=True):
        expected = finished(torch.einsum("k,khw->hw", head.weight[label], conv(image)), 12)
        assert expected.max() == 1
        assert torch.allclose(heat, expected, atol=1e-5)


@pytest.mark.parametrize("layer", ["first", "second"])
def test_maps_agree_with_differences_of_the_logit(net: nn.Module, layer: str) -> None:
    images, labels = batch()
    found = heat_maps(net.double(), images.double(), labels, layer=layer)
    for image, label, heat in zip(images, labels, found, strict=True):
        expected = by_differences(net, layer, image, int(label))
        assert torch.allclose(heat, expected, atol=1e-6)
    assert found.amax() == 1


def test_a_change_in_place_after_the_layer_does_not_matter(net: nn.Module) -> None:
    other = Net(inplace=False)
    other.load_state_dict(net.state_dict())
    images, labels = batch()
    assert torch.equal(heat_maps(net, images, labels), heat_maps(other, images, labels))


def test_weights_are_moved_by_a_change(net: nn.Module) -> None:
    images, labels = batch()
    draw = torch.Generator().manual_seed(0)
    change = {n: torch.randn(p.shape, generator=draw) / 3 for n, p in net.named_parameters()}
    change["norm.running_mean"] = torch.ones(5)
    found = heat_maps(net, images, labels, change=change)
    assert torch.equal(found, heat_maps(apply_change(net, change), images, labels))
    assert not torch.allclose(found, heat_maps(net, images, labels), atol=0.1)
    still = {name: torch.zeros_like(tensor) for name, tensor in net.state_dict().items()}
    assert torch.equal(heat_maps(net, images, labels, change=still), heat_maps(net, images, labels))


def test_the_model_and_the_draws_are_left_alone(net: nn.Module) -> None:
    before = copy.deepcopy(net.state_dict())
    images, labels = batch()
    kept = images.clone()
    state = torch.get_rng_state()
    with torch.no_grad():
        heat_maps(net, images, labels)
        last_convolution(net, images)
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert not any(m._forward_hooks for m in net.modules())
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    assert torch.equal(images, kept)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_is_its_images_one_by_one(net: nn.Module) -> None:
    images, labels = batch(count=IMAGES_PER_PASS + 3)
    together = heat_maps(net, images, labels)
    for i in (0, IMAGES_PER_PASS - 1, IMAGES_PER_PASS, IMAGES_PER_PASS + 2):
        alone = heat_maps(net, images[i : i + 1], labels[i : i + 1])
        assert torch.allclose(together[i], alone[0], atol=1e-4)
    assert heat_maps(net, images[:0], labels[:0], layer="second").shape == (0, 12, 12)


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_a_map_reaches_one_or_is_zero(seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    model = Net()
    draw = torch.Generator().manual_seed(seed)
    images = scale * torch.randn(2, 3, 8, 8, generator=draw)
    found = heat_maps(model, images, torch.tensor([0, 3]))
    assert float(found.min()) >= 0
    peaks = found.amax((1, 2))
    assert bool(((peaks - 1).abs() < 1e-6).logical_or(peaks == 0).all())


def test_a_map_without_heat_stays_zero() -> None:
    conv = nn.Conv2d(1, 1, 1, bias=False)
    model = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        conv.weight.fill_(1)
        model[-1].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    image = torch.ones(1, 1, 4, 4)
    assert torch.equal(heat_maps(model, image, torch.tensor([0])), torch.ones(1, 4, 4))
    assert torch.equal(heat_maps(model, image, torch.tensor([1])), torch.zeros(1, 4, 4))


class Aside(nn.Module):
    """Its convolution takes no part in the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.conv(x)
        return x.mean((2, 3))


def test_a_layer_that_does_not_matter_has_no_heat() -> None:
    images, labels = batch()
    assert not heat_maps(Aside(), images, labels % 3).any()


# -- which layer ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resnet18", 16, "layer4.1.conv2"),
        ("resnet18", 8, "layer3.1.conv2"),  # after it there is one place only
        ("lenet", 16, "4"),
        ("torchvision:mobilenet_v3_small", 64, "features.12.0"),
        ("timm:vit_tiny_patch16_224", 32, "patch_embed.proj"),
    ],
)
def test_the_last_convolution_with_a_map(name: str, size: int, expected: str) -> None:
    model = build(name, classes=4, image_size=size)
    images, labels = batch(size, 1)
    assert last_convolution(model, images) == expected
    found = heat_maps(model, images, labels)
    assert found.shape == (1, size, size)
    assert bool(found.isfinite().all())


def test_it_is_the_last_to_run_not_the_last_declared(net: nn.Module) -> None:
    assert last_convolution(net, batch()[0]) == "second"


def test_what_has_no_maps_is_told(net: nn.Module) -> None:
    images, labels = batch()
    with pytest.raises(DoesNotFit, match="no convolution"):
        heat_maps(build("mlp", classes=4, image_size=12), images, labels)
    with pytest.raises(DoesNotFit, match="no layer 'nowhere'"):
        heat_maps(net, images, labels, layer="nowhere")
    with pytest.raises(DoesNotFit, match="'head' returns no maps"):
        heat_maps(net, images, labels, layer="head")


@pytest.mark.gpu
def test_maps_are_the_same_on_a_gpu(net: nn.Module) -> None:
    images, labels = batch()
    expected = heat_maps(net.double(), images.double(), labels)
    found = heat_maps(net.cuda(), images.double().cuda(), labels)
    assert found.is_cuda
    assert torch.allclose(found.cpu(), expected, atol=1e-6)
