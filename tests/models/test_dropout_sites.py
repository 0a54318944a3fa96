from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.models import build
from keyhole.models.dropout_sites import (
    DropoutMode,
    FixedMasks,
    MaskRecorder,
    Site,
    SiteFinder,
    explicit_attention,
)

P = 0.3


class Functional(nn.Module):
    """Drops by functions alone, as timm's convolutional networks do before their head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.first(x), p=P, training=self.training)
        x = F.dropout(x, 0.6, self.training, inplace=True)
        return self.last(x)


class FusedAttention(nn.Module):
    """Drops inside fused attention, where no module shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        dropped = P if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped)
        return mixed.transpose(1, 2).flatten(2)


class MultiHead(nn.Module):
    def __init__(self, *, batch_first: bool = True, need_weights: bool = True) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, dropout=P, batch_first=batch_first)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=self.need_weights)[0]


def sequence() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.Dropout(P), nn.GELU(), nn.Dropout(0.0), nn.Dropout(0.6, inplace=True)
    )


def channelwise() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout2d(P), nn.Flatten(), nn.Dropout(0.5))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 10, dropout=P, batch_first=True)


TOKENS, PICTURE = (5, 6), (2, 6, 6)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[Site]]] = {
    "nn.Dropout": (sequence, (6,), [Site(P, (8,)), Site(0.6, (8,))]),
    "nn.Dropout2d": (channelwise, PICTURE, [Site(P, (4, 1, 1)), Site(0.5, (64,))]),
    "functional": (Functional, (6,), [Site(P, (8,)), Site(0.6, (8,))]),
    "fused attention": (FusedAttention, TOKENS, [Site(P, (2, 5, 5))]),
    "multi-head": (MultiHead, TOKENS, [Site(P, (2, 5, 5))]),
    "multi-head without weights": (
        lambda: MultiHead(need_weights=False),
        TOKENS,
        [Site(P, (2, 5, 5))],
    ),
    "encoder layer": (
        encoder,
        TOKENS,
        [Site(P, (2, 5, 5)), Site(P, (5, 6)), Site(P, (5, 10)), Site(P, (5, 6))],
    ),
}
EVERY = pytest.mark.parametrize("name", MODELS)


def make(name: str) -> tuple[nn.Module, Tensor, list[Site]]:
    """A model in training mode, a batch of three, and the sites it should have."""
    torch.manual_seed(0)
    maker, shape, sites = MODELS[name]
    return maker().train(), torch.randn(3, *shape), sites


def seeded(model: nn.Module, x: Tensor, mode: DropoutMode | None = None) -> Tensor:
    torch.manual_seed(7)
    if mode is None:
        return model(x)
    mode.begin()
    with mode:
        return model(x)


@EVERY
def test_a_survey_finds_every_site_and_drops_nothing(name: str) -> None:
    model, x, sites = make(name)
    survey = SiteFinder()
    with survey:
        found = model(x)
    assert survey.sites == sites
    torch.testing.assert_close(found, model.eval()(x))


@EVERY
def test_a_model_in_evaluation_mode_has_no_sites(name: str) -> None:
    model, x, _ = make(name)
    survey = SiteFinder()
    with survey:
        model.eval()(x)
    assert survey.sites == []


@EVERY
def test_recorded_masks_have_their_sites_shapes_and_rates(name: str) -> None:
    model, x, sites = make(name)
    record = MaskRecorder()
    many = x[:1].expand(400, *x.shape[1:])
    with record:
        for _ in range(2):
            record.begin()
            model(many)
    masks = record.masks_by_site()
    assert [tuple(mask.shape) for mask in masks] == [(800, *site.shape) for site in sites]
    for mask, site in zip(masks, sites, strict=True):
        assert mask.dtype == torch.bool
        assert 1 - float(mask.double().mean()) == pytest.approx(site.p, abs=0.04)


@pytest.mark.parametrize("name", ["nn.Dropout", "nn.Dropout2d", "functional"])
def test_recording_does_not_change_what_is_drawn(name: str) -> None:
    model, x, _ = make(name)
    assert torch.equal(seeded(model, x, MaskRecorder()), seeded(model, x))


@pytest.mark.parametrize(
    "name",
    ["fused attention", "multi-head", "multi-head without weights", "encoder layer"],
)
def test_recording_inside_attention_draws_what_torch_would(name: str) -> None:
    model, x, _ = make(name)
    torch.testing.assert_close(seeded(model, x, MaskRecorder()), seeded(model, x))


def test_recording_does_not_change_what_is_drawn_for_strided_values() -> None:
    """As attention's and channels-last activations often are."""
    x = torch.randn(4, 6, 5).transpose(1, 2)
    assert torch.equal(seeded(nn.Dropout(P), x, MaskRecorder()), seeded(nn.Dropout(P), x))


@pytest.mark.parametrize("layer", [nn.AlphaDropout(P), nn.FeatureAlphaDropout(P)], ids=str)
def test_recording_leaves_a_dropout_that_it_cannot_record_as_it_is(layer: nn.Module) -> None:
    x = torch.randn(3, 4, 5)
    assert torch.equal(seeded(layer, x, MaskRecorder()), seeded(layer, x))


@EVERY
def test_recording_leaves_the_gradient_as_it_is(name: str) -> None:
    model, x, _ = make(name)
    model, x = model.double(), x.double()
    plain, recorded = (
        torch.autograd.grad(seeded(model, x, mode).sin().sum(), list(model.parameters()))
        for mode in (None, MaskRecorder())
    )
    for one, other in zip(recorded, plain, strict=True):
        torch.testing.assert_close(one, other)


