"""The filter for NVIDIA FLARE: against a stand-in of its interface, and in its simulator."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import keyhole
from scripts import ROOT, load_script

EXAMPLE = ROOT / "examples" / "nvflare"
LEARNING_RATE = 0.05


class Context:
    """What the filter asks of FLARE's context of a task."""

    def __init__(self) -> None:
        self.props: dict[str, Any] = {}

    def set_prop(self, key: str, value: Any, private: bool = True, sticky: bool = True) -> None:
        assert private
        assert not sticky
        self.props[key] = value

    def get_prop(self, key: str, default: Any = None) -> Any:
        return self.props.get(key, default)

    def get_identity_name(self) -> str:
        return "site-1"


class DXOFilter:
    """FLARE's base class, as far as the filter needs it."""

    def __init__(self, supported_data_kinds: list[str], data_kinds_to_filter: list[str]) -> None:
        assert set(data_kinds_to_filter) <= set(supported_data_kinds)


STANDINS = {
    "nvflare": {},
    "nvflare.apis": {},
    "nvflare.apis.dxo": {
        "DXO": object,
        "DataKind": SimpleNamespace(WEIGHTS="WEIGHTS", WEIGHT_DIFF="WEIGHT_DIFF"),
    },
    "nvflare.apis.dxo_filter": {"DXOFilter": DXOFilter},
    "nvflare.apis.fl_constant": {
        "FilterKey": SimpleNamespace(IN="in", OUT="out"),
        "FLContextKey": SimpleNamespace(FILTER_DIRECTION="__filter_dir__"),
    },
    "nvflare.apis.fl_context": {"FLContext": Context},
    "nvflare.apis.shareable": {"Shareable": dict},
}


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, parts in STANDINS.items():
        module = ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(EXAMPLE)
    yield load_script("examples/nvflare/keyhole_filter.py")
    sys.modules.pop("my_net", None)


def train(defense: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights that a server sent, and a client's after a step on its digit."""
    from my_net import Net  # type: ignore[import-not-found]

    torch.manual_seed(0)
    data, model = keyhole.data.load("digits"), Net()
    client = keyhole.protect(
        model, defense, optimiser=lambda w: torch.optim.SGD(w, lr=LEARNING_RATE), seed=0
    )
    client.backward(data.normalise(client.images(data.images([0]))), data.labels[[0]])
    client.optimiser.step()
    sent = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return sent, {n: t.numpy() for n, t in client.weights(batch_size=1).items()}


def make_filter(filters: ModuleType, **options: Any) -> Any:
    own = {"model": "my_net:Net", "data": "digits", "images": {"site-1": [0]}, "seconds": 0}
    return filters.GuardFilter(lr=LEARNING_RATE, **{**own, **options})


def go_through(guard: Any, received: dict[str, Any], sent: dict[str, Any], kind: str) -> None:
    """A task of a client: weights come in, and weights or their change go out."""
    context = Context()
    for direction, data, of in (("in", received, "WEIGHTS"), ("out", sent, kind)):
        context.props["__filter_dir__"] = direction
        assert guard.process_dxo(SimpleNamespace(data_kind=of, data=data), {}, context) is None


@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_an_update_that_leaks_stays(filters: ModuleType, kind: str) -> None:
    received, after = train("none")
    sent = after if kind == "WEIGHTS" else {n: after[n] - received[n] for n in after}
    with pytest.raises(RuntimeError, match=r"the update stays here: .* reads 1 of 1 images"):
        go_through(make_filter(filters), received, sent, kind)


def test_an_update_that_no_attack_reads_leaves(filters: ModuleType) -> None:
    defense = "gaussian(sigma=0.1)"
    go_through(make_filter(filters, defense=defense), *train(defense), "WEIGHTS")


def test_a_filter_that_saw_no_weights_come_in_lets_nothing_out(filters: ModuleType) -> None:
    context = Context()
    context.props["__filter_dir__"] = "out"
    sent = SimpleNamespace(data_kind="WEIGHTS", data=train("none")[1])
    with pytest.raises(RuntimeError, match="input chain"):
        make_filter(filters).process_dxo(sent, {}, context)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nvflare") is None, reason="pip install nvflare")
@pytest.mark.parametrize(("defense", "withheld"), [("none", True), ("gaussian(sigma=0.1)", False)])
def test_the_job_withholds_in_flare_s_simulator(
    tmp_path: Path, defense: str, withheld: bool
) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(EXAMPLE)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "job.py", str(tmp_path / "work"), "--defense", defense],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert ("keyhole: the update stays here" in told) == withheld, told
    assert bool(list((tmp_path / "work").rglob("FL_global_model.pt"))) == (not withheld)
