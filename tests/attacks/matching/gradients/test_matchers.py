"""Which backend is taken for a model, and that every backend gives the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.matching.gradients.choice import choose_matcher
from keyhole.attacks.matching.gradients.factor_plan import DoesNotFactor
from keyhole.attacks.matching.gradients.factored import FactoredMatcher
from keyhole.attacks.matching.gradients.match import Targets
from keyhole.attacks.matching.gradients.matchers import Backend, LoopMatcher, VmapMatcher
from keyhole.attacks.matching.parts.objectives import Cosine
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.data import load
from keyhole.defenses import Dropout
from keyhole.federation import LocalTraining, compute_local_update
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Server

Clients = Callable[..., list[Any]]
SHAPE = (1, 8, 8)
BATCHES = ([3, 1], [4, 1], [5, 9])
EVERY_WAY = pytest.mark.parametrize("backend", ["factored", "vmap", "loop"])


class Headed(nn.Module):
    """Something done to 64 features, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bend(self.inner(x.flatten(1))))

    def bend(self, x: Tensor) -> Tensor:
        return x.tanh()


class Twice(Headed):
    """Uses a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(12, 12)

    def bend(self, x: Tensor) -> Tensor:
        return self.again(self.again(x).tanh())


class Matrix(Headed):
    """Multiplies by a parameter that is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(12, 12))

    def bend(self, x: Tensor) -> Tensor:
        return (x @ self.matrix).tanh()


class Branch(nn.Module):
    """Goes one of two ways, by what the batch is like."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold, self.inner, self.head = threshold, nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x.flatten(1)).tanh()
        return self.head(hidden.square() if x.mean() > self.threshold else hidden)


class Remembers(Headed):
    """Moves a buffer of its own towards what it sees, and uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(12))

    def bend(self, x: Tensor) -> Tensor:
        self.level.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return (x - self.level).tanh()


class ByKeyword(Headed):
    """Names the arguments of its functions, as timm's BEiT does."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(input=x, weight=torch.ones(1, 1, 1, 1).to(x))
        hidden = F.linear(input=x.flatten(1), weight=self.inner.weight, bias=self.inner.bias)
        return F.linear(input=hidden.tanh(), weight=self.head.weight, bias=self.head.bias)


def plain(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """One victim's gradient by nothing but torch."""
    twin = copy.deepcopy(model).requires_grad_().train()
    loss = F.cross_entropy(twin(images), labels)
    found = torch.autograd.grad(loss, list(twin.parameters()))
    return dict(zip(dict(twin.named_parameters()), found, strict=True))


def choose(
    model: nn.Module, clients: Clients, backend: Backend = "auto"
) -> tuple[Any, Any, list[str]]:
    seen = [client.observation for client in clients(model.double(), BATCHES)]
    problem = MatchingProblem.from_observation(seen[0])
    targets = Targets.stack([o.update.gradient() for o in seen], problem.like)
    return problem, *choose_matcher(problem, targets, backend=backend)


def check_gradients(model: nn.Module, matcher: Any) -> None:
    """The gradients of bright and of dark dummies against plain autograd."""
    images = torch.randn(3, 2, *SHAPE, dtype=torch.double)
    images += torch.tensor([2.0, 0.0, -2.0]).view(3, 1, 1, 1, 1)
    labels = torch.tensor([[0, 1], [2, 3], [4, 4]])
    targets = torch.eye(10, dtype=torch.double)[labels]
    for _ in range(2):  # the second time as the first: nothing was left behind
        match = matcher(images.requires_grad_(), targets, None)
        for victim in range(3):
            for name, gradient in plain(model, images[victim].detach(), labels[victim]).items():
                torch.testing.assert_close(match.gradient(name)[victim], gradient)


@pytest.mark.parametrize("name", ["mlp", "lenet", "vit-small"])
def test_the_papers_models_are_matched_by_factors(clients: Clients, name: str) -> None:
    model = build(name, classes=10, channels=1, image_size=8)
    _, matcher, notes = choose(model, clients)
    assert isinstance(matcher, FactoredMatcher)
    assert matcher.backend == "factored"
    assert notes == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [(Twice, "'again.bias' is used more than once"), (Matrix, "'matrix' is used outside linear")],
)
def test_a_model_that_does_not_factor_is_matched_by_vmap(
    clients: Clients, make: Callable[[], nn.Module], reason: str
) -> None:
    model = make()
    _, matcher, notes = choose(model, clients)
    assert type(matcher) is VmapMatcher
    assert matcher.backend == "vmap"
    assert len(notes) == 1
    assert notes[0].startswith("matched by vmap, not factored: ")
    assert reason in notes[0]
    check_gradients(model, matcher)


