"""The values of what a plan lists, as findings carry them and as reports say them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keyhole.auditing.finding import Finding

SWEPT = "swept"
"""Where a finding's recipe holds the values of what its plan lists."""
SEED = "seed"
NOT_SAID = ("model", "data")
"""What reports name anyway; other listed values are added to the name of the data."""


def read_listed(finding: Finding) -> Mapping[str, Any]:
    """The values of what the finding's plan lists; empty if it lists nothing."""
    found = finding.recipe.get(SWEPT)
    return found if isinstance(found, dict) else {}


def describe_listed(values: Mapping[str, Any], *, without: Iterable[str] = ()) -> str:
    """What stands behind the name of the data.

    >>> describe_listed({"model": "mlp", "data": "digits", "batch_size": 4, "seed": 1})
    ' (batch_size=4, seed=1)'
    >>> describe_listed({"model": "mlp", "data": "digits", "seed": 1}, without=["seed"])
    ''
    """
    left_out = {*NOT_SAID, *without}
    inner = ", ".join(f"{name}={value}" for name, value in values.items() if name not in left_out)
    return f" ({inner})" if inner else ""


def name_plain_data(finding: Finding) -> str:
    """What reports call the images, without listed values."""
    return finding.data.removesuffix(describe_listed(read_listed(finding)))


def name_data_of_all_seeds(finding: Finding) -> str:
    """What reports call the images, with all listed values but the seed."""
    listed = describe_listed(read_listed(finding), without=[SEED])
    return f"{name_plain_data(finding)}{listed}"
