"""TIP: how loud its noise is, where it lies, and what leaves exactly."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from keyhole.data import load
from keyhole.defenses import ClientSide, Tip
from keyhole.errors import BadUpdate, DoesNotFit
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.models.channel_importance import channel_importance, convolutions, weight_name
from keyhole.seeds import generator
from keyhole.update import Update

PAPER = Update({}, steps=4, lr=0.001, batch_size=1)
"""How an update comes about in the paper's attacks."""


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return build("resnet18", classes=10)


class Small(nn.Module):
    """Kernels of all sorts: 5x5, depthwise 3x3, 1x1, grouped 2x4."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 40, 5, padding=2)
        self.norm = nn.BatchNorm2d(40)
        self.depthwise = nn.Conv2d(40, 40, 3, groups=40)
        self.point = nn.Conv2d(40, 20, 1)
        self.grouped = nn.Conv2d(20, 30, (2, 4), groups=5)
        self.head = nn.Linear(30, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.norm(self.first(x)).sigmoid()).sigmoid()
        return self.head(self.grouped(self.point(x)).sigmoid().mean((2, 3)))


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    return Small()


def client(model: nn.Module, seed: int = 1, size: int = 16, count: int = 6) -> ClientSide:
    images = torch.rand(count, 3, size, size, generator=generator(0, "images"))
    return ClientSide(generator(seed), model, images, torch.arange(count) % 3)


def update_of(model: nn.Module, scale: float = 1e-3, seed: int = 0) -> Update:
    draw = generator(seed, "change")
    change = {
        n: torch.randn(t.shape, generator=draw).to(t) * scale if t.is_floating_point() else t + 3
        for n, t in model.state_dict().items()
        if "running_var" not in n
    }
    return Update(change, steps=4, lr=0.001)


def noise_of(defense: Tip, model: nn.Module, seed: int = 1) -> dict[str, Tensor]:
    clear = update_of(model)
    noisy = defense.on_update(clear, client(model, seed))
    assert list(noisy.change) == list(clear.change)
    return {n: noisy.change[n] - t for n, t in clear.change.items()}


def touched(noise: Tensor) -> list[int]:
    return noise.flatten(1).abs().amax(1).nonzero().flatten().tolist()


# -- strength ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "beta"), [(1.0, 0.0969), (5.0, 0.01938)])
def test_beta_is_the_papers(resnet: nn.Module, epsilon: float, beta: float) -> None:
    found = Tip(epsilon=epsilon).strength(PAPER, resnet)
    assert found == pytest.approx(beta, rel=1e-3)
    assert Tip(epsilon=epsilon, divide=True).strength(PAPER, resnet) == pytest.approx(found / 17)


def test_beta_follows_the_recipe_up_to_1(resnet: nn.Module) -> None:
    small_steps = Update({}, steps=2, lr=0.001, batch_size=4)
    assert Tip().strength(small_steps, resnet) == pytest.approx(0.0969 / 8, rel=1e-3)
    gradient = Update.from_gradient({}, batch_size=1)
    assert Tip().zeta(gradient) == pytest.approx(24.22, rel=1e-3)
    assert Tip().strength(gradient, resnet) == 1.0
    assert Tip(beta=7.0).strength(gradient, resnet) == 7.0


def test_resnet18_has_the_energy_of_theorem_1(resnet: nn.Module) -> None:
    """sum over layers N_r * C_in * n_high of the 17 convolutions of 3x3."""
    assert len(convolutions(resnet)) == 20
    assert len(Tip().noisy_layers(resnet)) == 17
    assert Tip().energy(resnet) == 965_776
    assert Tip(reading="printed").energy(resnet) > 965_776 * 9 / 8


def test_the_noise_norm_is_as_calculated(resnet: nn.Module) -> None:
    side = client(resnet, size=8)
    Tip().on_update(update_of(resnet), side)
    expected = 0.0969 * math.sqrt(965_776)
    assert side.telemetry["noise_norm"] == pytest.approx(expected, rel=0.005)
    assert side.telemetry["channels"] == 6 * 5 + 12 * 4 + 25 * 4 + 51 * 4


@pytest.mark.parametrize("beta", [0.01, 1.0])
def test_a_weights_variance_and_every_bins(beta: float) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.Conv2d(64, 400, 3), nn.Flatten(), nn.LazyLinear(10)
    )
    model(torch.zeros(1, 3, 8, 8))
    clear = Update({n: torch.zeros_like(t) for n, t in model.state_dict().items()}, lr=0.1)
    noisy = Tip(beta=beta).on_update(clear, client(model, size=8)).change["1.weight"]
    slices = noisy[touched(noisy)].double().flatten(0, 1)
    assert len(slices) == 40 * 64
    error = 6 * math.sqrt(2 / len(slices))
    per_weight = slices.square().mean(0)
    assert per_weight.allclose(torch.full((3, 3), beta**2 * 8 / 9).double(), rtol=error)
    power = torch.fft.fft2(slices).abs().square().mean(0)
    assert power.flatten()[1:].allclose(torch.full((8,), 9 * beta**2).double(), rtol=error)
    assert power[0, 0] < (1e-5 * beta) ** 2
    neighbours = (slices[:-1] * slices[1:]).mean()
    assert abs(neighbours) < 6 * beta**2 / math.sqrt(slices.numel())


# -- place ------------------------------------------------------------------------------------


def test_only_the_chosen_filters_change(small: nn.Module) -> None:
    noise = noise_of(Tip(), small)
    counts = {"first.weight": 4, "depthwise.weight": 4, "grouped.weight": 3}
    for name, values in noise.items():
        if name in counts:
            assert len(touched(values)) == counts[name]
        else:
            assert not values.any(), name


def test_the_chosen_filters_are_those_of_the_trained_model(small: nn.Module) -> None:
    side, clear = client(small), update_of(small, scale=0.05)
    side.images, side.labels = side.images[:3], side.labels[:3]  # one a class: no choice
    noisy = Tip(absolute=True).on_update(clear, side)
    weights = channel_importance(small, side.images, side.labels, change=clear.change)
    before = channel_importance(small, side.images, side.labels)
    differs = 0
    for name in ("first", "depthwise", "grouped"):
        found = touched(noisy.change[weight_name(name)] - clear.change[weight_name(name)])
        best = weights[name].abs().topk(len(found)).indices
        assert found == sorted(best.tolist())
        differs += found != sorted(before[name].abs().topk(len(found)).indices.tolist())
    assert differs


def test_the_model_is_shown_what_it_was_trained_on(small: nn.Module) -> None:
    side = client(small, count=3)
    side.normalise = lambda images: (images - 0.5) / 0.1
    noisy = Tip(absolute=True).on_update(update_of(small, 0.0), side)
    inputs = (side.images - 0.5) / 0.1
    weights = channel_importance(small, inputs, side.labels)["first"].abs()
    assert touched(noisy.change["first.weight"]) == sorted(weights.topk(4).indices.tolist())
    raw = channel_importance(small, side.images, side.labels)["first"].abs()
    assert set(raw.topk(4).indices.tolist()) != set(weights.topk(4).indices.tolist())


def test_who_shares_a_gradient_has_trained_nothing_yet(small: nn.Module) -> None:
    side = client(small, count=3)
    gradient = {n: torch.randn(p.shape) for n, p in small.named_parameters()}
    clear = Update.from_gradient(gradient)
    noisy = Tip(absolute=True).on_update(clear, side)
    before = channel_importance(small, side.images, side.labels)
    found = touched(noisy.change["first.weight"] - clear.change["first.weight"])
    assert found == sorted(before["first"].abs().topk(4).indices.tolist())


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 1.0])
def test_the_share_of_filters_in_every_layer(small: nn.Module, ratio: float) -> None:
    noise = noise_of(Tip(ratio=ratio), small)
    for name, conv in Tip().noisy_layers(small).items():
        count = max(1, math.floor(ratio * conv.out_channels))
        assert len(touched(noise[weight_name(name)])) == count


def test_the_sum_of_every_slice_leaves_exactly(small: nn.Module) -> None:
    kept = noise_of(Tip(ratio=1.0, beta=1.0), small)
    for name in ("first.weight", "depthwise.weight", "grouped.weight"):
        assert kept[name].abs().mean() > 0.3
        assert kept[name].sum((-2, -1)).abs().max() < 1e-5
    printed = noise_of(Tip(ratio=1.0, beta=1.0, reading="printed"), small)
    assert printed["first.weight"].sum((-2, -1)).std() == pytest.approx(5, rel=0.3)
    assert printed["point.weight"].std() == pytest.approx(1, rel=0.2)


def test_beta_0_leaves_the_update_as_it_is(small: nn.Module) -> None:
    clear = update_of(small)
    found = Tip(beta=0).on_update(clear, client(small))
    assert all(torch.equal(found.change[n], t) for n, t in clear.change.items())
    assert all(found.change[n].dtype == t.dtype for n, t in clear.change.items())


def test_buffers_and_integers_pass(small: nn.Module) -> None:
    clear = update_of(small)
    noisy = Tip(beta=1.0, ratio=1.0).on_update(clear, client(small))
    for name in ("norm.num_batches_tracked", "norm.running_mean", "norm.weight", "head.weight"):
        assert noisy.change[name] is clear.change[name]
    assert (noisy.steps, noisy.lr) == (clear.steps, clear.lr)


def test_only_what_is_reported_gets_noise(small: nn.Module) -> None:
    """As where a client keeps some layers to itself."""
    whole = update_of(small)
    for kept in (1, 0):
        weights = [n for n, t in whole.change.items() if t.dim() == 4][:kept]
        part = dataclasses.replace(
            whole,
            change={n: t for n, t in whole.change.items() if n in weights or t.dim() == 1},
        )
        sent = Tip(beta=0.1).on_update(part, client(small))
        moved = {n for n, t in sent.change.items() if not torch.equal(t, part.change[n])}
        assert moved == set(weights)


def test_the_model_the_update_and_global_draws_are_left_alone(
    small: nn.Module, same_rng: Callable[[], bool]
) -> None:
    before, clear = copy.deepcopy(small.state_dict()), update_of(small)
    Tip().on_update(clear, client(small))
    assert all(torch.equal(before[n], t) for n, t in small.state_dict().items())
    assert all(torch.equal(update_of(small).change[n], t) for n, t in clear.change.items())
    assert same_rng()


def test_the_generator_decides(small: nn.Module) -> None:
    one, same, other = (noise_of(Tip(), small, seed)["first.weight"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_doubles_get_noise_of_their_own_precision(small: nn.Module) -> None:
    double = copy.deepcopy(small).double()
    noise = noise_of(Tip(beta=1.0), double)["first.weight"]
    assert noise.dtype == torch.float64
    assert noise.sum((-2, -1)).abs().max() < 1e-13


# -- fit --------------------------------------------------------------------------------------


def test_models_without_high_frequencies_do_not_fit() -> None:
    mlp = build("mlp", classes=10, channels=1, image_size=8)
    with pytest.raises(DoesNotFit, match="has no convolution"):
        Tip().validate(mlp)
    points = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(256, 10))
    with pytest.raises(DoesNotFit, match="none of its kernels has a frequency"):
        Tip().on_update(update_of(points), client(points, size=8))
    Tip(reading="printed").validate(points)


def test_a_client_must_show_its_images(small: nn.Module) -> None:
    clear = update_of(small)
    with pytest.raises(DoesNotFit, match="needs the model"):
        Tip().on_update(Update({"other": torch.zeros(2)}))
    with pytest.raises(DoesNotFit, match="client's own images"):
        Tip().on_update(clear, ClientSide(model=small))
    stranger = Update({"other": torch.zeros(2)})
    with pytest.raises(BadUpdate, match="does not have"):
        Tip().on_update(stranger, client(small))


@pytest.mark.parametrize(
    ("name", "size"),
    [("lenet", 16), ("torchvision:mobilenet_v2", 96), ("timm:convnext_atto", 32)],
)
def test_it_works_on_networks_by_name(name: str, size: int) -> None:
    model = build(name, classes=10, image_size=size)
    data = load("photos", image_size=size)
    update, told = train_client(
        model,
        data.images([0, 1]),
        torch.tensor([3, 4]),
        data=data,
        defense=Tip(),
        generator=generator(0),
        training=LocalTraining(steps=2, lr=0.001),
    )
    update.check()
    expected = float(told["beta"]) * math.sqrt(Tip().energy(model))
    assert told["noise_norm"] == pytest.approx(expected, rel=0.1)


def test_telemetry_is_plain_numbers(small: nn.Module) -> None:
    side, clear = client(small), update_of(small)
    noisy = Tip().on_update(clear, side)
    told = json.loads(json.dumps(side.telemetry))
    own = {n for n, _ in small.named_parameters()}
    norm = Update({n: t for n, t in clear.change.items() if n in own}).norm()
    assert told["update_norm"] == pytest.approx(norm)
    noise = noisy.map(lambda n, t: t - clear.change[n])
    assert told["noise_norm"] == pytest.approx(noise.norm(), rel=1e-4)
    assert (told["layers"], told["channels"], told["channels_total"]) == (3, 11, 110)
    assert 0 < told["least_layer_noise_norm"] < told["greatest_layer_noise_norm"]
    assert told["seconds"] > 0


def test_it_says_how_much_leaves_exactly(resnet: nn.Module) -> None:
    assert Tip().caveats(resnet) == [
        "90% of the parameters leave without noise: no privacy budget is kept"
    ]


@pytest.mark.parametrize(
    "values",
    [{"ratio": 0}, {"ratio": 1.1}, {"beta": -1}, {"epsilon": 0}, {"delta": 1}, {"reading": "x"}],
)
def test_values_it_cannot_take_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Tip(**values)


# -- commands ---------------------------------------------------------------------------------


def test_clients_train_under_it(keyhole: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = keyhole(
        *("train", "--data", "digits", "--model", "lenet", "--defense", "tip(epsilon=5)"),
        *("--clients", "4", "--rounds", "1", "--json"),
    )
    assert code == 0
    assert "noise_norm" in out


@pytest.mark.slow
def test_it_is_audited(keyhole: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = keyhole(
        *("audit", "--model", "resnet18", "--data", "photos", "--image-size", "32"),
        *("--defense", "tip", "--attack", "ig,ig-uploaded", "--iterations", "2"),
        *("--victims", "2", "--json"),
    )
    assert code == 0
    findings = json.loads(out)["findings"]
    assert {finding["defense"]["name"] for finding in findings} == {"tip"}
    assert [(f["attack"], f["attacker"]) for f in findings] == [
        ("ig", "naive"),
        ("ig", "adaptive"),
        ("ig-uploaded", "paper"),
    ]
