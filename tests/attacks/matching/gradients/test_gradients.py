"""Every backend to many victims' gradients against plain autograd, one victim after the other.

In double precision. Not only the gradients: also their products with the targets, and how those
change with the images, which is what the attacks follow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from keyhole.attacks.matching.gradients import factors, layer_recorder
from keyhole.attacks.matching.gradients.choice import choose_matcher
from keyhole.attacks.matching.gradients.factor_probe import probe_factors
from keyhole.attacks.matching.gradients.factored import FactoredMatcher
from keyhole.attacks.matching.gradients.low_rank import factor_targets
from keyhole.attacks.matching.gradients.match import Targets
from keyhole.attacks.matching.gradients.matchers import LoopMatcher, Matcher, VmapMatcher
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.threat import Knowledge

VICTIMS = 3
Shape = tuple[int, int, int]


class Add(nn.Module):
    """``x + inner(x)``, written into the inner layers' output."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        y += x
        return y


class Tokens(nn.Module):
    """Patches of 4 px with class token and positions, then ``block``; reads the class token."""

    def __init__(self, block: nn.Module, *, lead: bool = True, width: int = 12) -> None:
        super().__init__()
        shape = (1, 1, width) if lead else (width,)
        self.stem = nn.Conv2d(1, width, 4, stride=4)
        self.start = nn.Parameter(torch.randn(shape))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        self.block = block
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.stem(images).flatten(2).mT
        start = self.start.expand(len(images), 1, patches.shape[-1])
        x = torch.cat([start, patches], 1) + self.positions
        return self.head(self.block(x)[:, 0])


class LayerScale(nn.Module):
    """A scale a channel, used outside any layer, as timm's ViTs have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.gamma = nn.Linear(width, width), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.mix(x).tanh()


def add_head(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(features, 10))


def encoder_layer(**options: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(
        12, 3, 16, dropout=0.0, activation="gelu", batch_first=True, **options
    )


def resnet() -> nn.Module:
    """torchvision's ResNet-18 without its last two stages, where nearly all the weights are."""
    from torchvision.models import resnet18

    model = resnet18()
    model.layer3 = model.layer4 = nn.Identity()
    model.fc = nn.Linear(128, 10)
    return model


def timm_vit() -> nn.Module:
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, in_chans=1, num_classes=10
    )
    assert model.blocks[0].attn.fused_attn
    return model


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: Shape = (1, 8, 8)
    mode: str = "train"
    batch: int = 2
    victims: int = VICTIMS
    ways: tuple[str, ...] = ("built", "products", "vmap", "loop")


def conv(*, features: int, **options: object) -> Callable[[], nn.Module]:
    return lambda: add_head(nn.Conv2d(4, 6, **options), features=features)


BATCH_NORM = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
CASES: dict[str, Case] = {
    "linear": Case(lambda: add_head(nn.Flatten(), nn.Linear(64, 20), features=20)),
    "linear without bias": Case(
        lambda: add_head(nn.Flatten(), nn.Linear(64, 20, bias=False), features=20)
    ),
    "linear on rows": Case(lambda: add_head(nn.Linear(8, 5), features=40)),
    "conv": Case(conv(kernel_size=3, features=216), (4, 8, 8)),
    "conv, padded and strided": Case(
        conv(kernel_size=(3, 2), stride=(2, 3), padding=(1, 2), features=96), (4, 8, 8)
    ),
    "conv, dilated": Case(conv(kernel_size=3, dilation=(2, 1), features=144), (4, 8, 8)),
    "conv, grouped": Case(
        conv(kernel_size=3, stride=2, padding=1, dilation=2, groups=2, features=54), (4, 8, 8)
    ),
    "conv, depthwise": Case(
        lambda: add_head(nn.Conv2d(4, 8, 3, groups=4, bias=False), features=288), (4, 8, 8)
    ),
    "conv, 1x1 strided": Case(conv(kernel_size=1, stride=2, features=96), (4, 8, 8)),
    "conv, circular": Case(
        conv(kernel_size=3, padding=1, padding_mode="circular", features=384), (4, 8, 8)
    ),
    "layer norm": Case(lambda: add_head(nn.Linear(8, 6), nn.LayerNorm(6), features=48)),
    "layer norm over three axes": Case(
        lambda: add_head(nn.Conv2d(1, 3, 3), nn.LayerNorm((3, 6, 6)), features=108)
    ),
    "layer norm without bias": Case(
        lambda: add_head(nn.Linear(8, 6), nn.LayerNorm(6, bias=False), features=48)
    ),
    "group norm": Case(lambda: add_head(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), features=144)),
    "instance norm": Case(
        lambda: add_head(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), features=144),
        ways=("chosen", "loop"),
    ),
    "batch norm": Case(lambda: add_head(*copy.deepcopy(BATCH_NORM), features=144)),
    "batch norm, one image": Case(
        lambda: add_head(*copy.deepcopy(BATCH_NORM), features=144), batch=1
    ),
    "batch norm, evaluating": Case(
        lambda: add_head(*copy.deepcopy(BATCH_NORM), features=144), mode="eval"
    ),
    "batch norm without running statistics": Case(
        lambda: add_head(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), features=144
        ),
        mode="eval",
    ),
    "batch norm of features": Case(
        lambda: add_head(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), features=9)
    ),
    "written by the activation": Case(
        lambda: add_head(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), features=144)
    ),
    "written by position": Case(
        lambda: add_head(
            *copy.deepcopy(BATCH_NORM),
            nn.LeakyReLU(0.1, True),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU6(True),
            features=64,
        )
    ),
    "residual, written": Case(
        lambda: add_head(
            nn.Conv2d(1, 4, 3, padding=1),
            Add(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)),
            nn.ReLU(inplace=True),
            Add(nn.Conv2d(4, 4, 3, padding=1)),
            features=256,
        )
    ),
    "class token and positions": Case(lambda: Tokens(nn.Linear(12, 12))),
    "class token of one axis": Case(lambda: Tokens(nn.Linear(12, 12), lead=False)),
    "layer scale": Case(lambda: Tokens(nn.Sequential(LayerScale(12), nn.LayerNorm(12)))),
    "transformer layer": Case(lambda: Tokens(encoder_layer())),
    "transformer layer, norm first": Case(lambda: Tokens(encoder_layer(norm_first=True))),
    "timm vit": Case(timm_vit, (1, 32, 32)),
    "resnet18": Case(resnet, (3, 24, 24), victims=2),
}


