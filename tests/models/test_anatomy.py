from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.models.anatomy import (
    InputLayer,
    PatchEmbedding,
    find_input_layer,
    find_patch_embedding,
    find_position_embedding,
    input_shape,
    unused_parameters,
)

TIMM = "timm:vit_tiny_patch16_224"


class TinyViT(nn.Module):
    """Cuts 4 px patches by a convolution; attends by averaging; positions under any name."""

    def __init__(self, *, positions: bool = True, prefix: int = 1, side: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, stride=4)
        self.start = nn.Parameter(torch.randn(prefix, 12))
        tokens = (side // 4) ** 2 + prefix
        self.whereabouts = nn.Parameter(torch.randn(tokens, 12)) if positions else None
        self.mix = nn.Linear(12, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.stem(images).flatten(2).mT
        x = torch.cat([self.start.expand(len(images), -1, -1), patches], 1)
        if self.whereabouts is not None:
            x = x + self.whereabouts
        return self.head((x * self.mix(x).tanh()).mean(1))


@cache
def model(name: str, size: int) -> nn.Module:
    return build(name, classes=10, channels=3, image_size=size)


@pytest.mark.parametrize(
    ("name", "size", "layer", "position", "tokens"),
    [
        ("vit-small", 32, "patch_embed", "pos_embed", 64),
        (TIMM, 64, "patch_embed.proj", "pos_embed", 16),
        ("timm:deit_tiny_patch16_224", 64, "patch_embed.proj", "pos_embed", 16),
    ],
)
def test_the_embeddings_of_a_vit_are_found(
    name: str, size: int, layer: str, position: str, tokens: int
) -> None:
    found = find_patch_embedding(model(name, size), (3, size, size))
    assert isinstance(found, PatchEmbedding)
    assert (found.input_layer.layer, found.position, found.offset) == (layer, position, 1)
    assert found.input_layer.tokens == tokens


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_positions_are_found_under_any_name_behind_any_prefix(prefix: int) -> None:
    found = find_patch_embedding(TinyViT(prefix=prefix), (3, 8, 8))
    assert isinstance(found, PatchEmbedding)
    assert (found.position, found.offset) == ("whereabouts", prefix)


def test_distilled_vits_have_two_prefix_tokens() -> None:
    distilled = build("timm:deit_tiny_distilled_patch16_224", classes=10, image_size=32)
    found = find_patch_embedding(distilled, (3, 32, 32))
    assert isinstance(found, PatchEmbedding)
    assert found.offset == 2


@pytest.mark.parametrize("name", ["vit-small", TIMM])
def test_assembling_undoes_the_patching(name: str) -> None:
    net = model(name, 64 if "timm" in name else 32)
    shape = (3, 64, 64) if "timm" in name else (3, 32, 32)
    found = find_input_layer(net, shape)
    assert isinstance(found, InputLayer)
    layer = net.get_submodule(found.layer)
    seen: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda m, args, out: seen.append((args[0], out)))
    image = torch.rand(2, *shape)
    net(image)
    handle.remove()
    columns = image.flatten(1)[:, found.layout]
    assert torch.equal(found.assemble(columns, shape), image)
    weight = net.get_parameter(found.weight).flatten(1)
    output = columns @ weight.T + net.get_parameter(found.bias)
    actual = seen[0][1]
    actual = actual.flatten(2).mT if actual.ndim == 4 else actual
    assert torch.allclose(output, actual.reshape(output.shape), atol=1e-4)


@pytest.mark.parametrize(("name", "size", "patch"), [("vit-small", 32, 4), (TIMM, 64, 16)])
def test_patches_go_row_by_row(name: str, size: int, patch: int) -> None:
    found = find_input_layer(model(name, size), (3, size, size))
    assert isinstance(found, InputLayer)
    corners = found.layout.min(1).values.view(size // patch, size // patch)
    assert corners[0].tolist() == list(range(0, size, patch))
    assert corners[:, 0].tolist() == list(range(0, size * size, size * patch))


def test_a_fully_connected_layer_sees_the_image_as_one_token() -> None:
    found = find_input_layer(model("mlp", 8), (3, 8, 8))
    assert isinstance(found, InputLayer)
    assert (found.layer, found.weight, found.bias) == ("1", "1.weight", "1.bias")
    assert torch.equal(found.layout, torch.arange(192)[None])
    text = find_patch_embedding(model("mlp", 8), (3, 8, 8))
    assert text == "its first layer '1' sees the whole image at once, not patches"


def test_any_order_of_the_pixels_is_read_off() -> None:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(48, 5)
            self.order = torch.randperm(48, generator=torch.Generator().manual_seed(0))

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(images.flatten(1)[:, self.order])

    net = Shuffled()
    found = find_input_layer(net, (3, 4, 4))
    assert isinstance(found, InputLayer)
    image = torch.rand(3, 4, 4)
    assert torch.equal(found.assemble(image.flatten()[net.order][None], (3, 4, 4)), image)


class Standardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer((images.flatten(1) - 0.5) / 0.25)


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5))


