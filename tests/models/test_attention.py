from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from timm.layers import set_fused_attn
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.models.attention import attention_maps
from keyhole.models.vit_small import HEADS, SmallViT

TIMM = "timm:vit_tiny_patch16_224"
DEPTH = 2


class TinyViT(nn.Module):
    """Eight tokens of 12 dimensions; attends in one of many ways and is read in one of three."""

    def __init__(self, way: str = "fused", read: str = "class") -> None:
        super().__init__()
        self.way, self.read = way, read
        self.start = nn.Parameter(torch.randn(1, 1, 12))
        self.qkv = nn.ModuleList(nn.Linear(12, 36) for _ in range(DEPTH))
        self.multi = nn.ModuleList(
            nn.MultiheadAttention(12, 3, batch_first=way != "tokens first") for _ in range(DEPTH)
        )
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(12, 5)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.flatten(2).mT.reshape(len(images), 7, 12)
        x = torch.cat([self.start.expand(len(images), -1, -1), patches], 1)
        for i in range(DEPTH):
            x = x + self.drop(self.attend(i, x))
        chosen = {"class": x[:, 0], "mean": x.mean(1), "patches": x[:, 1:].mean(1)}
        return self.head(chosen[self.read])

    def attend(self, i: int, x: Tensor) -> Tensor:
        if self.way in {"multi-head", "with weights"}:
            return self.multi[i](x, x, x, need_weights=self.way == "with weights")[0]
        if self.way == "tokens first":
            return self.multi[i](x.mT.permute(2, 0, 1), *[x.transpose(0, 1)] * 2)[0].transpose(0, 1)
        q, k, v = self.qkv[i](x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        if self.way == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.mT / 2
            softmax = {"F": F.softmax, "torch": torch.softmax, "method": Tensor.softmax}
            mixed = softmax[self.way](scores, dim=-1) @ v
        return mixed.transpose(1, 2).flatten(2)

    def expected(self, images: Tensor) -> Tensor:
        """The class token's attention in the last block, by hand."""
        patches = images.flatten(2).mT.reshape(len(images), 7, 12)
        x = torch.cat([self.start.expand(len(images), -1, -1), patches], 1)
        for i in range(DEPTH - 1):
            x = x + self.attend(i, x)
        if self.way in {"multi-head", "with weights", "tokens first"}:
            weight, bias = self.multi[-1].in_proj_weight, self.multi[-1].in_proj_bias
        else:
            weight, bias = self.qkv[-1].weight, self.qkv[-1].bias
        q, k, _ = F.linear(x, weight, bias).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return (q @ k.mT / 2).softmax(-1)[:, :, 0]


IMAGES = torch.randn(4, 3, 4, 7, generator=torch.Generator().manual_seed(1))
WAYS = ["fused", "F", "torch", "method", "multi-head", "with weights", "tokens first"]


@cache
def model(name: str, size: int) -> nn.Module:
    return build(name, classes=10, channels=3, image_size=size)


@pytest.mark.parametrize("way", WAYS)
def test_the_last_attention_is_met_whichever_way_a_network_attends(way: str) -> None:
    network = TinyViT(way).eval()
    found = attention_maps(network, IMAGES)
    assert found.shape == (4, 3, 8)
    torch.testing.assert_close(found, network.expected(IMAGES))


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("vit-small", 16, (2, 16, 17)),
        (TIMM, 64, (2, 3, 17)),
        ("timm:deit_tiny_distilled_patch16_224", 64, (2, 3, 18)),
        ("torchvision:vit_b_32", 64, (2, 12, 5)),
    ],
)
def test_the_class_tokens_attention_adds_up_to_one(
    name: str, size: int, shape: tuple[int, ...]
) -> None:
    found = attention_maps(model(name, size), torch.randn(2, 3, size, size))
    assert found.shape == shape
    assert (found > 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(shape[:2]))
    assert not found.requires_grad


