"""Whatever the tensors: what leaves has the promised norm, or nothing leaves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from keyhole.data import load
from keyhole.defenses import DEFENSES, Agp, ClientSide, Defense, Dp, DpSgd, Gaussian, Pruning
from keyhole.defenses.calibrated import keep_parameters
from keyhole.defenses.clipping import clip_update
from keyhole.errors import BadUpdate, KeyholeError
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

CLIP = 0.01
EVERY: list[Defense] = [
    *(member() for member in DEFENSES),
    *(Gaussian(sigma=sigma, clip=CLIP) for sigma in (0, 1e-4)),
    *(kind(sigma=sigma, clip=CLIP) for kind in (Dp, Agp) for sigma in (0, 1e-4)),
    Pruning(scope="update"),
]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
OTHERS = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64]
VALUES = [0.0, -0.0, 1e-45, 1e-7, 1.0, -3.0, 6e4, 3e38, 1e200, math.nan, math.inf, -math.inf]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 0), (40, 50)]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 10)
    )


MODEL = net()
OWN = MODEL.state_dict()
PARAMETERS = [name for name, _ in MODEL.named_parameters()]


def tensor_of(shape: tuple[int, ...], kind: torch.dtype, value: float, seed: int) -> Tensor:
    """Random values of some length, with ``value`` at one place."""
    made = torch.randn(shape, generator=generator(seed), dtype=torch.double)
    if made.numel():
        made.view(-1)[0] = value
    if kind.is_floating_point or kind.is_complex:
        return made.to(kind)
    return made.nan_to_num(0, 100, 0).clamp(0, 100).to(kind)


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Tensor]:
    """A model's own change, in which some tensors are not what they should be."""
    seed = draw(st.integers(0, 2**20))
    scale = 10.0 ** draw(st.integers(-6, 3))
    change = {
        n: torch.randn(t.shape, generator=generator(seed, n)) * scale
        if t.is_floating_point()
        else torch.full_like(t, 3)
        for n, t in OWN.items()
    }
    for name in draw(st.lists(st.sampled_from([*OWN, "stranger"]), max_size=2)):
        like = change.get(name, torch.zeros(3))
        shape = draw(st.sampled_from([tuple(like.shape)] * 3 + SHAPES))
        kind = draw(st.sampled_from(FLOATS + OTHERS))
        change[name] = tensor_of(shape, kind, draw(st.sampled_from(VALUES)), seed)
    return change


def side(**known: Any) -> ClientSide:
    images = torch.rand(4, 1, 8, 8, generator=generator(0, "images"))
    return ClientSide(generator(1), images=images, labels=torch.arange(4), **known)


@pytest.mark.parametrize("defense", EVERY, ids=str)
@settings(max_examples=40)
@given(change=changes(), lr=st.sampled_from([1.0, 0.1]))
def test_what_leaves_is_defended_or_nothing_leaves(
    defense: Defense, change: dict[str, Tensor], lr: float
) -> None:
    client = side(model=MODEL)
    try:
        sent = defense.on_update(Update(change, lr=lr), client)
    except KeyholeError:
        return
    assert all(t.isfinite().all() for t in sent.change.values())
    if type(defense).on_update is Defense.on_update:
        return  # it acts on images or on the model and promises nothing of updates
    assert set(sent.change) <= set(OWN)
    for name, tensor in sent.change.items():
        assert tensor.is_floating_point() == OWN[name].is_floating_point()
        assert tensor.shape == OWN[name].shape
        assert tensor.is_floating_point() or tensor.dtype == OWN[name].dtype
    if isinstance(defense, Gaussian | Dp) and defense.clip is not None:
        limit = defense.clip * (1.0 if isinstance(defense, Gaussian) else lr)
        seen = sent if isinstance(defense, Gaussian) else keep_parameters(sent, MODEL)
        noise = float(client.telemetry["noise_norm"])
        rounding = 1e-5 if noise == 0 else 5e-3  # of half precision, when noise is added
        assert seen.norm() <= (limit + noise) * (1 + rounding)