def dilated() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 2, stride=2, dilation=2), nn.Flatten(), nn.Linear(8, 5))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: build("lenet", classes=5, image_size=4), "5x5 convolution whose windows overlap"),
        (lambda: build("resnet18", classes=5, image_size=4), "3x3 convolution whose windows"),
        (Standardised, "sees a processed image, not the pixels"),
        (normed, "is a BatchNorm2d, not linear or a patch embedding"),
        (dilated, "convolution"),
    ],
)
def test_an_entrance_that_cannot_be_read_off_is_explained(
    make: Callable[[], nn.Module], words: str
) -> None:
    net = make()
    for found in (find_input_layer(net, (3, 4, 4)), find_patch_embedding(net, (3, 4, 4))):
        assert isinstance(found, str)
        assert words in found


@pytest.mark.parametrize("make", [nn.Flatten, nn.Identity])
def test_a_model_without_parameters_is_explained(make: Callable[[], nn.Module]) -> None:
    assert find_input_layer(make(), (3, 4, 4)) == "no layer of the model has parameters"


def test_a_vit_without_absolute_positions_is_explained() -> None:
    found = find_patch_embedding(TinyViT(positions=False), (3, 8, 8))
    assert isinstance(found, str)
    assert "no learned absolute position embedding" in found


def test_swin_has_no_absolute_positions() -> None:
    swin = build("timm:swin_tiny_patch4_window7_224", classes=10, image_size=64)
    found = find_patch_embedding(swin, (3, 64, 64))
    assert isinstance(found, str)
    assert "no learned absolute position embedding" in found


def test_a_vit_whose_head_is_zero_is_explained() -> None:
    net = TinyViT()
    nn.init.zeros_(net.head.weight)
    found = find_patch_embedding(net, (3, 8, 8))
    assert isinstance(found, str)
    assert "no gradient reaches its patch embedding" in found


def test_images_that_do_not_fit_are_told() -> None:
    with pytest.raises(DoesNotFit, match="cannot be fed"):
        find_input_layer(model("vit-small", 32), (3, 31, 32))


@pytest.mark.parametrize("training", [True, False])
def test_probing_leaves_the_model_as_it_was(training: bool) -> None:
    net = TinyViT().train(training)
    state = torch.get_rng_state()
    net.mix.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    find_patch_embedding(net, (3, 8, 8))
    assert net.training is training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    assert [p.requires_grad for p in net.mix.parameters()] == [False, False]
    assert net.stem.weight.requires_grad
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_probing_works_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        assert isinstance(find_patch_embedding(TinyViT(), (3, 8, 8)), PatchEmbedding)


def test_models_in_double_precision_are_probed_too() -> None:
    net = copy.deepcopy(model("vit-small", 32)).double()
    found = find_patch_embedding(net, (3, 32, 32))
    assert isinstance(found, PatchEmbedding)
    assert found.offset == 1
    assert next(net.parameters()).dtype == torch.float64