def test_timms_attention_is_the_same_fused_or_not() -> None:
    images = torch.randn(2, 3, 64, 64)
    fused = attention_maps(model(TIMM, 64), images)
    try:
        set_fused_attn(False)
        plain = build(TIMM, classes=10, channels=3, image_size=64)
    finally:
        set_fused_attn(True)
    assert not plain.blocks[-1].attn.fused_attn
    torch.testing.assert_close(attention_maps(plain, images), fused)


def test_the_small_vits_attention_is_what_its_last_block_computes() -> None:
    network = model("vit-small", 16)
    assert isinstance(network, SmallViT)
    images, received = torch.randn(2, 3, 16, 16), []
    handle = network.blocks[-1].attn.qkv.register_forward_hook(lambda m, a, o: received.append(o))
    network.eval()(images)
    handle.remove()
    q, k, _ = received[0].unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    expected = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)[:, :, 0]
    torch.testing.assert_close(attention_maps(network, images), expected)


def test_torchvisions_attention_is_what_its_last_block_says() -> None:
    network = model("torchvision:vit_b_32", 64).eval()
    images, received = torch.randn(1, 3, 64, 64), []
    last = network.encoder.layers[-1]
    handle = last.ln_1.register_forward_hook(lambda m, a, o: received.append(o))
    network(images)
    handle.remove()
    weights = last.self_attention(*received * 3, average_attn_weights=False)[1]
    torch.testing.assert_close(attention_maps(network, images), weights[:, :, 0])


@pytest.mark.parametrize("name", ["resnet18", "mlp"])
def test_a_network_without_attention_is_refused(name: str) -> None:
    with pytest.raises(DoesNotFit, match="the model has no self-attention"):
        attention_maps(model(name, 32), torch.randn(1, 3, 32, 32))


@pytest.mark.parametrize(("read", "tokens"), [("mean", "8 of the 8"), ("patches", "7 of the 8")])
@pytest.mark.parametrize("way", ["fused", "method", "multi-head"])
def test_a_network_that_reads_no_class_token_is_refused(way: str, read: str, tokens: str) -> None:
    with pytest.raises(DoesNotFit, match=f"read from {tokens} tokens"):
        attention_maps(TinyViT(way, read), IMAGES)


@pytest.mark.parametrize("name", ["timm:swin_tiny_patch4_window7_224", "torchvision:swin_t"])
def test_attention_within_windows_is_refused(name: str) -> None:
    with pytest.raises(DoesNotFit, match="not from a class token"):
        attention_maps(model(name, 64), torch.randn(2, 3, 64, 64))


@pytest.mark.parametrize("way", ["fused", "method", "multi-head"])
def test_the_model_is_left_as_it_was(way: str) -> None:
    network = TinyViT(way).train()
    network.head.eval()
    state = copy.deepcopy(network.state_dict())
    first, second = (attention_maps(network, IMAGES) for _ in range(2))
    assert torch.equal(first, second), "dropout plays no part"
    assert [m.training for m in (network, network.drop, network.head)] == [True, True, False]
    assert all(p.requires_grad and p.grad is None for p in network.parameters())
    assert all(torch.equal(network.state_dict()[key], state[key]) for key in state)


def test_a_head_that_starts_from_zero_hides_no_class_token() -> None:
    network = TinyViT().eval()
    nn.init.zeros_(network.head.weight)
    torch.testing.assert_close(attention_maps(network, IMAGES), network.expected(IMAGES))


def test_each_image_has_its_own_map() -> None:
    network = TinyViT().eval()
    together = attention_maps(network, IMAGES)
    alone = torch.cat([attention_maps(network, image[None]) for image in IMAGES])
    torch.testing.assert_close(together, alone)
    assert (together[0] - together[1]).abs().max() > 1e-3


def test_global_draws_are_left_alone() -> None:
    before = torch.get_rng_state()
    network = TinyViT()
    torch.set_rng_state(before)
    attention_maps(network, IMAGES)
    assert torch.equal(torch.get_rng_state(), before)
