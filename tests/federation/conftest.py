"""What tests of federations share: Flower without its processes, captured rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn

from flower_processes import flower
from recorded_rounds import record

try:
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # the tests that need it are skipped
    Grid = object

__all__ = ["flower"]
CRASHED = 2
"""Flower's code of a client app that raised."""


class InProcess(Grid):
    """Nodes of which each calls the client app here, one after another, as a SuperNode would."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        self.app = app
        self.contexts = {
            100 + partition: Context(1, 100 + partition, {"partition-id": partition}, state, {})
            for partition, state in enumerate(RecordDict() for _ in range(clients))
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self.answer(copy.deepcopy(message)) for message in messages]

    def answer(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # noqa: BLE001  as Flower itself: no client may end the run
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(code=CRASHED, reason=reason), reply_to=message)

    def nowhere(self, *values: Any, **named: Any) -> Any:
        raise NotImplementedError("messages go nowhere but through send_and_receive")

    set_run = create_message = push_messages = pull_messages = nowhere
    run = SimpleNamespace(run_id=1)


@pytest.fixture
def grid_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[ClientApp, int], InProcess]:
    """A grid for so many clients that all run one app; partition ids count from 0."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return InProcess


class Tied(nn.Module):
    """Two layers of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x.flatten(1)).relu()))


@pytest.fixture
def tied() -> nn.Module:
    return Tied()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two captured rounds of clients 7 and 9."""
    writer = record(tmp_path / "seen", about={"model": "mlp", "image-size": None})
    writer.write_truth("digits", {"7": [4], "9": [5, 6]}, image_size=8)
    return tmp_path / "seen"
