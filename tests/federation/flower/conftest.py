"""Rounds under Flower's own strategies, recorded by the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

try:
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from flower_federations import CLIENTS, Run
    from keyhole.federation.flower import curious
except ImportError:  # the tests that need it are skipped
    pass


@pytest.fixture
def run(grid_of: Callable[..., Any], tmp_path: Path) -> Run:
    """Trains by a strategy that is curious into ``tmp_path``; returns the global weights."""

    def rounds(
        app: ClientApp, start: nn.Module, last: int = 1, kind: type = FedAvg, **options: Any
    ) -> dict[str, Tensor]:
        everyone = {"min_available_nodes": CLIENTS, "min_train_nodes": CLIENTS}
        strategy = curious(kind)(
            capture=tmp_path, fresh=True, fraction_evaluate=0.0, **everyone, **options
        )
        arrays = ArrayRecord(start.state_dict())
        grid = grid_of(app, CLIENTS)
        result = strategy.start(grid, arrays, num_rounds=last, train_config=ConfigRecord())
        return dict(result.arrays.to_torch_state_dict())

    return rounds
