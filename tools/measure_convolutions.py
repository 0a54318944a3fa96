"""How exactly a deep convolution's gradient tells its inputs, image by image.

    python tools/measure_convolutions.py --data-dir DATA --out results/clients/convolutions_cpu.json

ResNet-18 with random weights, one step of SGD at a rate of .1, weights and buffers shared: for each
batch size and mode of batch norm the relative errors of every image's inputs, at the layer that is
read and at the one before it. Seconds of processor time per client.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from keyhole.atomic import write_json
from keyhole.attacks.analytic import (
    ConvolutionInputs,
    capture_input,
    read_convolution,
    read_earlier,
)
from keyhole.attacks.matching import hold_statistics
from keyhole.auditing import read_versions
from keyhole.data import ImageSet, load
from keyhole.defenses import NoDefense
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Server


def main() -> None:
    """Measures all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = load("dia-cifar10", data_dir=options.data_dir)
    rows = [
        measure(data, batch, mode, options.clients)
        for batch in options.batches
        for mode in ("eval", "train")
    ]
    found = {"model": "resnet18", "weights": "random", "seed": 0, "lr": 0.1, "data": data.name}
    found |= {"rows": rows, "versions": read_versions()}
    print(found)
    if options.out is not None:
        write_json(options.out, found)


def measure(data: ImageSet, batch: int, mode: str, clients: int) -> dict[str, object]:
    """The relative errors of the images of some clients."""
    errors: dict[str, list[float]] = {"layer": [], "earlier": []}
    names: dict[str, set[str]] = {"layer": set(), "earlier": set()}
    begin = time.process_time()
    for client in range(clients):
        images = data.images(range(client * batch, (client + 1) * batch))
        labels = data.labels[client * batch : (client + 1) * batch]
        model = build("resnet18", classes=len(data.classes), image_size=data.size, seed=0)
        update, _ = train_client(
            model,
            images,
            labels,
            data=data,
            defense=NoDefense(),
            generator=generator(0, "client", client),
            training=LocalTraining(lr=0.1, mode=mode),  # type: ignore[arg-type]
        )
        knowledge = Knowledge(
            data.shape,
            len(data.classes),
            data.mean,
            data.std,
            batch_size=batch,
            client_mode=mode,  # type: ignore[arg-type]
        )
        seen = Server(model).receive(update, knowledge)
        still = hold_statistics(seen) if mode == "train" else copy.deepcopy(model)
        assert still is not None
        found = read_convolution(seen, still.eval())
        if found is None:
            continue
        for module in still.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        earlier = read_earlier(found, seen, still, mixed=mode == "train")
        for kind, each in (("layer", found), ("earlier", earlier)):
            if each is not None:
                names[kind].add(each.layer)
                errors[kind] += list_errors(each, still, data.normalise(images))
    row: dict[str, object] = {"batch": batch, "mode": mode, "images": batch * clients}
    for kind in names:
        row[kind] = {
            "names": sorted(names[kind]),
            "images": len(errors[kind]),
            "worst": max(errors[kind], default=None),
        }
    return {**row, "seconds": round((time.process_time() - begin) / clients, 1)}


def list_errors(found: ConvolutionInputs, still: nn.Module, images: Tensor) -> list[float]:
    """The relative error of each image's inputs, in whatever order they come."""
    with torch.no_grad():
        inputs, _ = capture_input(still, found.layer, images)
    truth = inputs.flatten(1).double()
    costs = torch.cdist(found.inputs.flatten(1), truth) / truth.norm(dim=1)
    errors: list[float] = costs[linear_sum_assignment(costs.numpy())].tolist()
    return errors


if __name__ == "__main__":
    main()
