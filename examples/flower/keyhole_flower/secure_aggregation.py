"""Rounds under secure aggregation (SecAgg+), on both sides.

Each client masks its weights with numbers that cancel in the sum: the server learns the weighted
mean of all updates and no single one. Flower has the protocol only in its older API; ``translate``
stands between that and this app's clients.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid

from keyhole.auditing import malicious
from keyhole.federation import CaptureWriter, Reply
from keyhole.federation.flower import CallNext
from keyhole.federation.run import describe_run, round_config
from keyhole_flower.task import (
    Settings,
    empty_folder,
    federation_of,
    lying_options,
    plan_of,
    sent_model,
    write_truth,
)

log = logging.getLogger("flwr")


def mask_update(message: Message, context: Context, call_next: CallNext) -> Message:
    """A mod that masks updates where the run's settings ask for secure aggregation."""
    if not context.run_config["secure-aggregation"]:
        return call_next(message, context)
    return secaggplus_mod(message, context, lambda m, c: translate(m, c, call_next))


def translate(message: Message, context: Context, call_next: CallNext) -> Message:
    """The older API's lists of arrays to named arrays, and the answer back."""
    asked = compat.recorddict_to_fitins(message.content, keep_input=True)
    names = list(sent_model(context.run_config).state_dict())
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


class CuriousFedAvg(FedAvg):
    """Federated averaging that writes down all it is given: one and the same for every client."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__(**options)
        model = federation_of(settings).model
        self.start = {n: t.clone() for n, t in model.state_dict().items()}
        plan, data = plan_of(settings), federation_of(settings).data
        self.config = round_config(plan)
        self.capture_writer = CaptureWriter(empty_folder(settings), about=describe_run(plan, data))

    def aggregate_fit(self, number: int, results: Any, failures: Any) -> Any:
        distinct = {tuple(given.parameters.tensors) for _, given in results}
        log.info("%d clients answered; the server sees %d update(s)", len(results), len(distinct))
        arrays = parameters_to_ndarrays(results[0][1].parameters)
        change = {
            name: torch.tensor(array).to(start) - start
            for (name, start), array in zip(self.start.items(), arrays, strict=True)
        }
        reply = Reply(
            "aggregate",
            change,
            sum(given.num_examples for _, given in results),
            {"distinct-updates": len(distinct)},
            clients=len(results),
            members=[str(given.metrics["partition-id"]) for _, given in results],
        )
        self.capture_writer.write_round(number, self.start, [reply], config=self.config)
        self.start = {name: start + change[name] for name, start in self.start.items()}
        return super().aggregate_fit(number, results, failures)


def build_strategy(settings: Settings) -> Any:
    """The server's strategy, which captures what it sees: curious, or lying about the model."""
    plan, federation = plan_of(settings), federation_of(settings)
    start = [tensor.numpy() for tensor in federation.model.state_dict().values()]
    options = {
        "fraction_evaluate": 0.0,
        "min_fit_clients": plan.clients,
        "min_available_clients": plan.clients,
        "initial_parameters": ndarrays_to_parameters(start),
        "on_fit_config_fn": lambda number: {**round_config(plan), "server-round": number},
    }
    lie = lying_options(settings)
    if not lie:
        return CuriousFedAvg(settings, **options)
    about = describe_run(plan, federation.data)
    return malicious(FedAvg)(**lie, capture=empty_folder(settings), about=about, **options)


def run_secure_rounds(grid: Grid, context: Context) -> None:
    """Runs the app's rounds under SecAgg+."""
    settings = context.run_config
    plan, strategy = plan_of(settings), build_strategy(settings)
    write_truth(strategy.capture_writer, settings)
    # Weights are rounded to steps of 16 / 2**22, times max_weight over all examples.
    masked = SecAggPlusWorkflow(
        num_shares=3, reconstruction_threshold=2, max_weight=float(settings["images"])
    )
    config = ServerConfig(num_rounds=plan.rounds)
    legacy = LegacyContext(context, config=config, strategy=strategy)
    DefaultWorkflow(fit_workflow=masked)(grid, legacy)
    root = strategy.capture_writer.root
    if len(list(root.glob("round-*"))) < plan.rounds:
        raise RuntimeError("a secure aggregation was halted: the reason stands above")
    log.info("What the server saw: %s", root)
