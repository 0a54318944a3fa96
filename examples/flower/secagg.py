"""One round under secure aggregation (SecAgg+), and what a curious server then sees.

    python secagg.py --capture captured-secagg

Each client masks its weights with numbers that cancel in the sum: the server learns the weighted
mean of all updates and no single one. Flower has the protocol only in its older API; the clients
are those of the app beside this file, with a mod that translates between the two.
"""

from __future__ import annotations

import argparse
import logging
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from keyhole_flower.client_app import defended, train
from keyhole_flower.server_app import empty_folder
from keyhole_flower.task import Settings, federation_of, plan_of

from keyhole.federation import CaptureWriter, Reply
from keyhole.federation.flower import CallNext
from keyhole.federation.run import describe_run, round_config

CLIENTS = 4
log = logging.getLogger("flwr")


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The app's settings; simulations started from Python do not read them."""
    text = (Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8")
    own = {"clients": CLIENTS, "num-server-rounds": 1, "capture": str(arguments.capture)}
    return {**tomllib.loads(text)["tool"]["flwr"]["app"]["config"], **own}


def client_of(settings: Settings) -> ClientApp:
    """The app's client; its update is defended first, masked last."""

    def settled(message: Message, context: Context, call_next: CallNext) -> Message:
        node = (context.run_id, context.node_id, context.node_config, context.state)
        return call_next(message, Context(*node, dict(settings)))

    app = ClientApp(mods=[settled, secaggplus_mod, translated, defended])
    app.train()(train)
    return app


def translated(message: Message, context: Context, call_next: CallNext) -> Message:
    """The older API's lists of arrays to named arrays, and the answer back."""
    asked = compat.recorddict_to_fitins(message.content, keep_input=True)
    names = list(federation_of(context.run_config).model.state_dict())
    arrays = parameters_to_ndarrays(asked.parameters)
    weights = {name: torch.tensor(array) for name, array in zip(names, arrays, strict=True)}
    message.content = RecordDict(
        {"arrays": ArrayRecord(weights), "config": ConfigRecord(dict(asked.config))}
    )
    reply = call_next(message, context)
    said = dict(reply.content["metrics"])
    answer = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters(reply.content["arrays"].to_numpy_ndarrays()),
        int(said.pop("num-examples")),
        said,
    )
    reply.content = compat.fitres_to_recorddict(answer, keep_input=True)
    return reply


class Eyes(FedAvg):
    """Federated averaging that writes down all it is given: one and the same for every client."""

    def __init__(self, settings: Settings) -> None:
        plan = plan_of(settings)
        federation = federation_of(settings)
        self.start = {n: t.clone() for n, t in federation.model.state_dict().items()}
        self.told = round_config(plan)
        self.done = False
        super().__init__(
            fraction_evaluate=0.0,
            min_fit_clients=plan.clients,
            min_available_clients=plan.clients,
            initial_parameters=ndarrays_to_parameters([t.numpy() for t in self.start.values()]),
            on_fit_config_fn=lambda number: {**self.told, "server-round": number},
        )
        self.capture_writer = CaptureWriter(
            empty_folder(settings), about=describe_run(plan, federation.data)
        )
        everyone = [image for share in federation.shares for image in share]
        self.capture_writer.write_truth(
            plan.data, {"aggregate": everyone}, image_size=plan.image_size
        )

    def aggregate_fit(self, number: int, results: Any, failures: Any) -> Any:
        distinct = {tuple(given.parameters.tensors) for _, given in results}
        log.info("%d clients answered; the server sees %d update(s)", len(results), len(distinct))
        arrays = parameters_to_ndarrays(results[0][1].parameters)
        change = {
            name: torch.tensor(array).to(start) - start
            for (name, start), array in zip(self.start.items(), arrays, strict=True)
        }
        examples = sum(given.num_examples for _, given in results)
        reply = Reply("aggregate", change, examples, {"distinct-updates": len(distinct)})
        self.done = self.capture_writer.write_round(number, self.start, [reply], config=self.told)
        return super().aggregate_fit(number, results, failures)


def server_of(settings: Settings) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Eyes(settings)
        # Weights are rounded to steps of 16 / 2**22, times max_weight over all examples.
        masked = SecAggPlusWorkflow(
            num_shares=3, reconstruction_threshold=2, max_weight=float(settings["images"])
        )
        legacy = LegacyContext(context, config=ServerConfig(num_rounds=1), strategy=strategy)
        DefaultWorkflow(fit_workflow=masked)(grid, legacy)
        if not strategy.done:
            raise RuntimeError("the secure aggregation was halted: the reason stands above")
        log.info("What the server saw: %s", strategy.capture_writer.root)

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
