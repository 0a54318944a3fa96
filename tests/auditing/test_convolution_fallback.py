"""Audits that name no attacks try `conv-spear` where it applies, and are silent elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import keyhole
from keyhole.attacks.analytic import decoding


def network(channels: int) -> nn.Module:
    """A network whose second convolution can be read if it is wide enough."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )


@pytest.mark.parametrize(("channels", "tried"), [(32, True), (8, False)])
def test_auto_tries_it_where_it_applies(
    channels: int, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "SAMPLES", 1000)
    result = keyhole.audit(
        model=network(channels), data="digits", victims=1, iterations=1, defenses=["none"]
    )
    attacks = {finding.attack for finding in result.findings}
    assert "ig" in attacks
    assert ("conv-spear" in attacks) == tried
    assert "conv-spear" not in {skip.attack for skip in result.skipped}
