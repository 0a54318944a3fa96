"""A curious strategy returns and raises what the plain one does, whatever clients send."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from keyhole import atomic
from keyhole.errors import RunFolderError
from keyhole.federation import Capture
from keyhole.federation.flower import curious

CLIENTS = 3
Change = Callable[[RecordDict], Any]
"""Spoils what one client is about to send."""


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    model.register_buffer("seen", torch.tensor(0))
    model.register_buffer("mask", torch.tensor([True, False]))
    return model


def told(record: RecordDict, value: Any, name: str = "num-examples") -> None:
    record["metrics"].__dict__["_data"][name] = value  # past Flower's own check of types


def sent(record: RecordDict, name: str, tensor: Tensor) -> None:
    record["arrays"][name] = Array(tensor.numpy())


def garbled(record: RecordDict, **changes: Any) -> None:
    found = record["arrays"]["weight"]
    values = {n: getattr(found, n) for n in ("dtype", "shape", "stype", "data")}
    record["arrays"]["weight"] = Array(**(values | changes))


def billions() -> bytes:
    """The header of an array that would not fit into memory, and nothing behind it."""
    return (
        np.lib.format.magic(1, 0)
        + b"v\x00"
        + (
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
            + b"\n"
        )
    )


HOSTILE: dict[str, Change] = {
    "nothing odd": lambda r: None,
    "nan examples": lambda r: told(r, float("nan")),
    "infinite examples": lambda r: told(r, float("inf")),
    "negative examples": lambda r: told(r, -5),
    "no examples at all": lambda r: told(r, 0),
    "bool examples": lambda r: told(r, True),
    "words for examples": lambda r: told(r, "many"),
    "a list of examples": lambda r: told(r, [1, 2]),
    "absurd examples": lambda r: told(r, 10**5000),
    "no examples": lambda r: r["metrics"].pop("num-examples"),
    "another metric": lambda r: told(r, 1.0, "loss"),
    "markup in a metric": lambda r: told(r, "[/x]\x1b[31m\ud800", "partition-id"),
    "bool weights": lambda r: sent(r, "weight", torch.ones(2, 3, dtype=torch.bool)),
    "integer weights": lambda r: sent(r, "weight", torch.ones(2, 3, dtype=torch.int8)),
    "half weights": lambda r: sent(r, "weight", torch.ones(2, 3, dtype=torch.float16)),
    "double weights": lambda r: sent(r, "weight", torch.ones(2, 3, dtype=torch.float64)),
    "complex weights": lambda r: sent(r, "weight", torch.ones(2, 3, dtype=torch.complex64)),
    "nan weights": lambda r: sent(r, "weight", torch.full((2, 3), torch.nan)),
    "another shape": lambda r: sent(r, "weight", torch.ones(3, 2)),
    "a shape that broadcasts": lambda r: sent(r, "bias", torch.ones(1000, 1)),
    "an empty tensor": lambda r: sent(r, "weight", torch.ones(0)),
    "a tensor more": lambda r: sent(r, "stranger", torch.ones(4)),
    "a huge tensor": lambda r: sent(r, "stranger", torch.ones(2**19)),
    "a tensor less": lambda r: r["arrays"].pop("bias"),
    "no tensors": lambda r: r["arrays"].clear(),
    "words for a tensor": lambda r: garbled(r, data=np_bytes(np.array(["a"]))),
    "bytes for a tensor": lambda r: garbled(r, data=b"\x80\x04nonsense"),
    "another kind of tensor": lambda r: garbled(r, stype="pickle"),
    "a tensor that lies": lambda r: garbled(r, data=billions()),
    "no arrays": lambda r: r.pop("arrays"),
    "no metrics": lambda r: r.pop("metrics"),
    "nothing": lambda r: r.clear(),
    "arrays twice": lambda r: r.update({"more": ArrayRecord({"w": torch.ones(1)})}),
    "metrics twice": lambda r: r.update({"more": MetricRecord({"loss": 1.0})}),
    "a config": lambda r: r.update({"config": ConfigRecord({"bytes": b"x", "text": "y"})}),
}


def np_bytes(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def app_where_one_is(hostile: Change) -> ClientApp:
    """Clients that add one to every weight; the second spoils its answer."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        start = message.content["arrays"].to_torch_state_dict()
        end = {n: t if t.dtype == torch.bool else t + 1 for n, t in start.items()}
        client = context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": 2 + client})
        record = RecordDict({"arrays": ArrayRecord(end), "metrics": metrics})
        if client == 1:
            hostile(record)
        return Message(record, reply_to=message)

    return app


