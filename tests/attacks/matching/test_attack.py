"""Gradient matching as an attack: what it is given, what it refuses, what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import (
    ATTACKS,
    ITERATIVE,
    InvertingGradients,
    Matching,
    Wiig,
)
from keyhole.attacks.matching.precision import use_precision
from keyhole.data import ImageSet
from keyhole.defenses import Dropout, Gaussian, Pruning
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.models import build
from keyhole.threat import Observation

Clients = Callable[..., list[Any]]
Observe = Callable[..., Any]


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    return build("mlp", classes=10, channels=1, image_size=8)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 30), nn.GELU(), nn.Dropout(0.0), nn.Linear(30, 10))
    )


def with_knowledge(observation: Observation, **what: Any) -> Observation:
    return replace(observation, knowledge=replace(observation.knowledge, **what))


def test_an_attack_says_what_it_must_be_given(clients: Clients) -> None:
    assert InvertingGradients().given == {"labels"}
    assert Wiig().given == {"labels", "masks"}
    assert ATTACKS.parse("idlg").given == frozenset()
    assert ATTACKS.parse("wiig(labels='inferred')").given == {"masks"}
    seen = clients(small(), [[3]], Dropout(p=0.5))[0].observation
    with pytest.raises(DoesNotFit, match="must be given the labels"):
        InvertingGradients()(with_knowledge(seen, labels=None))
    with pytest.raises(DoesNotFit, match="must be given the client's dropout masks"):
        Wiig()(with_knowledge(seen, masks=None))
    with pytest.raises(DoesNotFit, match="the client drops nothing"):
        Wiig()(clients(small(), [[3]])[0].observation)


def test_labels_that_cannot_be_inferred_are_refused(clients: Clients) -> None:
    model = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    seen = clients(model, [[3]])[0].observation
    with pytest.raises(DoesNotFit, match="it needs a linear last layer"):
        ATTACKS.parse("idlg")(seen)
    assert InvertingGradients(iterations=2)(seen).images is not None


@pytest.mark.parametrize(
    "text", ["ig(iterations=0)", "ig(lr=0)", "ig(tv=-1)", "ig(masks='guessed')", "dia(trials=0)"]
)
def test_senseless_settings_are_refused(text: str) -> None:
    with pytest.raises(BadValue):
        ATTACKS.parse(text)


def test_nobody_is_attacked_for_nothing(clients: Clients) -> None:
    assert list(InvertingGradients().on_many([])) == []


def test_an_update_without_any_parameter_is_refused(clients: Clients) -> None:
    seen = clients(small(), [[3]])[0].observation
    empty = replace(seen, update=replace(seen.update, change={}))
    with pytest.raises(DoesNotFit, match=r"reads '1\.weight', which the update does not have"):
        InvertingGradients()(empty)


def test_a_part_of_the_update_will_do(clients: Clients, mlp: nn.Module) -> None:
    client = clients(mlp, [[14]])[0]
    seen = client.observation
    first = {"1.weight": seen.update.change["1.weight"]}
    found = InvertingGradients(iterations=100)(
        replace(seen, update=replace(seen.update, change=first))
    )
    assert client.decibels(found.images) > 30


WITHOUT_READING = [attack for attack in ITERATIVE if not attack.only_adaptive]


@pytest.mark.parametrize("attack", WITHOUT_READING, ids=lambda a: a.name)
def test_what_is_returned_is_what_was_promised(clients: Clients, attack: type[Matching]) -> None:
    model = build("vit-small", classes=10, channels=1, image_size=8)
    model.blocks = model.blocks[:1]
    if attack.name == "spear-ig":  # it reads a layer before a ReLU
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, 10)
        )
    seen = clients(model, [[3, 4]], Dropout(p=0.25))[0].observation
    count = 1 if attack.name == "fishing" else 2  # one image is fished out of the batch
    found = attack(iterations=2)(seen)
    assert found.images is not None
    assert found.images.shape == (count, 1, 8, 8)
    assert not found.images.requires_grad
    assert found.images.dtype == torch.float32
    assert found.confidence is not None
    assert found.confidence.shape == (count,)
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    assert found.frames[0][1].shape == found.images.shape
    assert (found.masks is not None) == (attack.name == "dia")
    if found.masks is not None:
        assert [tuple(mask.shape) for mask in found.masks][:2] == [(2, 5, 256), (2, 16, 5, 5)]
        assert all(((mask >= 0) & (mask <= 1)).all() for mask in found.masks)
    assert {"loss", "iterations", "restarts", "failed"} <= set(found.diagnostics)


def test_confidence_follows_the_loss(clients: Clients, mlp: nn.Module) -> None:
    seen = clients(mlp, [[14]])[0].observation
    early, late = (InvertingGradients(iterations=n)(seen) for n in (1, 100))
    assert float(early.confidence) < 0.1 < 0.9 < float(late.confidence)


def test_pixels_stay_between_black_and_white(clients: Clients, digits: ImageSet) -> None:
    seen = clients(small(), [[3]])[0].observation
    black, white = (digits.normalise(torch.full((1, 1, 1), value)).item() for value in (0.0, 1.0))
    found = InvertingGradients(iterations=20, lr=1.0)(seen)
    assert found.images is not None
    assert found.images.min() >= black - 1e-6
    assert found.images.max() <= white + 1e-6
    wild = ATTACKS.parse("dlg(iterations=1)")(seen)
    assert wild.images.min() < black - 0.1


@pytest.mark.parametrize("way", ["factored", "vmap", "loop"])
def test_every_way_ends_at_the_same_image(clients: Clients, way: str) -> None:
    seen = clients(small().double(), [[3], [14]], Dropout(p=0.3))
    attack = ATTACKS.parse(f"dia(iterations=25, backend={way!r})")
    plain = ATTACKS.parse("dia(iterations=25)")
    observations = [client.observation for client in seen]
    runs = [list(a.on_many(observations)) for a in (attack, plain)]
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one.images, other.images, rtol=1e-6, atol=1e-6)
        for mask, same in zip(one.masks, other.masks, strict=True):
            torch.testing.assert_close(mask, same, rtol=1e-5, atol=1e-5)


class Tied(nn.Module):
    """Uses a layer twice: it does not factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(64, 30), nn.Linear(30, 30), nn.Linear(30, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.first(x.flatten(1)).tanh()).tanh()
        return self.head(self.again(x))


