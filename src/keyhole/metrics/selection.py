"""Metrics that a user adds to those that every audit measures."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.errors import BadValue
from keyhole.metrics.builtin import METRICS
from keyhole.metrics.metric import ImageMetric, Metric
from keyhole.plugins import address_of
from keyhole.registry import Registry

NAMED: Registry[Metric] = Registry("metric", METRICS, base=Metric, group="keyhole.metrics")
"""Keyhole's own and those of other packages."""


def choose_metrics(chosen: Sequence[str | Metric]) -> tuple[ImageMetric, ...]:
    """Those of the chosen metrics that are not measured in any case, each once.

    Args:
        chosen: Names such as ``my_parts:LARGEST``, or objects.
    """
    found: dict[str, ImageMetric] = {}
    for each in chosen:
        metric = NAMED.resolve(each)
        if METRICS.get(metric.name) is metric:
            continue
        if not isinstance(metric, ImageMetric):
            where = each if isinstance(each, str) else metric.name
            raise BadValue(
                f"metric {where} cannot be measured: make it a {address_of(ImageMetric)}, with its "
                "function"
            )
        if metric.name in METRICS or found.get(metric.name, metric) != metric:
            raise BadValue(f"metric {metric.name}: there are two of that name: rename yours")
        found[metric.name] = metric
    return tuple(found.values())