@EVERY
def test_recorded_masks_drive_the_model_to_the_same_output(name: str) -> None:
    model, x, _ = make(name)
    record = MaskRecorder()
    expected = seeded(model, x, record)
    torch.manual_seed(1)
    with FixedMasks(record.masks_by_site()):
        torch.testing.assert_close(model(x), expected)


@EVERY
def test_driving_without_masks_drops_nothing(name: str) -> None:
    model, x, _ = make(name)
    with FixedMasks():
        found = model(x)
    torch.testing.assert_close(found, model.eval()(x))


@EVERY
def test_masks_may_lie_between_zero_and_one_and_are_learned(name: str) -> None:
    model, x, sites = make(name)
    masks = [torch.rand(3, *site.shape).requires_grad_() for site in sites]
    with FixedMasks(masks):
        found = model(x)
    for gradient in torch.autograd.grad(found.square().sum(), masks):
        assert gradient.count_nonzero() > 0.4 * gradient.numel()


def test_a_driven_mask_is_scaled_by_the_rate() -> None:
    mask = torch.rand(3, 6)
    x = torch.randn(3, 6)
    with FixedMasks([mask]):
        torch.testing.assert_close(nn.Dropout(P)(x), x * mask / (1 - P))


def test_a_driven_mask_of_channels_spreads_over_their_pixels() -> None:
    mask = torch.rand(3, 2, 1, 1)
    x = torch.randn(3, 2, 4, 4)
    with FixedMasks([mask]):
        torch.testing.assert_close(nn.Dropout2d(P)(x), x * mask / (1 - P))


@EVERY
@pytest.mark.parametrize("mode", [SiteFinder, MaskRecorder, FixedMasks])
def test_the_model_is_left_as_it_was(name: str, mode: type[DropoutMode]) -> None:
    model, x, _ = make(name)
    state = copy.deepcopy(model.state_dict())
    rates = [getattr(m, "p", None) for m in model.modules()]
    kinds = [type(m) for m in model.modules()]
    seeded(model, x, mode())
    assert model.training
    assert [getattr(m, "p", None) for m in model.modules()] == rates
    assert [type(m) for m in model.modules()] == kinds
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(model.state_dict()[key], state[key]) for key in state)


def test_a_second_pass_reaches_the_sites_anew() -> None:
    model, x, sites = make("encoder layer")
    record = MaskRecorder()
    expected = seeded(model, x, record)
    driven = FixedMasks(record.masks_by_site())
    with driven:
        for _ in range(2):
            driven.begin()
            torch.testing.assert_close(model(x), expected)
    assert driven.next_site == len(sites)


def test_the_sites_of_the_papers_vit_are_one_and_four_a_block() -> None:
    model = build("vit-small", classes=10, channels=1, image_size=8)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.25
    survey = SiteFinder()
    with survey:
        model.train()(torch.zeros(2, 1, 8, 8))
    block = [(16, 5, 5), (5, 256), (5, 256), (5, 256)]
    assert [site.shape for site in survey.sites] == [(5, 256), *4 * block]
    assert {site.p for site in survey.sites} == {0.25}
    assert survey.sites[0].size == 5 * 256


SEEN = torch.ones(5, 5, dtype=torch.bool).triu(-1)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(
    "keywords",
    [{}, {"is_causal": True}, {"attn_mask": SEEN}, {"attn_mask": SEEN * 0.7}],
    ids=["plain", "causal", "hidden", "biased"],
)
def test_attention_written_out_is_torchs(keywords: dict[str, Any], scale: float | None) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 6).unbind()
    expected = F.scaled_dot_product_attention(q, k, v, scale=scale, **keywords)
    torch.testing.assert_close(explicit_attention(q, k, v, scale=scale, **keywords), expected)


def test_grouped_attention_written_out_is_torchs() -> None:
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 5, 6), torch.randn(2, 2, 5, 6)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(explicit_attention(q, k, v, enable_gqa=True), expected)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_multi_head_attention_written_out_is_torchs(batch_first: bool, masked: bool) -> None:
    layer = nn.MultiheadAttention(6, 2, batch_first=batch_first)
    x = torch.randn(4, 5, 6)
    length = 5 if batch_first else 4
    mask = torch.randn(length, length) if masked else None
    with FixedMasks():
        found = layer(x, x, x, attn_mask=mask)[0]
    torch.testing.assert_close(found, layer(x, x, x, attn_mask=mask)[0])


@pytest.mark.parametrize("kind", ["padding mask", "cross attention", "key bias"])
def test_other_multi_head_attention_is_left_to_torch(kind: str) -> None:
    layer = nn.MultiheadAttention(6, 2, batch_first=True, add_bias_kv=kind == "key bias")
    x, memory = torch.randn(4, 5, 6), torch.randn(4, 3, 6)
    padded = torch.zeros(4, 5, dtype=torch.bool)
    padded[:, -1] = True
    calls = {
        "padding mask": lambda: layer(x, x, x, key_padding_mask=padded)[0],
        "cross attention": lambda: layer(x, memory, memory)[0],
        "key bias": lambda: layer(x, x, x)[0],
    }
    with FixedMasks():
        found = calls[kind]()
    torch.testing.assert_close(found, calls[kind]())


def test_driven_fused_attention_can_be_differentiated_twice() -> None:
    model = FusedAttention().double().eval()
    x = torch.randn(1, 3, 6, dtype=torch.double, requires_grad=True)

    def driven(x: Tensor) -> Tensor:
        with FixedMasks():
            return model(x)

    assert torch.autograd.gradgradcheck(driven, (x,))
