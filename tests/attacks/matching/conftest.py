"""Several clients of one model, each with the secrets that a test compares with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks import Reconstruction
from keyhole.attacks.matching import runner
from keyhole.data import ImageSet, denormalise, load
from keyhole.defenses import Defense, NoDefense
from keyhole.metrics import psnr
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.seeds import derive, seeded_globally
from keyhole.threat import Knowledge, Observation, Server
from keyhole.update import Update
from matching_runs import CHECK_INTERVAL, run


@dataclass(frozen=True)
class Client:
    """What the server saw of a client, which knows labels and masks, beside the truth."""

    observation: Observation
    inputs: Tensor
    """As the model wants them, ``[B, C, H, W]``."""
    labels: Tensor
    masks: tuple[Tensor, ...]
    data: ImageSet

    def decibels(self, images: Tensor | None) -> float:
        """PSNR of the one image that was reconstructed."""
        assert images is not None
        found, true = (
            denormalise(x.double(), self.data.mean, self.data.std).clamp(0, 1)
            for x in (images, self.inputs)
        )
        return float(psnr(found, true, data_range=1.0))


Clients = Callable[..., list[Client]]


@pytest.fixture(scope="session")
def digits() -> ImageSet:
    return load("digits")


@pytest.fixture(scope="session")
def clients(digits: ImageSet) -> Clients:
    """Each batch of indices is one client's; without ``lr`` it shares the gradient of one step.

    With several steps, step k trains on the k-th ``local`` images, in order and then again.
    """

    def run(
        model: nn.Module,
        batches: Sequence[Sequence[int]],
        defense: Defense | None = None,
        *,
        mode: str = "train",
        steps: int = 1,
        lr: float | None = None,
        local: int | None = None,
    ) -> list[Client]:
        defense, like, server = defense or NoDefense(), next(model.parameters()), Server(model)
        found = []
        for number, indices in enumerate(batches):
            inputs = digits.normalise(digits.images(indices)).to(like)
            labels = digits.labels[list(indices)]
            net = copy.deepcopy(defense.on_model(model)).train(mode == "train").requires_grad_()
            record = MaskRecorder()
            with seeded_globally(derive(0, "client", number)):
                update = train_client(net, inputs, labels, record, steps, lr, local or len(inputs))
            masks = record.masks_by_site()
            knowledge = Knowledge(
                shape=digits.shape,
                classes=len(digits.classes),
                mean=digits.mean,
                std=digits.std,
                batch_size=len(inputs),
                labels=labels,
                masks=masks,
                client_mode="train" if mode == "train" else "eval",
                defense=defense,
            )
            observation = server.receive(update, knowledge, client=number)
            found.append(Client(observation, inputs, labels, masks, digits))
        return found

    return run


def train_client(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    record: MaskRecorder,
    steps: int,
    lr: float | None,
    local: int,
) -> Update:
    """What a client that trains ``net`` sends."""
    named = dict(net.named_parameters())
    before = {name: weight.detach().clone() for name, weight in named.items()}
    for step in range(steps):
        chosen = [(step * local + i) % len(inputs) for i in range(local)]
        record.begin()
        with record:
            loss = F.cross_entropy(net(inputs[chosen]), labels[chosen])
        gradient = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        if lr is None:
            found = dict(zip(named, gradient, strict=True))
            return Update.from_gradient(found, batch_size=len(inputs))
        with torch.no_grad():
            for weight, g in zip(named.values(), gradient, strict=True):
                weight.sub_(g, alpha=lr)
    assert lr is not None
    change = {name: weight.detach() - before[name] for name, weight in named.items()}
    return Update(change, steps=steps, lr=lr, batch_size=local, examples=len(inputs))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Whole batches are counted in runs; test_threads.py has them shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHECK_INTERVAL", CHECK_INTERVAL)


@pytest.fixture(scope="module")
def seen(clients: Clients, one_thread: None) -> list[Any]:
    """Five clients of a small model in double precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.GELU(), nn.Linear(24, 10)).double()
    return [c.observation for c in clients(model, [[3], [14], [25], [36], [47]])]


@pytest.fixture(scope="module")
def expected(seen: list[Any]) -> list[Reconstruction]:
    """What becomes of the five when nothing goes wrong; looks do not change it."""
    return run(seen)