@pytest.mark.parametrize(
    "make",
    [lambda: Branch(0.0), lambda: Branch(1.0), Remembers],
    ids=["branch", "rare branch", "written buffer"],
)
def test_a_model_that_vmap_cannot_take_is_matched_by_a_loop(
    clients: Clients, make: Callable[[], nn.Module]
) -> None:
    model = make()
    _, matcher, notes = choose(model, clients)
    assert type(matcher) is LoopMatcher
    assert matcher.backend == "loop"
    assert len(notes) == 1
    assert notes[0].startswith("matched one victim at a time, by a loop: vmap cannot take")
    assert "\n" not in notes[0]
    check_gradients(model, matcher)


def test_functions_called_by_keyword_are_matched(clients: Clients) -> None:
    model = ByKeyword()
    _, matcher, _ = choose(model, clients)
    check_gradients(model, matcher)


def test_a_way_that_was_asked_for_is_taken_or_refused(clients: Clients) -> None:
    assert choose(Headed(), clients, "factored")[1].backend == "factored"
    assert choose(Headed(), clients, "vmap")[1].backend == "vmap"
    assert choose(Headed(), clients, "loop")[1].backend == "loop"
    with pytest.raises(DoesNotFactor, match=r"'again\.bias' is used more than once"):
        choose(Twice(), clients, "factored")
    with pytest.raises(DoesNotFactor, match="data-dependent control flow"):
        choose(Branch(0.0), clients, "vmap")


@EVERY_WAY
def test_some_victims_are_selected(clients: Clients, backend: Backend) -> None:
    _, matcher, _ = choose(Headed(), clients, backend)
    images = torch.randn(3, 2, *SHAPE, dtype=torch.double, requires_grad=True)
    targets = torch.rand(3, 2, 10, dtype=torch.double).softmax(-1)
    rows = torch.tensor([2, 0])
    all_of_them = Cosine()(matcher(images, targets, None))
    some = Cosine()(matcher.select(rows)(images[rows], targets[rows], None))
    torch.testing.assert_close(some, all_of_them[rows])
    assert matcher.select(rows).backend == backend


@EVERY_WAY
def test_parameters_that_were_not_reported_are_not_compared(
    clients: Clients, backend: Backend
) -> None:
    model = Headed().double()
    problem = MatchingProblem.from_observation(clients(model, BATCHES)[0].observation)
    client = clients(model, BATCHES[:1])[0]
    gradient = client.observation.update.gradient()
    partial = {name: gradient[name] for name in ("inner.weight", "head.bias")}
    matcher, _ = choose_matcher(problem, Targets.stack([partial], problem.like), backend=backend)
    labels = torch.eye(10, dtype=torch.double)[client.labels][None]
    match = matcher(client.inputs[None].requires_grad_(), labels, None)
    assert sorted(match.names) == ["head.bias", "inner.weight"]
    assert Cosine()(match).item() == pytest.approx(0, abs=1e-12)


@EVERY_WAY
def test_batch_statistics_are_those_of_each_victim(clients: Clients, backend: Backend) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(108, 10),
    )
    model[1].running_mean.uniform_()
    model[1].running_var.uniform_()
    model = model.double()
    seen = [client.observation for client in clients(model, BATCHES)]
    problem = MatchingProblem.from_observation(seen[0])
    targets = Targets.stack([o.update.gradient() for o in seen], problem.like)
    matcher, _ = choose_matcher(problem, targets, backend=backend, statistics=True)
    images = torch.randn(3, 2, *SHAPE, dtype=torch.double, requires_grad=True)
    match = matcher(images, torch.rand(3, 2, 10, dtype=torch.double).softmax(-1), None)
    assert len(match.statistics) == 1
    found = match.statistics[0]
    for victim in range(3):
        made = model[0](images[victim])
        torch.testing.assert_close(found.mean[victim], made.mean((0, 2, 3)))
        torch.testing.assert_close(found.var[victim], made.var((0, 2, 3), correction=0))
    assert torch.equal(found.running_mean, model[1].running_mean)
    assert torch.equal(found.running_var, model[1].running_var)


