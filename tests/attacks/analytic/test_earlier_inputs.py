from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from keyhole.attacks.analytic.convolution_features import ConvolutionInputs, read_convolution
from keyhole.attacks.analytic.earlier_inputs import find_feeding, list_equations, read_earlier
from keyhole.attacks.matching.guided_inversion import hold_statistics
from keyhole.data import ImageSet, load
from keyhole.federation import LocalTraining
from keyhole.models import build

Observe = Callable[..., Any]


@pytest.fixture(scope="module")
def photos() -> ImageSet:
    return load("photos", image_size=12)


def network(*, stride: int = 2) -> nn.Sequential:
    """Two convolutions behind a stem; the second can be read, the first follows from it."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, stride=6 // stride),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=stride, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 12),
    )


def read(observe: Observe, data: ImageSet, *, mode: str, images: list[int]) -> Any:
    """What is read of both convolutions, and the true inputs of the first one."""
    training = (
        LocalTraining(lr=0.1, mode="train") if mode == "train" else LocalTraining(mode="eval")
    )
    model = network().train(mode == "train")
    victim = observe(model, data, images, training=training)
    seen = replace(
        victim.observation, knowledge=replace(victim.observation.knowledge, client_mode=mode)
    )
    still = hold_statistics(seen) if mode == "train" else model
    assert still is not None
    still = still.eval()
    for module in still.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    found = read_convolution(seen, still)
    assert found is not None
    assert found.layer == "6"
    truth = still[:3](data.normalise(victim.images)).detach().double()
    return seen, still, found, truth


def worst_error(found: ConvolutionInputs, truth: Tensor) -> float:
    """The largest relative error of an image's inputs, in whatever order they come."""
    costs = torch.cdist(found.inputs.flatten(1), truth.flatten(1)) / truth.flatten(1).norm(dim=1)
    return float(costs[linear_sum_assignment(costs.numpy())].max())


@pytest.mark.parametrize(("mode", "error"), [("eval", 1e-3), ("train", 0.02)])
def test_the_convolution_before_is_read_as_well(
    observe: Observe, photos: ImageSet, mode: str, error: float
) -> None:
    seen, still, found, truth = read(observe, photos, mode=mode, images=[0, 10, 20])
    earlier = read_earlier(found, seen, still, mixed=mode == "train")
    assert earlier is not None
    assert earlier.layer == "3"
    assert worst_error(earlier, truth) < error
    assert earlier.mismatch < error
    if mode == "train":  # what batch norm makes of a gradient must be undone
        plain = read_earlier(found, seen, still, mixed=False)
        assert plain is None or worst_error(plain, truth) > 5 * worst_error(earlier, truth)


def test_a_gradient_that_does_not_fit_is_refused(observe: Observe, photos: ImageSet) -> None:
    seen, still, found, _ = read(observe, photos, mode="eval", images=[0, 10, 20])
    wrong = replace(found, gradients=found.gradients.flip(1))
    assert read_earlier(wrong, seen, still, mixed=False) is None
    unknown = replace(found, scaled=False)
    assert read_earlier(unknown, seen, still, mixed=False) is None


def test_equations_are_those_of_the_kernels_gradient() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 5, 3, stride=2, padding=1, bias=False).double()
    inputs = torch.randn(2, 2, 7, 6).double()
    leaving = torch.randn_like(layer(inputs))
    layer(inputs).backward(leaving)
    rows = list_equations(leaving, layer, (7, 6))
    made = rows @ inputs.transpose(0, 1).flatten(1).T
    assert layer.weight.grad is not None
    torch.testing.assert_close(made, layer.weight.grad.permute(2, 3, 0, 1).flatten(0, 2))


def test_only_what_stands_right_before_is_found() -> None:
    found = find_feeding(build("resnet18", classes=10, image_size=32, seed=0), (3, 32, 32))
    assert found["layer3.0.conv2"].name == "layer3.0.conv1"
    assert found["layer3.0.conv2"].norm == "layer3.0.bn1"
    assert found["layer3.0.conv2"].grid == (16, 16)
    # A block's sum, which is made in place, stands between a block and the next.
    assert "layer3.0.conv1" not in found
    assert "layer3.1.conv1" not in found
