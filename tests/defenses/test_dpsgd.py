"""DP-SGD clips every image's gradient and adds noise in every step."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import ClientSide, DpSgd, Dropout
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.models.dropout_sites import FixedMasks, MaskRecorder
from keyhole.models.private import make_private
from keyhole.update import Update

BUILT_IN = ["mlp", "lenet", "vit-small"]
digits = load("digits")
inputs, labels = digits.normalise(digits.images(range(4))), digits.labels[:4]


def build_model(name: str, p: float = 0.0) -> nn.Module:
    model = build(name, classes=10, channels=1, image_size=8)
    return Dropout(p=p).on_model(model).train()


def side(seed: int = 1, **values: Any) -> ClientSide:
    return ClientSide(generator=torch.Generator().manual_seed(seed), **values)


def step(model: nn.Module, defense: DpSgd, client: ClientSide | None = None) -> list[Tensor]:
    pytest.importorskip("opacus")
    found = defense.on_step(model, inputs, labels, client or side())
    assert found is not None
    return found


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def norms(model: nn.Module) -> Tensor:
    return torch.stack([each.norm() for each in singly(model)])


def singly(model: nn.Module) -> list[Tensor]:
    """The flat gradient of every image, one image at a time."""
    losses = [F.cross_entropy(model(x[None]), y[None]) for x, y in zip(inputs, labels, strict=True)]
    weights = list(model.parameters())
    return [flat(list(torch.autograd.grad(loss, weights))) for loss in losses]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("share", [0.3, 1.0, 3.0], ids=lambda s: f"{s} of the mean norm")
def test_without_noise_it_is_the_mean_of_clipped_gradients(name: str, share: float) -> None:
    model = build_model(name)
    clip = share * float(norms(model).mean())
    expected = sum(g * min(1.0, clip / float(g.norm())) for g in singly(model)) / len(inputs)
    client = side()
    found = flat(step(model, DpSgd(noise=0, clip=clip), client))
    assert isinstance(expected, Tensor)
    assert torch.allclose(
        found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()) + 1e-8
    )
    assert client.telemetry["clipped_share"] == float((norms(model) > clip).float().mean())


def test_the_clip_bounds_what_one_image_can_do() -> None:
    model = build_model("mlp")
    assert flat(step(model, DpSgd(noise=0, clip=0.01))).norm() <= 0.01


@pytest.mark.parametrize(("noise", "clip"), [(1.0, 1.0), (2.0, 0.5), (0.1, 3.0)])
def test_the_noise_has_the_strength_it_says(noise: float, clip: float) -> None:
    model = build_model("mlp")
    silent = flat(step(model, DpSgd(noise=0, clip=clip)))
    drawn = flat(step(model, DpSgd(noise=noise, clip=clip))) - silent
    spread = 1 / math.sqrt(2 * drawn.numel())
    assert drawn.std().item() == pytest.approx(noise * clip / len(inputs), rel=5 * spread)
    assert (drawn / drawn.std()).pow(4).mean().item() == pytest.approx(3, abs=0.1)


def test_the_generator_decides_the_noise() -> None:
    model = build_model("lenet")
    one, same, other = (flat(step(model, DpSgd(), side(seed))) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_two_steps_do_not_share_their_noise() -> None:
    model, client = build_model("lenet"), side()
    assert not torch.equal(flat(step(model, DpSgd(), client)), flat(step(model, DpSgd(), client)))


def test_two_steps_without_a_side_do_not_share_their_noise() -> None:
    pytest.importorskip("opacus")
    model = build_model("lenet")
    first, second = (flat(DpSgd().on_step(model, inputs, labels)) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_model_is_left_as_it_was(name: str) -> None:
    model = build_model(name, p=0.2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model)
    step(model, DpSgd())
    assert all(torch.equal(t, before.state_dict()[n]) for n, t in model.state_dict().items())
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad == 1).all())
        assert not vars(parameter)
    for was, now in zip(before.modules(), model.modules(), strict=True):
        assert vars(was).keys() == vars(now).keys()
        assert not now._forward_hooks
        assert not now._backward_hooks
        assert now.training


class Attentive(nn.Module):
    """A network with torch's own attention, which Opacus' hooks cannot see into."""

    def __init__(self, p: float = 0.3) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, dropout=p, batch_first=True)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = images[:, 0] + self.token
        logits: Tensor = self.head(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))
        return logits


def dropping() -> list[nn.Module]:
    return [*(build_model(name, p=0.5) for name in BUILT_IN), Attentive()]


def test_every_image_keeps_the_dropout_masks_that_the_client_recorded() -> None:
    for model in dropping():
        record = MaskRecorder()
        record.begin()
        with record:
            found = step(model, DpSgd(noise=0, clip=1e6))
        with FixedMasks(record.masks[0]) as replay:
            replay.begin()
            loss = F.cross_entropy(model(inputs), labels)
        expected = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        assert record.masks[0]
        assert len(record.masks[0]) == replay.next_site
        assert torch.allclose(flat(found), flat(list(expected)), rtol=1e-4, atol=1e-6)


def test_dropout_layers_without_a_mask_still_drop() -> None:
    model = nn.Sequential(nn.Flatten(), nn.AlphaDropout(0.5), nn.Linear(64, 10)).train()
    one, other = (flat(step(model, DpSgd(noise=0, clip=1e6))) for _ in range(2))
    assert not torch.equal(one, other)


def test_parameters_that_take_no_part_get_zeros_before_the_noise() -> None:
    model = Attentive()
    found = dict(zip(dict(model.named_parameters()), step(model, DpSgd(noise=0)), strict=True))
    assert not found["unused.weight"].any()
    assert found["head.weight"].any()


def test_frozen_parameters_get_zeros() -> None:
    model = build_model("lenet")
    first = next(model.parameters()).requires_grad_(False)
    found = step(model, DpSgd())
    assert found[0].shape == first.shape
    assert not found[0].any()
    assert all(g.any() for g in found[1:])


def test_a_network_in_evaluation_mode_can_be_trained() -> None:
    model = build_model("vit-small", p=0.5).eval()
    loss = F.cross_entropy(model(inputs), labels)
    expected = flat(list(torch.autograd.grad(loss, list(model.parameters()))))
    found = flat(step(model, DpSgd(noise=0, clip=1e6)))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_without_the_clients_images_every_step_takes_them_all() -> None:
    client = side()
    step(build_model("lenet"), DpSgd(), client)
    assert client.memory == {"dpsgd": [[1.0, 1.0, 1]]}


def test_the_clipped_share_is_that_of_the_whole_round() -> None:
    model, client = build_model("mlp"), side()
    step(model, DpSgd(noise=0, clip=1e6), client)
    step(model, DpSgd(noise=0, clip=1e-6), client)
    assert (client.telemetry["samples"], client.telemetry["clipped_share"]) == (8, 0.5)


def test_statistics_that_leave_without_noise_are_told_of() -> None:
    assert "without noise" in DpSgd().caveats(nn.InstanceNorm2d(1, track_running_stats=True))[0]
    assert DpSgd().caveats(nn.Linear(2, 2)) == []


def test_the_update_door_changes_nothing() -> None:
    update = Update({"w": torch.ones(3)})
    assert DpSgd().on_update(update) is update
    client = side()
    assert DpSgd().on_update(update, client) is update
    assert not client.telemetry


def test_batch_norm_does_not_fit_and_opacus_puts_it_right() -> None:
    pytest.importorskip("opacus")
    model = build("resnet18", classes=10, channels=3, image_size=16)
    reasons = DpSgd().incompatibilities(model.eval())
    assert len(reasons) == 2
    assert reasons[0].startswith("BatchNorm cannot support")
    assert "GroupNorm" in reasons[1]
    assert "dp:NAME" in reasons[1]
    assert all(len(r) < 160 and "\n" not in r for r in reasons)
    with pytest.raises(DoesNotFit, match="BatchNorm"):
        DpSgd().on_model(model)
    fixed = make_private(model)
    assert DpSgd().incompatibilities(fixed) == []
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fixed.modules())
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert not any(m.training for m in fixed.modules())
    images = torch.rand(2, 3, 16, 16)
    found = DpSgd(noise=0).on_step(fixed.train(), images, labels[:2], side())
    assert 0 < flat(found).norm() <= 1


@pytest.mark.parametrize("training", [True, False])
def test_attention_needs_no_replacement(training: bool) -> None:
    pytest.importorskip("opacus")
    model = Attentive(p=0.0).train(training)
    assert DpSgd().incompatibilities(model) == []
    assert isinstance(make_private(model).attention, nn.MultiheadAttention)
    assert all(p.requires_grad for p in make_private(model).parameters())
    loss = F.cross_entropy(model(inputs), labels)
    expected = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    found = step(model, DpSgd(noise=0, clip=1e6))
    assert torch.allclose(flat(found), flat(list(expected)), rtol=1e-4, atol=1e-6)


def test_what_opacus_cannot_replace_is_said_without_a_promise() -> None:
    pytest.importorskip("opacus")

    class Own(nn.Linear):
        def __init__(self) -> None:
            super().__init__(64, 10)
            self.register_buffer("seen", torch.zeros(3))

    model = nn.Sequential(nn.Flatten(), Own(), Own())
    (reason,) = DpSgd().incompatibilities(model)
    assert "1:Own" in reason
    assert "private" not in reason


def test_a_network_that_cannot_take_single_images_is_refused_in_one_line() -> None:
    pytest.importorskip("opacus")
    model = nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(DoesNotFit, match="every single image"):
        DpSgd().on_step(model, inputs, labels)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_models_fit_though_frozen(name: str) -> None:
    pytest.importorskip("opacus")
    model = build_model(name).eval().requires_grad_(False)
    assert DpSgd().incompatibilities(model) == []
    assert DpSgd().on_model(model) is model
    assert not any(p.requires_grad for p in model.parameters())


def test_without_opacus_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    model = build_model("lenet")
    assert DpSgd().incompatibilities(model) == [
        "Opacus is not installed: pip install 'keyhole[dp]'"
    ]
    for call in (
        lambda: DpSgd().on_model(model),
        lambda: DpSgd().on_step(model, inputs, labels),
        lambda: make_private(model),
    ):
        with pytest.raises(DoesNotFit, match=r"keyhole\[dp\]"):
            call()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_noise_is_drawn_where_the_model_is() -> None:
    pytest.importorskip("opacus")
    model = build_model("lenet").cuda()
    one, same = (
        flat(DpSgd().on_step(model, inputs.cuda(), labels.cuda(), side())) for _ in range(2)
    )
    assert one.device.type == "cuda"
    assert torch.equal(one, same)


@pytest.mark.parametrize(
    "values",
    [
        *({"noise": noise} for noise in (-1, math.nan, math.inf)),
        *({"clip": clip} for clip in (0, -1, math.nan, math.inf)),
        *({"delta": delta} for delta in (0, 1, -1, math.nan)),
    ],
)
def test_values_it_cannot_take_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        DpSgd(**values)
