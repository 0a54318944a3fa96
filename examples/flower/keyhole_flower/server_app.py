"""A server that averages its clients' weights as agreed, and writes down what it sees."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from keyhole.errors import RunFolderError
from keyhole.federation import Federation
from keyhole.federation.flower import curious
from keyhole.federation.run import describe_run, round_config
from keyhole_flower.task import Settings, federation_of, plan_of

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains for the run's rounds with all clients in each."""
    settings = context.run_config
    plan, federation = plan_of(settings), federation_of(settings)
    strategy = curious(FedAvg)(
        capture=empty_folder(settings),
        about=describe_run(plan, federation.data),
        fraction_evaluate=0.0,
        min_available_nodes=plan.clients,
        min_train_nodes=plan.clients,
    )
    owners = {str(client): share for client, share in enumerate(federation.shares)}
    strategy.capture_writer.write_truth(
        plan.data, owners, image_size=plan.image_size
    )  # only for the judge
    strategy.start(
        grid,
        ArrayRecord(federation.model.state_dict()),
        num_rounds=plan.rounds,
        train_config=ConfigRecord(round_config(plan)),
        evaluate_fn=lambda _, arrays: evaluated(federation, arrays),
    )
    log.info("What the server saw: %s", strategy.capture_writer.root)


def empty_folder(settings: Settings) -> Path:
    """The folder to capture into; rounds of another run must not mix with this one's."""
    folder = Path(str(settings["capture"])).expanduser().resolve()
    if any(folder.glob("round-*")):
        raise RunFolderError(f"{folder} holds another run's rounds: remove it, or name another")
    return folder


def evaluated(federation: Federation, arrays: ArrayRecord) -> MetricRecord:
    """How good the global model is on images that no client holds."""
    federation.model.load_state_dict(arrays.to_torch_state_dict())
    accuracy, loss = federation.evaluate()
    return MetricRecord({"accuracy": accuracy, "loss": loss})