def build_model(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = case.make().double()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.add_(0.5 * torch.rand_like(buffer))  # running statistics that say something
    return model.train(case.mode == "train").requires_grad_(False)


def dummies(case: Case) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(case.victims, case.batch, *case.shape, generator=draw, dtype=torch.double)
    labels = torch.randint(10, (case.victims, case.batch), generator=draw)
    return images, torch.eye(10, dtype=torch.double)[labels]


def plain(model: nn.Module, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """One victim's gradient by nothing but torch; differentiable once more."""
    twin = copy.deepcopy(model).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        loss = F.cross_entropy(twin(images), targets.argmax(-1))
        found = torch.autograd.grad(loss, list(twin.parameters()), create_graph=True)
    return dict(zip(dict(twin.named_parameters()), found, strict=True))


def random_targets(model: nn.Module, victims: int = VICTIMS) -> Targets:
    draw = torch.Generator().manual_seed(2)
    return Targets(
        {
            name: torch.randn(victims, *p.shape, generator=draw, dtype=torch.double)
            for name, p in model.named_parameters()
        }
    )


def cosine(dots: list[Tensor], squares: list[Tensor]) -> Tensor:
    return torch.stack(dots).sum(0) / torch.stack(squares).sum(0).sqrt()


def make_matcher(backend: str, case: Case, model: nn.Module, targets: Targets) -> Matcher:
    if backend in ("built", "products"):
        anatomy = probe_factors(model, case.shape)
        return FactoredMatcher(
            model, anatomy, factor_targets(targets, {}, needs_full_gradients=True)
        )
    knowledge = Knowledge(case.shape, 10, (0.0,), (1.0,), batch_size=case.batch)
    problem = MatchingProblem(model, knowledge, steps=1, lr=1.0, local_batch=case.batch)
    if backend == "chosen":
        return choose_matcher(problem, targets)[0]
    return {"vmap": VmapMatcher, "loop": LoopMatcher}[backend](problem, targets)


@pytest.mark.parametrize(
    ("name", "backend"), [(name, backend) for name, case in CASES.items() for backend in case.ways]
)
def test_gradients_and_what_follows_from_them_are_autograds(
    monkeypatch: pytest.MonkeyPatch, name: str, backend: str
) -> None:
    """``built`` and ``products``: factored, with or without building what is small; convolutions by
    torch, or as the product with their columns.

    ``chosen``: any backend will do, if it is right; vmap's second derivatives are not always.
    """
    monkeypatch.setattr(
        factors, "ALWAYS_BUILT", 0 if backend == "products" else factors.ALWAYS_BUILT
    )
    monkeypatch.setattr(
        layer_recorder, "columns_are_faster", lambda x, geometry: backend == "products"
    )
    case = CASES[name]
    model = build_model(case)
    images, labels = dummies(case)
    targets = random_targets(model, case.victims)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    matcher = make_matcher(backend, case, model, targets)

    seen = images.clone().requires_grad_()
    match = matcher(seen, labels, None)
    products = {n: match.products(n) for n in match.names}
    found = torch.autograd.grad(
        cosine(*map(list, zip(*products.values(), strict=True))).sum(), seen
    )

    assert set(match.names) == set(dict(model.named_parameters()))
    for victim in range(case.victims):
        image = images[victim].clone().requires_grad_()
        expected = plain(model, image, labels[victim])
        wanted = {n: targets.tensors[n][victim] for n in expected}
        dots = [(gradient * wanted[n]).sum() for n, gradient in expected.items()]
        squares = [gradient.square().sum() for gradient in expected.values()]
        for n, dot, square in zip(expected, dots, squares, strict=True):
            close = {"rtol": 1e-7, "atol": 1e-10}
            torch.testing.assert_close(match.gradient(n)[victim], expected[n], **close)
            got = [value[victim] for value in products[n]]
            torch.testing.assert_close(got, [dot, square], **close)
        bend = torch.autograd.grad(cosine(dots, squares), image)[0]
        torch.testing.assert_close(found[0][victim], bend, rtol=1e-6, atol=1e-10)
    for key, value in model.state_dict().items():
        if "num_batches_tracked" not in key:
            assert torch.equal(value, before[key]), key
