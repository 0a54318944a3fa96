"""Whether a defense acted: every defense of Keyhole, and defenses that fail in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.data import load
from keyhole.defenses import (
    DEFENSES,
    Acted,
    CalibratedNoise,
    ClientSide,
    Defense,
    Dp,
    DpSgd,
    Gaussian,
    NoDefense,
    Noise,
    check_defense,
    uniform_noise,
)
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")
CHECKED = (
    "gaussian",
    "dpsgd",
    "dp",
    "agp",
    "tip",
    "pruning",
    "topk",
    "quantise",
    "signsgd",
    "half",
    "flower-local-dp",
    "flower-clipping",
    "percentile-privacy",
    "svt",
    "soteria",
    "precode",
)
"""Defenses that declare what an update must show."""
COMPARED = ("censor", "graddefense")
"""Defenses that declare what only the update without them can show."""
LOUD = {
    "gaussian": "gaussian(sigma=0.1)",
    "tip": "tip(beta=10)",
    "agp": "agp(sigma=20)",
    "flower-clipping": "flower-clipping(clipping_norm=0.1)",
}
"""Settings under which the noise is as strong as the signal, and bounds are exceeded."""
EVERY = [LOUD.get(name, name) for name in DEFENSES.names() if name != "none"]


@pytest.fixture(autouse=True)
def _opacus(request: pytest.FixtureRequest) -> None:
    for word, package in (("dpsgd", "opacus"), ("flower", "flwr")):
        if word in request.node.name.lower():
            pytest.importorskip(package)


def model_for(text: str) -> nn.Module:
    name = "lenet" if text.startswith(("tip", "agp")) else "vit-small"
    model = build(name, classes=10, channels=1, image_size=8)
    return DEFENSES.parse(text).prepare_model(model)


def updated(
    model: nn.Module, defense: Defense, training: LocalTraining | None = None, seed: int = 0
) -> Update:
    return train_client(
        model,
        digits.images([1, 2]),
        digits.labels[[1, 2]],
        data=digits,
        defense=defense,
        generator=generator(seed),
        training=training,
    )[0]


@pytest.mark.parametrize("training", [None, LocalTraining(steps=3, lr=0.05)], ids=["1", "3"])
@pytest.mark.parametrize("text", EVERY)
def test_every_defense_acts_as_it_declares(text: str, training: LocalTraining | None) -> None:
    model, defense = model_for(text), DEFENSES.parse(text)
    sent = updated(model, defense, training)
    check = check_defense(defense, sent, model, reference=updated(model, NoDefense(), training))
    assert check is not None
    assert check.status is Acted.ACTED, check.words
    alone = check_defense(defense, sent, model)
    assert alone is not None
    assert alone.status in (Acted.ACTED, Acted.UNKNOWN)
    assert [trace.trace for trace in alone.checks] == [trace.trace for trace in check.checks]
    assert bool(alone.checks) == (text.partition("(")[0] in CHECKED + COMPARED)


@pytest.mark.parametrize("text", [LOUD.get(name, name) for name in CHECKED])
def test_an_update_without_the_defense_is_found(text: str) -> None:
    model, defense = model_for(text), DEFENSES.parse(text)
    plain = updated(model, NoDefense())
    known = check_defense(defense, plain, model, reference=plain)
    assert known is not None
    assert known.status is Acted.IDLE
    assert known.words.startswith("the update is bit for bit what it would be without the defense")
    alone = check_defense(defense, plain, model)
    assert alone is not None
    assert alone.status is Acted.WEAK


@pytest.mark.parametrize("text", COMPARED)
def test_what_only_the_update_without_a_defense_shows_is_unknown_alone(text: str) -> None:
    model, defense = model_for(text), DEFENSES.parse(text)
    plain = updated(model, NoDefense())
    known = check_defense(defense, plain, model, reference=plain)
    assert known is not None
    assert known.status is Acted.IDLE
    alone = check_defense(defense, plain, model)
    assert alone is not None
    assert alone.status is Acted.UNKNOWN
    assert "only the update without the defense could show" in alone.words


@pytest.mark.parametrize(
    ("declared", "drawn", "words"),
    [
        ("graddefense(sigma=1.0)", "graddefense(sigma=0.001)", "of all values, 1 declared"),
        ("censor", "gaussian(sigma=1e-4)", "a cosine of at most 1 with the true change"),
        ("soteria(ratio=0.8)", "soteria(ratio=0.2)", "are zero, 38 declared"),
        ("flower-local-dp", "flower-local-dp(sensitivity=0.001)", "noise of about 0.00049, 0.48"),
        ("flower-clipping", "flower-clipping(clipping_norm=2)", "more than the declared 1"),
        ("percentile-privacy(percentile=50)", "percentile-privacy", " zeros, 50.0% declared"),
        ("percentile-privacy(gamma=1e-3)", "percentile-privacy", "values up to 0.01, more than"),
        ("svt(gamma=1e-6)", "svt", "values up to 1e-05, more than the declared 1e-06"),
        ("svt(fraction=0.1)", "svt(fraction=0.5, replace=False)", "50.0% zeros, 90.0% declared"),
    ],
)
def test_a_weaker_defense_than_declared_is_found(declared: str, drawn: str, words: str) -> None:
    model = model_for("tip")
    sent = updated(model, DEFENSES.parse(drawn))
    plain = updated(model, NoDefense())
    check = check_defense(DEFENSES.parse(declared), sent, model, reference=plain)
    assert check is not None
    assert check.status is Acted.WEAK, check.words
    assert words in check.words


def test_a_bottleneck_whose_mean_is_decoded_is_found() -> None:
    model, defense = model_for("precode"), DEFENSES.parse("precode")
    training = LocalTraining(mode="eval")
    check = check_defense(defense, updated(model, defense, training), model)
    assert check is not None
    assert (check.status, check.words) == (Acted.WEAK, "0% of the bottleneck's variances moved")


def test_without_a_defense_there_is_nothing_to_check() -> None:
    model = model_for("none")
    assert check_defense(NoDefense(), updated(model, NoDefense()), model) is None


def test_a_defense_at_strength_zero_is_idle() -> None:
    model = model_for("gaussian")
    plain = updated(model, NoDefense())
    check = check_defense(Gaussian(sigma=0), plain, model, reference=plain)
    assert check is not None
    assert check.status is Acted.IDLE


def test_a_bound_that_nothing_exceeds_is_kept() -> None:
    model = model_for("gaussian")
    plain = updated(model, NoDefense())
    check = check_defense(Gaussian(sigma=0, clip=1e9), plain, model, reference=plain)
    assert check is not None
    assert check.status is Acted.ACTED


@dataclass(frozen=True, kw_only=True)
class WeakDp(Dp):
    """Draws a thousandth of the noise that it declares."""

    name: ClassVar[str] = "weak-dp"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        assert side is not None
        model = self.require_model(side)
        return Dp(clip=self.clip, sigma=self.strength(update, model) / 1000).on_update(update, side)


@dataclass(frozen=True, kw_only=True)
class ClippingDefault(Gaussian):
    """Noise by a budget: its scale is a sensitivity whose default nobody set to the clip."""

    epsilon: float = 1.0
    sensitivity: float = 1e-3

    name: ClassVar[str] = "clipping-default"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        sigma = self.sensitivity * 4.84 / self.epsilon
        return Gaussian(sigma=sigma, clip=self.clip).on_update(update, side)

    def noise_model(self, update: Update, model: nn.Module) -> dict[str, Noise]:
        sigma = (self.clip or 1.0) * 4.84 / self.epsilon
        return uniform_noise(update, model, sigma / (update.lr * update.steps))


@pytest.mark.parametrize("defense", [WeakDp(), ClippingDefault(clip=1.0)], ids=lambda d: d.name)
@pytest.mark.parametrize("known", [True, False])
def test_noise_a_thousand_times_too_small_is_found(
    defense: CalibratedNoise | Gaussian, known: bool
) -> None:
    model = model_for("none")
    sent = updated(model, defense)
    reference = updated(model, NoDefense()) if known else None
    check = check_defense(defense, sent, model, reference=reference)
    assert check is not None
    assert check.status is Acted.WEAK
    assert check.checks[0].passed is False
    if known:
        assert check.checks[0].found / check.checks[0].expected == pytest.approx(1e-3, rel=0.01)


class LowRank(nn.Module):
    """A frozen linear layer with a trained change of low rank, as LoRA has it."""

    def __init__(self, frozen: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) * 0.1)
        self.up = nn.Parameter(torch.randn(frozen.out_features, rank) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.frozen(x) + x @ self.down.T @ self.up.T
        return changed


@dataclass(frozen=True, kw_only=True)
class LayerDpSgd(DpSgd):
    """DP-SGD that samples gradients of the layers it knows alone; others pass as they are."""

    name: ClassVar[str] = "layer-dpsgd"

    def on_step(  # type: ignore[override]
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        private = super().on_step(model, inputs, labels, side)
        known: set[str] = set()
        for place, module in model.named_modules():
            if type(module) in (nn.Linear, nn.Conv2d) and module.weight.requires_grad:
                known |= {f"{place}.{n}" for n, _ in module.named_parameters()}
        if not known:
            return None  # no layer has sampled gradients: the optimiser finds nothing to clip
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        loss = nn.functional.cross_entropy(model(inputs), labels)
        plain = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
        names = [name for name, _ in model.named_parameters()]
        return [
            plain[name] if name in plain and name not in known else private[i]
            for i, name in enumerate(names)
        ]


def low_rank_model(*, head_trained: bool) -> nn.Module:
    torch.manual_seed(0)
    head = nn.Linear(32, 10).requires_grad_(head_trained)
    return nn.Sequential(nn.Flatten(), LowRank(nn.Linear(64, 32)), nn.ReLU(), head)


@pytest.mark.parametrize("head_trained", [True, False])
def test_dp_that_skips_low_rank_layers_is_found(head_trained: bool) -> None:
    pytest.importorskip("opacus")
    model = low_rank_model(head_trained=head_trained)
    reference = updated(model, NoDefense())
    proper = check_defense(DpSgd(), updated(model, DpSgd()), model, reference=reference)
    assert proper is not None
    assert proper.status is Acted.ACTED, proper.words
    check = check_defense(LayerDpSgd(), updated(model, LayerDpSgd()), model, reference=reference)
    assert check is not None
    if head_trained:
        assert check.status is Acted.WEAK
        assert "too little in 2 of 4 tensors: 1.down, 1.up" in check.words
    else:
        assert check.status is Acted.IDLE


@dataclass(frozen=True, kw_only=True)
class Fog(Defense):
    """A stranger's noise, which it declares to attackers."""

    sigma: float = 1.0
    drawn: float = 1.0

    name: ClassVar[str] = "fog"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        draw = side.generator
        return update.map(
            lambda _, t: t + self.sigma * self.drawn * torch.randn(t.shape, generator=draw)
        )

    def noise_model(self, update: Update, model: nn.Module) -> Mapping[str, Noise]:
        return uniform_noise(update, model, self.sigma / (update.lr * update.steps))


@pytest.mark.parametrize(("drawn", "status"), [(1.0, Acted.ACTED), (1e-3, Acted.WEAK)])
def test_a_stranger_who_declares_noise_is_checked_without_more(drawn: float, status: Acted) -> None:
    model, defense = model_for("none"), Fog(drawn=drawn)
    check = check_defense(defense, updated(model, defense), model)
    assert check is not None
    assert check.status is status


def test_what_depends_on_an_unknown_training_is_not_judged() -> None:
    model = model_for("dp")
    plain = updated(model, NoDefense())
    check = check_defense(Dp(), plain, model, training_known=False)
    assert check is not None
    assert (check.status, check.checks) == (Acted.UNKNOWN, ())
    fixed = check_defense(Gaussian(sigma=0.1), plain, model, training_known=False)
    assert fixed is not None
    assert fixed.status is Acted.WEAK
