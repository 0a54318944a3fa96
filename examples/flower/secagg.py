"""One round under secure aggregation (SecAgg+), and what a curious server then sees.

    python secagg.py --capture captured-secagg

The server and the clients are those of the app beside this file, with ``secure-aggregation = true``
(see keyhole_flower/secure_aggregation.py), in a simulation that is started from Python.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from keyhole_flower.client_app import defended, train
from keyhole_flower.secure_aggregation import mask_update, run_secure_rounds
from keyhole_flower.task import Settings

from keyhole.federation.flower import CallNext

CLIENTS = 4


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The app's settings; simulations started from Python do not read them."""
    text = (Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8")
    own = {"clients": CLIENTS, "num-server-rounds": 1, "capture": str(arguments.capture)}
    usual = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    return {**usual, **own, "secure-aggregation": True}


def with_settings(context: Context, settings: Settings) -> Context:
    node = (context.run_id, context.node_id, context.node_config, context.state)
    return Context(*node, dict(settings))


def client_of(settings: Settings) -> ClientApp:
    """The app's client; its update is defended first, masked last."""

    def settle(message: Message, context: Context, call_next: CallNext) -> Message:
        return call_next(message, with_settings(context, settings))

    app = ClientApp(mods=[settle, mask_update, defended])
    app.train()(train)
    return app


def server_of(settings: Settings) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_secure_rounds(grid, with_settings(context, settings))

    return app


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--capture", type=Path, default=Path("captured-secagg"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_of(parse(argv))
    run_simulation(
        server_of(settings),
        client_of(settings),
        CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
