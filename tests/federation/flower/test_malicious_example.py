"""The example app with a lying server: in this process, in a simulation, in a deployment."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from captures import audited
from flower_processes import Flower, settings
from keyhole.errors import BadValue
from keyhole.federation import Capture

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "flower"


@pytest.fixture
def run_example(
    grid_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Runs the example's server and clients with some settings; returns the captured folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    client = importlib.import_module("keyhole_flower.client_app")
    server = importlib.import_module("keyhole_flower.server_app")
    importlib.import_module("keyhole_flower.task")._build_federation.cache_clear()
    usual = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]

    def run(**chosen: Any) -> Path:
        captured = tmp_path / "captured"
        own = {name.replace("_", "-"): value for name, value in chosen.items()}
        settings = {
            **usual,
            "model": "mlp",
            "num-server-rounds": 1,
            "capture": str(captured),
            **own,
        }
        grid = grid_of(client.app, settings["clients"])
        for context in grid.contexts.values():
            context.run_config = settings
        server.main(grid, Context(1, 1, {}, RecordDict(), settings))
        return captured

    return run


def test_the_lying_server_of_the_example_asks_first(run_example: Callable[..., Path]) -> None:
    for secure in (False, True):
        with pytest.raises(BadValue, match="i_own_these_clients=True"):
            run_example(attack="trap-weights", clients=3, secure_aggregation=secure)


def test_the_example_is_attacked_by_a_layer_that_its_clients_build(
    run_example: Callable[..., Path],
) -> None:
    captured = run_example(attack="imprint(bins=64)", images=4, i_own_these_clients=True)
    (finding,) = audited(captured, model="mlp", attacks=("imprint",)).findings
    assert finding.metrics["read"].mean >= 0.75


@pytest.mark.parametrize("target", [0, 2])
def test_secagg_does_not_hide_a_client_that_is_singled_out(
    run_example: Callable[..., Path], target: int
) -> None:
    captured = run_example(
        attack=f"single-out(target={target})",
        clients=3,
        lr=0.1,
        secure_aggregation=True,
        i_own_these_clients=True,
    )
    (client,) = Capture.open(captured).rounds[0].clients
    assert (client["clients"], client["examples"], client["members"]) == (3, 3, "0,1,2")
    (finding,) = audited(captured, model="mlp", attacks=("single-out",)).findings
    assert finding.metrics["read"].per_image == tuple(float(n == target) for n in range(3))


def test_secagg_does_not_hide_which_client_an_image_is_from(
    run_example: Callable[..., Path],
) -> None:
    captured = run_example(
        attack="loki(bins=32)",
        clients=3,
        images=2,
        lr=1.0,
        num_server_rounds=2,
        secure_aggregation=True,
        i_own_these_clients=True,
    )
    (finding,) = audited(captured, model="mlp", attacks=("loki",)).findings
    assert finding.metrics["read"].per_image == (1.0,) * 6
    assert finding.metrics["client"].per_image == (1.0,) * 6
    second = Capture.open(captured).rounds[1]
    assert float(second.read_weights()["imprint.measure.bias"].min()) >= -8  # SecAgg+ clips there


def test_what_secagg_hands_an_honest_server_is_known_to_be_a_mean(
    run_example: Callable[..., Path],
) -> None:
    captured = run_example(clients=3, secure_aggregation=True)
    (client,) = Capture.open(captured).rounds[0].clients
    assert client["clients"] == 3
    (finding,) = audited(captured, model="mlp", attacks=("linear",)).findings
    assert finding.recipe["aggregate"] == 3
    assert finding.recipe["batch_size"] == 3
    assert finding.knowledge["server"] == "honest but curious"


@pytest.mark.flower
def test_a_lying_server_in_a_simulation(flower: Flower, tmp_path: Path) -> None:
    captured = tmp_path / "captured"
    chosen = settings(
        model="mlp",
        clients=2,
        images=2,
        num_server_rounds=2,
        attack="trap-weights",
        i_own_these_clients=True,
        capture=str(captured),
    )
    crowd = "num-supernodes=2 client-resources-num-cpus=1"
    flower.run(EXAMPLE, "local", "--run-config", chosen, "--federation-config", crowd)
    assert len(Capture.open(captured).rounds) == 2
    (finding,) = audited(captured, model="mlp", attacks=("trap-weights",)).findings
    assert finding.knowledge["server"] == "malicious"
    assert sum(finding.metrics["read"].per_image) >= 3


@pytest.mark.flower
def test_a_lying_server_in_a_deployment_with_secagg(flower: Flower, tmp_path: Path) -> None:
    captured = tmp_path / "captured"
    flower.deploy(clients=3)
    chosen = settings(
        model="mlp",
        clients=3,
        images=2,
        lr=1.0,
        num_server_rounds=1,
        attack="loki(bins=32)",
        secure_aggregation=True,
        i_own_these_clients=True,
        capture=str(captured),
    )
    flower.run(EXAMPLE, "here", "--run-config", chosen)
    (client,) = Capture.open(captured).rounds[0].clients
    assert (client["clients"], sorted(client["members"])) == (3, sorted("0,1,2"))
    (finding,) = audited(captured, model="mlp", attacks=("loki",)).findings
    assert finding.metrics["read"].per_image == (1.0,) * 6
    assert finding.metrics["client"].per_image == (1.0,) * 6