class Branching(Tied):
    """And goes one of two ways: vmap cannot take it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else 0.9 * x)


def test_a_slower_way_is_noted_once_and_still_reads_the_image(clients: Clients) -> None:
    torch.manual_seed(0)
    for model, line in ((Tied(), "matched by vmap, not factored"), (Branching(), "by a loop")):
        seen = clients(model, [[3], [14]])
        found = list(InvertingGradients(iterations=150).on_many([c.observation for c in seen]))
        for client, result in zip(seen, found, strict=True):
            (note,) = [note for note in result.notes if "at once" not in note]
            assert line in note
            assert "\n" not in note
            assert client.decibels(result.images) > 20


def test_a_digit_is_read_out_of_three_local_steps(
    observe: Observe, digits: ImageSet, mlp: nn.Module
) -> None:
    victim = observe(mlp, digits, [14], training=LocalTraining(steps=3, lr=0.1))
    seen = with_knowledge(victim.observation, labels=victim.labels)
    assert seen.update.steps == 3
    found = InvertingGradients(iterations=80)(seen)
    assert found.notes == ()
    assert found.diagnostics["loss"] < 0.01
    assert victim.decibels(found) > 30


def test_dropout_in_several_steps_is_undone_by_the_clients_masks(clients: Clients) -> None:
    seen = clients(small(), [[14]], Dropout(p=0.5), steps=3, lr=0.1)
    assert seen[0].masks[0].shape == (3, 30)
    found = Wiig(iterations=100)(seen[0].observation)
    ignored = InvertingGradients(iterations=100)(seen[0].observation)
    assert found.diagnostics["loss"] < 0.01 < ignored.diagnostics["loss"]
    assert seen[0].decibels(found.images) > seen[0].decibels(ignored.images) + 5


def test_clients_that_evaluate_are_attacked_as_such(clients: Clients) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sigmoid()),
        *(nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 10)),
    )
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    client = clients(model, [[14]], mode="eval")[0]
    found = InvertingGradients(iterations=300)(client.observation)
    mistaken = InvertingGradients(iterations=300)(
        with_knowledge(client.observation, client_mode="train")
    )
    assert client.decibels(found.images) > 25
    assert found.diagnostics["loss"] < mistaken.diagnostics["loss"]


@pytest.mark.parametrize("defense", [Gaussian(sigma=10.0), Pruning(ratio=0.999)], ids=str)
def test_a_defended_update_gives_finite_images(clients: Clients, defense: Any) -> None:
    seen = clients(small(), [[3]])[0].observation
    hidden = replace(seen, update=defense.on_update(seen.update))
    for name in ("ig", "dlg", "dia"):
        found = ATTACKS.parse(f"{name}(iterations=20)")(hidden)
        assert found.images is None or found.images.isfinite().all()


def test_batches_are_attacked_whole(clients: Clients, mlp: nn.Module) -> None:
    client = clients(mlp, [[3, 14]])[0]
    found = InvertingGradients(iterations=250)(client.observation)
    assert found.images is not None
    for image, true in zip(found.images, client.inputs, strict=True):
        assert (image - true).square().mean() < 0.02 * true.var()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_every_precision_reads_the_image(clients: Clients, mlp: nn.Module, precision: str) -> None:
    client = clients(mlp, [[14]])[0]
    found = InvertingGradients(iterations=100, precision=precision)(client.observation)
    assert found.images is not None
    assert found.images.dtype == torch.float32
    assert client.decibels(found.images) > 25


def test_the_processes_own_precision_is_put_back() -> None:
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [s.allow_tf32 for s in settings]
    with use_precision("tf32"):
        assert [s.allow_tf32 for s in settings] == [True, True]
        with use_precision("float32"):
            assert [s.allow_tf32 for s in settings] == [False, False]
        assert [s.allow_tf32 for s in settings] == [True, True]
    assert [s.allow_tf32 for s in settings] == before


def test_who_reads_the_results_one_by_one_may_still_train(clients: Clients) -> None:
    """Gradients are switched off for the attack alone, not for the code between two results."""
    observations = [client.observation for client in clients(small(), [[3], [14]])]
    attack = InvertingGradients(iterations=2)
    try:
        enabled = [torch.is_grad_enabled() for _ in attack.on_many(observations)]
        both = zip(attack.on_many(observations), attack.on_many(observations), strict=True)
        assert len(list(both)) == 2
        assert enabled == [True, True]
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
