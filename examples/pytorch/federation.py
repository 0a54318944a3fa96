"""Federated averaging in plain PyTorch, with a defense and a guard: ``python federation.py``.

Three clients of one digit each train for a round. Nothing here is Keyhole's but the data, the line
that puts a defense around a client, and the check before an update leaves.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD

import keyhole
from keyhole.auditing.guard import Guard
from keyhole.data import ImageSet
from keyhole.defenses import DEFENSES

CLIENTS, LEARNING_RATE = 3, 0.05
Weights = dict[str, Tensor]


def make_model() -> nn.Module:
    """The model that the server sends."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train_client(model: nn.Module, data: ImageSet, mine: int, defense: str) -> keyhole.Update:
    """One step on one image; returns the update that would leave the client."""
    client = keyhole.protect(
        model, defense, optimiser=lambda w: SGD(w, lr=LEARNING_RATE), seed=mine
    )  # a seed makes this example repeatable; leave it out where updates really leave
    images, labels = client.images(data.images([mine])), data.labels[[mine]]
    client.backward(data.normalise(images), labels)
    client.optimiser.step()
    return client.update(batch_size=1)


def average(model: nn.Module, updates: Sequence[keyhole.Update]) -> nn.Module:
    """The server's part: the model, moved by the mean of the updates."""
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            parameter += torch.stack([update.change[name] for update in updates]).mean(0)
    return moved


def run_round(defense: str, withhold: bool) -> tuple[nn.Module, list[str]]:
    """One round; returns the new model, and what the guard said of each client's update."""
    data, model = keyhole.data.load("digits"), make_model()
    guard = Guard(model=model, data=data, defense=DEFENSES.parse(defense), seconds=0)
    sent, words = [], []
    for mine in range(CLIENTS):
        update = train_client(model, data, mine, defense)
        found = guard(update, data.images([mine]), data.labels[[mine]])
        words.append(found.words)
        if not (withhold and found.leaks is not False):
            sent.append(update)
    return (average(model, sent) if sent else model), words


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a round and prints what the guard says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--defense", default="none", help="any of `keyhole list defenses`")
    parser.add_argument("--withhold", action="store_true", help="send no update that leaks")
    options = parser.parse_args(arguments)
    for client, words in enumerate(run_round(options.defense, options.withhold)[1]):
        print(f"client {client}: {words}")


if __name__ == "__main__":
    main()
