"""What a client runs in each round: a step on its own digit, under a defense."""

from __future__ import annotations

import argparse

import nvflare.client as flare
from my_net import Net
from torch.optim import SGD

import keyhole


def main() -> None:
    """Trains for as many rounds as the server asks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--defense", default="none")
    options = parser.parse_args()
    data = keyhole.data.load("digits")
    flare.init()
    mine = [int(flare.get_site_name().rpartition("-")[2]) - 1]
    while flare.is_running():
        received = flare.receive()
        model = Net()
        model.load_state_dict(received.params)
        client = keyhole.protect(model, options.defense, optimiser=lambda w: SGD(w, lr=options.lr))
        images = client.images(data.images(mine))
        client.backward(data.normalise(images), data.labels[mine])
        client.optimiser.step()
        flare.send(flare.FLModel(params=client.weights(batch_size=1)))


if __name__ == "__main__":
    main()