def outcome(strategy: FedAvg, grid: Any, rounds: int = 1) -> Any:
    """What a run comes to: its weights and metrics, or what it raises."""
    random.seed(0)
    np.seterr(all="ignore")
    try:
        found = strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds)
    except Exception as error:  # noqa: BLE001  whatever it is, both must raise it
        return type(error), str(error)
    arrays = {name: array.numpy() for name, array in found.arrays.items()}
    return {n: (a.dtype, a.tobytes()) for n, a in arrays.items()}, repr(
        found.train_metrics_clientapp
    )


def everyone(**more: Any) -> dict[str, Any]:
    return {
        "min_available_nodes": CLIENTS,
        "min_train_nodes": CLIENTS,
        "fraction_evaluate": 0.0,
    } | more


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_curious_strategy_does_what_the_plain_one_does(
    name: str, grid_of: Callable[..., Any], tmp_path: Path
) -> None:
    app = app_where_one_is(HOSTILE[name])
    plain = outcome(FedAvg(**everyone()), grid_of(app, CLIENTS))
    seeing = curious(FedAvg)(**everyone(capture=tmp_path / "seen"))
    assert outcome(seeing, grid_of(app, CLIENTS)) == plain
    (seen,) = Capture.open(tmp_path / "seen").rounds
    there = {client["node"]: client for client in seen.clients}
    assert there.keys() >= {"100", "102"}
    assert there.keys() | seen.left_out.keys() == {"100", "101", "102"}
    for client in there.values():
        if client["node"] != "101":
            assert torch.allclose(seen.read_change(client)["weight"], torch.ones(2, 3))


LEFT_OUT = {
    "another shape": "its 'weight' has shape (3, 2), the model's (2, 3)",
    "a shape that broadcasts": "its 'bias' has shape (1000, 1)",
    "a huge tensor": "it sent 2,097,",
    "no arrays": "carries one ArrayRecord",
    "arrays twice": "this one has 2",
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_the_manifest_says_why_a_reply_is_left_out(
    name: str, grid_of: Callable[..., Any], tmp_path: Path
) -> None:
    outcome(
        curious(FedAvg)(**everyone(capture=tmp_path)), grid_of(app_where_one_is(HOSTILE[name]), 3)
    )
    (seen,) = Capture.open(tmp_path).rounds
    assert LEFT_OUT[name] in seen.left_out["101"]


def test_examples_that_are_no_number_are_kept_as_words(
    grid_of: Callable[..., Any], tmp_path: Path
) -> None:
    app = app_where_one_is(HOSTILE["nan examples"])
    outcome(curious(FedAvg)(**everyone(capture=tmp_path)), grid_of(app, CLIENTS))
    (seen,) = Capture.open(tmp_path).rounds
    client = next(c for c in seen.clients if c["node"] == "101")
    assert (client["examples"], client["metrics"]["num-examples"]) == (None, "nan")


@pytest.mark.parametrize("kind", ["error of the disk", "defect", "folder gone", "folder a file"])
def test_whatever_becomes_of_the_disk_the_training_goes_on(
    kind: str, grid_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_where_one_is(HOSTILE["nothing odd"])
    plain = outcome(FedAvg(**everyone()), grid_of(app, CLIENTS), rounds=2)
    seeing = curious(FedAvg)(**everyone(capture=tmp_path / "seen"))
    if kind.startswith("folder"):
        shutil.rmtree(tmp_path / "seen")
    if kind == "folder a file":
        (tmp_path / "seen").write_text("in the way")
    if kind in ("error of the disk", "defect"):

        def fail(*_: object) -> None:
            raise OSError(30, "Read-only file system") if kind != "defect" else RuntimeError("?")

        monkeypatch.setattr(atomic, "save_file", fail)
    assert outcome(seeing, grid_of(app, CLIENTS), rounds=2) == plain


def test_a_second_run_into_one_folder_is_refused_before_it_begins(
    grid_of: Callable[..., Any], tmp_path: Path
) -> None:
    app = app_where_one_is(HOSTILE["nothing odd"])
    options = everyone(capture=tmp_path)
    curious(FedAvg)(**options)
    outcome(curious(FedAvg)(**options), grid_of(app, CLIENTS), rounds=2)
    with pytest.raises(RunFolderError, match=r"another folder, or replace it with fresh=True"):
        curious(FedAvg)(**options)
    assert len(Capture.open(tmp_path).rounds) == 2
    (tmp_path / "round-table").mkdir()
    outcome(curious(FedAvg)(fresh=True, **options), grid_of(app, CLIENTS), rounds=1)
    assert [seen.number for seen in Capture.open(tmp_path).rounds] == [1]
    assert (tmp_path / "round-table").is_dir()