def test_a_probe_is_remembered_for_the_model_and_the_shape() -> None:
    net = TinyViT()
    assert find_patch_embedding(net, (3, 8, 8)) is find_patch_embedding(net, (3, 8, 8))
    assert find_input_layer(net, (3, 8, 8)) is find_input_layer(net, (3, 8, 8))


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("vit-small", {"channels": 1, "image_size": (8, 16)}, (1, 8, 16)),
        (TIMM, {"channels": 2, "image_size": (32, 48)}, (2, 32, 48)),
        ("torchvision:vit_b_16", {"image_size": 32}, (3, 32, 32)),
        ("timm:swin_tiny_patch4_window7_224", {"image_size": 64}, (3, 64, 64)),
    ],
)
def test_vits_say_which_images_they_take(
    name: str, options: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    assert input_shape(build(name, classes=5, **options)) == shape


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18"])
def test_other_networks_do_not_say_it(name: str) -> None:
    assert input_shape(build(name, classes=5, image_size=8)) is None


class Cut(nn.Module):
    """Cuts patches of its own shape, and numbers them row by row or column by column."""

    def __init__(self, tall: int, wide: int, *, by_rows: bool = True) -> None:
        super().__init__()
        self.tall, self.wide, self.by_rows = tall, wide, by_rows
        self.layer = nn.Linear(3 * tall * wide, 5)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.unfold(2, self.tall, self.tall).unfold(3, self.wide, self.wide)
        order = (0, 2, 3, 1, 4, 5) if self.by_rows else (0, 3, 2, 1, 4, 5)
        return self.layer(patches.permute(order).flatten(3).flatten(1, 2)).mean(1)


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize(("tall", "wide"), [(2, 4), (6, 2), (3, 4), (6, 4)])
def test_the_patches_size_and_order_are_found(tall: int, wide: int, by_rows: bool) -> None:
    found = find_input_layer(Cut(tall, wide, by_rows=by_rows), (3, 6, 8))
    assert isinstance(found, InputLayer)
    assert found.patch_size((3, 6, 8)) == (tall, wide)
    only_one = tall == 6 or wide == 8
    assert found.is_regular_grid((3, 6, 8)) == (by_rows or only_one)


def test_patches_that_are_no_rectangles_make_no_grid() -> None:
    class Interleaved(Cut):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images[..., [0, 2, 4, 6, 1, 3, 5, 7]])

    found = find_input_layer(Interleaved(2, 4), (3, 6, 8))
    assert isinstance(found, InputLayer)
    assert not found.is_regular_grid((3, 6, 8))


def test_positions_are_found_before_training_starts_from_a_zero_head() -> None:
    net = TinyViT()
    nn.init.zeros_(net.head.weight)
    before = copy.deepcopy(net.state_dict())
    found = find_position_embedding(net, (3, 8, 8))
    assert isinstance(found, PatchEmbedding)
    assert (found.position, found.offset) == ("whereabouts", 1)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_other_reasons_are_told_alike() -> None:
    for net in (TinyViT(positions=False), model("mlp", 8)):
        assert find_position_embedding(net, (3, 8, 8)) == find_patch_embedding(net, (3, 8, 8))


class Assisted(nn.Module):
    """Has a layer for a loss of the clients' own, which the logits do not pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(48, 5), nn.Linear(48, 2)
        self.silent = nn.Parameter(torch.zeros(5))

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1)) + 0 * self.silent


@pytest.mark.parametrize("training", [True, False])
def test_parameters_without_a_part_in_the_logits_are_found(training: bool) -> None:
    """One whose gradient happens to be 0 has a part all the same."""
    net = Assisted().train(training).requires_grad_(False)
    with torch.no_grad():
        assert unused_parameters(net, (3, 4, 4)) == {"spare.weight", "spare.bias"}
    assert not any(p.requires_grad for p in net.parameters())
    assert unused_parameters(TinyViT(), (3, 8, 8)) == frozenset()
