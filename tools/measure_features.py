"""What the last layer tells of a batch: features of single images, and orders of local steps.

    python tools/measure_features.py --data-dir DATA --out results/clients/features_cpu.json

For each network the relative error of every image's features, and how many clients' orders of
labels are right. Closed forms: seconds on a CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from measure_local_steps import quickstart
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.atomic import write_json
from keyhole.attacks.analytic import capture_input, infer_order, read_head_inputs
from keyhole.auditing import read_versions
from keyhole.data import ImageSet, load
from keyhole.federation import cut_batches
from keyhole.models import build, find_logits_layer
from keyhole.optimisers import Sgd
from keyhole.threat import Knowledge, Server
from keyhole.update import Update

LR, LOCAL = (0.01, 0.05), 2


def main() -> None:
    """Measures both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--models", nargs="+", default=["resnet18", "quickstart", "lenet"])
    parser.add_argument("--orders", nargs="*", default=["quickstart", "lenet", "vit-small"])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = load("dia-cifar10", data_dir=options.data_dir)
    groups = [
        list(range(n * options.batch_size, (n + 1) * options.batch_size))
        for n in range(options.clients)
    ]
    features = [measure_features(name, data, groups) for name in options.models]
    orders = [measure_orders(name, data, groups, lr) for name in options.orders for lr in LR]
    found = {"data": data.name, "batch": options.batch_size, "weights": "random, seed 0"}
    found |= {"features": features, "orders": orders, "versions": read_versions()}
    print(found)
    if options.out is not None:
        write_json(options.out, found)


def make(name: str, data: ImageSet) -> nn.Module:
    """A network with random weights, in evaluation mode."""
    if name == "quickstart":
        return quickstart(len(data.classes)).eval()
    return build(name, classes=len(data.classes), image_size=data.size, seed=0).eval()


def know(data: ImageSet, labels: Tensor, **further: object) -> Knowledge:
    """What the server knows of a client."""
    return Knowledge(
        data.shape,
        len(data.classes),
        data.mean,
        data.std,
        batch_size=len(labels),
        labels=labels.sort().values,
        **further,  # type: ignore[arg-type]
    )


def measure_features(name: str, data: ImageSet, groups: list[list[int]]) -> dict[str, object]:
    """The relative errors of the last layer's inputs, by whether an image's class occurs twice."""
    model = make(name, data)
    layer = find_logits_layer(model, data.shape)
    assert layer is not None
    alone: list[float] = []
    shared: list[float] = []
    for group in groups:
        images, labels = data.normalise(data.images(group)), data.labels[group]
        weights = dict(model.named_parameters())
        gradient = torch.autograd.grad(
            F.cross_entropy(model(images), labels), list(weights.values())
        )
        update = Update.from_gradient(
            dict(zip(weights, gradient, strict=True)), batch_size=len(group)
        )
        seen = Server(model).receive(update, know(data, labels, client_mode="eval"))
        found = read_head_inputs(seen, labels.sort().values)
        with torch.no_grad():
            true = capture_input(model, layer, images)[0].double()
        if found is None:
            alone += [1.0] * len(group)
            continue
        costs = torch.cdist(found.inputs, true)
        rows, columns = linear_sum_assignment(costs.numpy())
        errors = (costs[rows, columns] / true[columns].norm(dim=1)).tolist()
        for error, column in zip(errors, columns.tolist(), strict=True):
            several = int((labels == labels[column]).sum()) > 1
            (shared if several else alone).append(error)
    return {
        "model": name,
        "clients": len(groups),
        "class_once": {"images": len(alone), "worst": max(alone, default=0.0)},
        "class_twice": {"images": len(shared), "worst": max(shared, default=0.0)},
    }


def measure_orders(
    name: str, data: ImageSet, groups: list[list[int]], lr: float
) -> dict[str, object]:
    """How many clients' labels are put into the right steps."""
    model, right = make(name, data), 0
    for number, group in enumerate(groups):
        images, labels = data.normalise(data.images(group)), data.labels[group]
        order = torch.randperm(len(group), generator=torch.Generator().manual_seed(number))
        cuts = cut_batches(len(group), LOCAL)
        update = train(model, images[order], labels[order], cuts, lr)
        seen = Server(model).receive(
            update, know(data, labels, optimiser=Sgd(momentum=0.9), orders=2520)
        )
        listed = labels.sort().values
        found = infer_order(seen, listed)
        steps = [labels[order][cut].sort().values.tolist() for cut in cuts]
        right += found is not None and steps == [
            listed[found][cut].sort().values.tolist() for cut in cuts
        ]
    return {"model": name, "lr": lr, "clients": len(groups), "right": right}


def train(model: nn.Module, images: Tensor, labels: Tensor, cuts: list[slice], lr: float) -> Update:
    """One epoch in the order given, by PyTorch's SGD with momentum .9."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for cut in cuts:
        optimiser.zero_grad()
        F.cross_entropy(model(images[cut]), labels[cut]).backward()
        optimiser.step()
    change = {name: value - start[name] for name, value in model.state_dict().items()}
    model.load_state_dict(start)
    return Update(change, steps=len(cuts), lr=lr, batch_size=LOCAL, examples=len(images))


if __name__ == "__main__":
    main()
