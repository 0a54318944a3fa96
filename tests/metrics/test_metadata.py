from __future__ import annotations

import pytest
import torch

from keyhole import metrics
from keyhole.data import load
from keyhole.metrics import METRICS, Metric

EVERY = pytest.mark.parametrize("metric", METRICS.values(), ids=lambda m: m.name)


@EVERY
def test_a_metric_says_what_it_is(metric: Metric) -> None:
    assert METRICS[metric.name] is metric
    assert metric.label
    assert metric.summary
    assert metric.arrow == ("↑" if metric.leaks_high else "↓")
    assert metric.high is None or metric.low < metric.high
    assert metric.cap is None or metric.high is None


@pytest.mark.parametrize("name", ["mse", "psnr", "ssim", "fft2d"])
def test_direction_and_bounds_are_those_of_the_function(name: str) -> None:
    metric, score = METRICS[name], getattr(metrics, name)
    truth = load("photos", image_size=32).images(range(4))
    scores = [
        score((truth + s * torch.randn(truth.shape)).clamp(0, 1), truth, data_range=1.0)
        for s in (0.01, 0.1, 0.5)
    ]
    means = [float(s.mean()) for s in scores]
    assert means == sorted(means, reverse=metric.leaks_high)
    everything = torch.cat([*scores, score(1 - truth, truth, data_range=1.0)])
    assert everything.min() >= metric.low
    assert metric.high is None or everything.max() <= metric.high + 1e-9
