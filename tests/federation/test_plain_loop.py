"""A defense in a plain PyTorch loop: as good as in Keyhole's own, or nothing leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import keyhole
from keyhole.data import load
from keyhole.defenses import DEFENSES, Defense, Gaussian
from keyhole.errors import BadUpdate, DoesNotFit, UnknownName
from keyhole.federation.plain_loop import ProtectedClient
from keyhole.models import build
from keyhole.update import Update

DIGITS = load("digits")
IMAGES, LABELS = DIGITS.images(range(8)), DIGITS.labels[:8]


def sgd(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


def network(name: str = "lenet") -> nn.Module:
    return build(name, classes=10, channels=1, image_size=8)


def protected(defense: Defense | str, model: nn.Module | None = None, **more: object) -> Client:
    model = network() if model is None else model
    settings = {"optimiser": sgd, "images": IMAGES, "labels": LABELS, "seed": 0, **more}
    return keyhole.protect(model, defense, normalise=DIGITS.normalise, **settings)  # type: ignore[arg-type]


Client = ProtectedClient


def train(client: Client, steps: int = 2) -> Client:
    for _ in range(steps):
        client.backward(DIGITS.normalise(client.images(IMAGES)), LABELS)
        client.optimiser.step()
    return client


DEFENSE_NAMES = [name for name in DEFENSES.names() if name != "mjp"]


@pytest.mark.parametrize("name", DEFENSE_NAMES)
def test_every_defense_protects_a_plain_loop(name: str) -> None:
    model = DEFENSES[name]().prepare_model(network())
    before = {n: t.clone() for n, t in model.state_dict().items()}
    sent = train(protected(name, model)).weights(batch_size=8)
    unshared = DEFENSES[name]().unshared(model)
    assert sent.keys() == before.keys() - set(unshared)
    assert all(t.isfinite().all() and t.dtype == before[n].dtype for n, t in sent.items())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert any(not torch.equal(t, before[n]) for n, t in sent.items())


def test_parameters_that_the_server_does_not_have_are_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"make its model by defense.prepare_model\(model\)"):
        protected("precode")


def test_without_a_defense_it_is_plain_training() -> None:
    plain = network()
    optimiser = sgd(plain.parameters())
    for _ in range(3):
        optimiser.zero_grad()
        cross_entropy(plain(DIGITS.normalise(IMAGES)), LABELS).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    sent = train(protected("none"), 3).weights(batch_size=8)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(sent[name], tensor)


def test_steps_and_rate_are_counted_and_reach_the_defense() -> None:
    seen: list[Update] = []

    @dataclass(frozen=True)
    class Watch(Defense):
        summary = paper = ""

        def on_update(self, update: Update, side: object = None) -> Update:
            seen.append(update)
            return update

    train(protected(Watch()), 3).update(batch_size=4)
    told = protected(Watch(), optimiser=None)
    nudge(told.model)
    told.update(batch_size=2, steps=5, lr=0.5)
    facts = [(u.steps, pytest.approx(u.lr), u.batch_size, u.examples) for u in seen]
    assert facts == [(3, 0.1, 4, 8), (5, 0.5, 2, 8)]


def nudge(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(0.1)


def test_a_gradient_leaves_with_its_noise_and_only_once() -> None:
    client = protected("gaussian(sigma=0.5)", optimiser=None)
    client.backward(DIGITS.normalise(IMAGES), LABELS)
    true = {n: p.grad.clone() for n, p in client.model.named_parameters() if p.grad is not None}
    sent = client.gradient(batch_size=8)
    off = torch.cat([(sent[n] - g).flatten() for n, g in true.items()])
    assert 0.4 < float(off.std()) < 0.6
    with pytest.raises(DoesNotFit, match="no gradient to share"):
        client.gradient(batch_size=8)


def test_noise_is_the_same_by_seed_and_else_never() -> None:
    def noisy(seed: int | None) -> Tensor:
        client = protected("gaussian(sigma=1)", seed=seed)
        client.backward(DIGITS.normalise(IMAGES), LABELS)
        return next(iter(client.gradient(batch_size=8).values()))

    assert torch.equal(noisy(3), noisy(3))
    assert not torch.equal(noisy(3), noisy(4))
    assert not torch.equal(noisy(None), noisy(None))


@pytest.mark.parametrize("name", ["csvar", "image-noise"])
def test_images_that_pass_by_the_defense_send_nothing(name: str) -> None:
    client = protected(name)
    client.backward(DIGITS.normalise(IMAGES), LABELS)
    with pytest.raises(DoesNotFit, match=r"must call `images = client.images\(images\)`"):
        client.gradient(batch_size=8)
    client.optimiser.step()
    with pytest.raises(DoesNotFit, match=r"was not applied"):
        client.weights(batch_size=8)


def plain_backward(client: Client) -> None:
    cross_entropy(client.model(DIGITS.normalise(IMAGES)), LABELS).backward()  # type: ignore[no-untyped-call]


def test_a_step_that_the_defense_did_not_make_sends_nothing() -> None:
    client = train(protected("dpsgd"))
    plain_backward(client)
    client.optimiser.step()
    with pytest.raises(DoesNotFit, match="before each optimiser step"):
        client.weights(batch_size=8)
    added = protected("dpsgd")
    added.backward(DIGITS.normalise(IMAGES), LABELS)
    plain_backward(added)  # adds to what the defense made
    with pytest.raises(DoesNotFit, match="leave gradients as they are"):
        added.gradient(batch_size=8)
    alone = protected("dpsgd", optimiser=None)
    nudge(alone.model)
    with pytest.raises(DoesNotFit, match="before each optimiser step"):
        alone.update(batch_size=8, steps=1, lr=0.1)


def test_the_wrong_model_and_a_second_look_send_nothing() -> None:
    model = network()
    client = train(protected("none", model))
    client.update(batch_size=8)
    with pytest.raises(DoesNotFit, match=r"shared already.*call protect\(\) again"):
        client.update(batch_size=8)
    other = train(protected("none", model))
    nudge(model)
    with pytest.raises(DoesNotFit, match=r"train client\.model instead"):
        other.update(batch_size=8)
    idle = protected("none", optimiser=None)
    with pytest.raises(DoesNotFit, match="was not trained"):
        idle.update(batch_size=8, steps=1, lr=0.1)


def test_what_nobody_knows_is_refused() -> None:
    client = protected("none", optimiser=None)
    nudge(client.model)
    with pytest.raises(DoesNotFit, match="how the client trained is not known"):
        client.update(batch_size=8)
    with pytest.raises(DoesNotFit, match="there is no optimiser"):
        _ = client.optimiser
    with pytest.raises(DoesNotFit, match="chooses channels by the client's own images"):
        train(protected("tip", images=None, labels=None)).update(batch_size=8)
    with pytest.raises(UnknownName, match="did you mean gaussian"):
        keyhole.protect(network(), "gausian")


def test_weights_that_are_not_finite_are_neither_trained_nor_sent() -> None:
    broken = network()
    with torch.no_grad():
        next(broken.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(BadUpdate, match="the global weights have 1 NaN"):
        keyhole.protect(broken, Gaussian())
    client = train(protected("gaussian"))
    with torch.no_grad():
        next(client.model.parameters()).view(-1)[0] = float("inf")
    with pytest.raises(BadUpdate, match="NaN or infinite"):
        client.weights(batch_size=8)


def test_a_defense_remembers_from_round_to_round() -> None:
    first = train(protected("dpsgd"))
    first.update(batch_size=8)
    second = train(protected("dpsgd", memory=first.memory))
    second.update(batch_size=8)
    assert float(second.telemetry["epsilon"]) > float(first.telemetry["epsilon"]) > 0
