"""A server that averages its clients' weights, and writes down what it sees.

With ``attack`` it lies about the model, to show what clients would give away to such a server.
"""

from __future__ import annotations

import logging

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from keyhole.auditing import malicious
from keyhole.federation import Federation
from keyhole.federation.flower import curious
from keyhole.federation.run import describe_run, round_config
from keyhole_flower.secure_aggregation import run_secure_rounds
from keyhole_flower.task import (
    empty_folder,
    federation_of,
    lying_options,
    plan_of,
    write_truth,
)

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains for the run's rounds with all clients in each."""
    settings = context.run_config
    if settings["secure-aggregation"]:
        run_secure_rounds(grid, context)
        return
    plan, federation = plan_of(settings), federation_of(settings)
    lie = lying_options(settings)
    strategy = (malicious if lie else curious)(FedAvg)(
        **lie,
        capture=empty_folder(settings),
        about=describe_run(plan, federation.data),
        fraction_evaluate=0.0,
        min_available_nodes=plan.clients,
        min_train_nodes=plan.clients,
    )
    write_truth(strategy.capture_writer, settings)
    strategy.start(
        grid,
        ArrayRecord(federation.model.state_dict()),
        num_rounds=plan.rounds,
        train_config=ConfigRecord(round_config(plan)),
        evaluate_fn=lambda _, arrays: evaluated(federation, arrays),
    )
    log.info("What the server saw: %s", strategy.capture_writer.root)


def evaluated(federation: Federation, arrays: ArrayRecord) -> MetricRecord:
    """How good the global model is on images that no client holds."""
    federation.model.load_state_dict(arrays.to_torch_state_dict())
    accuracy, loss = federation.evaluate()
    return MetricRecord({"accuracy": accuracy, "loss": loss})