def at_the_truth(
    seen: list[Any], problem: MatchingProblem, backend: Backend = "auto"
) -> tuple[Any, Any]:
    """The match of the clients' own images and masks."""
    targets = Targets.stack([c.observation.update.gradient() for c in seen], problem.like)
    matcher, _ = choose_matcher(problem, targets, backend=backend)
    images = torch.stack([c.inputs for c in seen]).requires_grad_()
    labels = torch.eye(10)[torch.stack([c.labels for c in seen])].to(images)
    masks = tuple(torch.stack(m).to(images) for m in zip(*(c.masks for c in seen), strict=True))
    return matcher, matcher(images, labels, masks or None)


@pytest.mark.parametrize("backend", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize(("steps", "local"), [(3, 2), (2, 1), (5, 1)])
def test_local_steps_are_unrolled(
    clients: Clients, backend: Backend, p: float, steps: int, local: int
) -> None:
    """Steps on the whole batch, and on one image after the other; each draws its own masks."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 12), nn.GELU(), nn.Dropout(0.0), nn.Linear(12, 10))
    )
    seen = clients(model.double(), BATCHES, Dropout(p=p), steps=steps, lr=0.1, local=local)
    problem = MatchingProblem.from_observation(seen[0].observation)
    assert (problem.steps, problem.lr, problem.masked_samples) == (steps, 0.1, steps * local)
    matcher, match = at_the_truth(seen, problem, backend)
    assert matcher.backend == ("vmap" if backend == "auto" else backend)
    for victim, client in enumerate(seen):
        for name, gradient in client.observation.update.gradient().items():
            torch.testing.assert_close(match.gradient(name)[victim], gradient)
    assert Cosine()(match).abs().max() < 1e-12


@pytest.mark.parametrize("backend", ["vmap", "loop"])
@pytest.mark.parametrize(
    "text",
    [
        *("sgd(momentum=0.9)", "sgd(momentum=0.9, nesterov=true, weight_decay=0.1)"),
        *("adam", "adamw(weight_decay=0.1)"),
    ],
)
def test_unrolled_steps_are_the_clients_own(backend: Backend, text: str) -> None:
    """A real client's: five images in batches of two and three, a layer frozen, any optimiser."""
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(64, 12), nn.GELU(), nn.Linear(12, 12), nn.Linear(12, 10))
    model = nn.Sequential(*layers).double()
    model[3].requires_grad_(False)
    digits = load("digits")
    inputs, labels = digits.normalise(digits.images(range(5))).double(), digits.labels[:5]
    training = LocalTraining(lr=0.05, epochs=1, batch_size=2, optimiser=text)
    update = compute_local_update(model, inputs, labels, training=training, seed=3)
    order = torch.randperm(5, generator=generator(3, "batches"))
    knowledge = Knowledge(
        shape=SHAPE,
        classes=10,
        mean=digits.mean,
        std=digits.std,
        batch_size=5,
        optimiser=training.read_optimiser(),
        trained=frozenset(update.change),
    )
    problem = MatchingProblem.from_observation(Server(model).receive(update, knowledge))
    targets = Targets.stack([update.gradient()], problem.like)
    matcher, _ = choose_matcher(problem, targets, backend=backend)
    chosen = torch.eye(10, dtype=torch.double)[labels[order]]
    match = matcher(inputs[order][None], chosen[None], None)
    assert set(match.names) == {f"{n}.{kind}" for n in (1, 4) for kind in ("weight", "bias")}
    for name in match.names:
        torch.testing.assert_close(match.gradient(name), match.target(name), rtol=1e-6, atol=1e-9)


def test_unrolled_steps_are_no_reason_for_a_note(clients: Clients) -> None:
    seen = clients(Headed().double(), BATCHES, steps=3, lr=0.1)
    problem = MatchingProblem.from_observation(seen[0].observation)
    targets = Targets.stack([c.observation.update.gradient() for c in seen], problem.like)
    matcher, notes = choose_matcher(problem, targets)
    assert matcher.backend == "vmap"
    assert notes == []
    with pytest.raises(DoesNotFactor, match="3 local steps"):
        choose_matcher(problem, targets, backend="factored")


@EVERY_WAY
@pytest.mark.parametrize("name", ["mlp", "lenet", "vit-small"])
def test_the_loss_of_the_truth_is_zero(clients: Clients, backend: Backend, name: str) -> None:
    model = build(name, classes=10, channels=1, image_size=8)
    if name == "vit-small":
        model.blocks = model.blocks[:1]
    seen = clients(model.double(), BATCHES, Dropout(p=0.3))
    _, match = at_the_truth(seen, MatchingProblem.from_observation(seen[0].observation), backend)
    assert Cosine()(match).abs().max() < 1e-12