@pytest.mark.parametrize("defense", EVERY, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_defense_takes_what_is_not_finite(defense: Defense, value: float) -> None:
    change = {n: torch.zeros_like(t) for n, t in OWN.items()}
    change["1.running_mean"][2] = value
    with pytest.raises(BadUpdate, match=r"1 NaN or infinite values in '1.running_mean'"):
        defense.on_update(Update(change), side(model=MODEL))


@pytest.mark.parametrize("defense", [Gaussian(), Pruning(), Dp(), Agp(), DpSgd()], ids=str)
@pytest.mark.parametrize(
    ("name", "tensor", "why"),
    [
        ("0.weight", torch.ones(4, 1, 3, 3, dtype=torch.int8), "no integer buffer of the model"),
        ("0.weight", torch.zeros(4, 1, 3, 3, dtype=torch.int64), "no integer buffer of the model"),
        ("0.weight", torch.ones(4, 1, 3, 3, dtype=torch.complex64), "no defense acts on complex"),
        ("stranger", torch.ones(3, dtype=torch.complex64), "no defense acts on complex"),
        ("stranger", torch.ones(3, dtype=torch.int64), "no integer buffer of the model"),
        ("stranger", torch.ones(3), "which the model does not have"),
        ("1.num_batches_tracked", torch.tensor(3.0), "has int64: send the model's own type"),
        ("1.num_batches_tracked", torch.tensor(3, dtype=torch.int32), "no integer buffer of the"),
        ("1.num_batches_tracked", torch.ones(9, dtype=torch.int64), "holds several numbers"),
    ],
)
def test_tensors_that_no_defense_acts_on_are_refused(
    defense: Defense, name: str, tensor: Tensor, why: str
) -> None:
    with pytest.raises(BadUpdate, match=why):
        defense.on_update(Update({name: tensor}), side(model=MODEL))
    assert defense.on_update(Update({"1.num_batches_tracked": torch.tensor(3)}), side(model=MODEL))


def test_integer_buffers_of_several_numbers_leave_only_unchanged() -> None:
    weights = {"places": torch.arange(9), "mask": torch.ones(4, dtype=torch.bool)}
    same = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    sent = Gaussian().on_update(Update(same), side(weights=weights))
    assert all(torch.equal(sent.change[name], same[name]) for name in same)
    for name in weights:
        with pytest.raises(BadUpdate, match="no defense acts on integers"):
            Gaussian().on_update(
                Update({name: torch.ones_like(weights[name])}), side(weights=weights)
            )


def test_without_a_model_no_integer_is_known_to_be_its_own() -> None:
    with pytest.raises(BadUpdate, match=r"pass ClientSide\(model=...\)"):
        Gaussian().on_update(Update({"w": torch.zeros(3), "n": torch.tensor(3)}))


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_clip_that_cannot_be_measured_raises(norm: float) -> None:
    with pytest.raises(BadUpdate, match="cannot be clipped"):
        clip_update(Update({"w": torch.tensor([norm, 1.0])}), 1.0)
    with pytest.raises(BadUpdate, match="cannot be clipped"):
        clip_update(Update({"w": torch.ones(2)}), norm)
    with pytest.raises(BadUpdate, match="cannot be clipped"):
        clip_update(Update({"w": torch.full((4,), 1e200, dtype=torch.double)}), 1.0)


def test_rounding_to_half_does_not_lengthen_what_is_clipped() -> None:
    """Each value is to become 3.1e-8, which float16 rounds up to 6e-8."""
    long = Update({"w": torch.ones(1_000_000, dtype=torch.float16)})
    limit = 3.1e-8 * 1000
    assert clip_update(long, limit)[0].norm() <= limit * 1.001


def test_noise_that_a_type_rounds_to_zero_is_refused() -> None:
    half = Update({"w": torch.ones(100, dtype=torch.float16)})
    with pytest.raises(BadUpdate, match="sigma=1e-09 is zero in float16"):
        Gaussian(sigma=1e-9).on_update(half)
    with pytest.raises(BadUpdate, match="NaN or infinite"):
        Gaussian(sigma=1e6).on_update(half)


@pytest.mark.parametrize("defense", EVERY, ids=str)
@pytest.mark.parametrize("lr", [None, 0.1])
def test_clients_do_not_train_on_weights_that_are_not_finite(
    defense: Defense, lr: float | None
) -> None:
    digits = load("digits")
    model = build("lenet", classes=10, channels=1, image_size=8)
    model.register_buffer("unused", torch.tensor([math.nan]))
    with pytest.raises(BadUpdate, match="the global weights have 1 NaN or infinite values"):
        train_client(
            model,
            digits.images([1, 2]),
            digits.labels[[1, 2]],
            data=digits,
            defense=defense,
            generator=generator(0),
            training=LocalTraining(lr=lr),
        )


def test_every_step_s_clip_raises_where_it_cannot_be_measured() -> None:
    """A NaN in one image's pixels reaches every gradient."""
    pytest.importorskip("opacus")
    digits = load("digits")
    images = digits.images([1, 2]).clone()
    images[0, 0, 0, 0] = math.nan
    model = build("mlp", classes=10, channels=1, image_size=8)
    with pytest.raises(BadUpdate, match="gradient"):
        DpSgd(noise=0).on_step(model, images, digits.labels[[1, 2]], side())
    with pytest.raises(BadUpdate, match="NaN or infinite"):
        train_client(
            model,
            images,
            digits.labels[[1, 2]],
            data=digits,
            defense=Gaussian(),
            generator=generator(0),
            training=LocalTraining(lr=0.1, clip=1.0),
        )
