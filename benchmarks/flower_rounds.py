"""Flower's side of the federation benchmark, in a module where Ray finds it."""

from __future__ import annotations

from functools import cache

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from keyhole.federation import Federation, TrainingPlan, build_federation
from keyhole.federation.flower import train_locally


@cache
def load_federation(plan: TrainingPlan) -> Federation:
    return build_federation(plan, data_dir=None)


def make_client_app(plan: TrainingPlan) -> ClientApp:
    """Flower's client: the same local training, between two messages."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        federation = load_federation(plan)
        client, model = int(context.node_config["partition-id"]), federation.model
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        member = federation.make_client(int(message.content["config"]["server-round"]), client)
        update = train_locally(
            model,
            member.images,
            member.labels,
            data=federation.data,
            training=federation.training,
            generator=member.generator,
        )
        weights = {name: start + update.change[name] for name, start in model.state_dict().items()}
        said = MetricRecord({"num-examples": update.examples})
        content = RecordDict({"arrays": ArrayRecord(weights), "metrics": said})
        return Message(content, reply_to=message)

    return app


class FlowerRounds:
    """Federated averaging by Flower's strategy, round by round as its ``start`` does it."""

    def __init__(self, plan: TrainingPlan, grid: Grid) -> None:
        everyone = {"min_train_nodes": plan.clients, "min_available_nodes": plan.clients}
        self.strategy = FedAvg(fraction_evaluate=0.0, **everyone)
        self.grid = grid
        self.arrays = ArrayRecord(build_federation(plan, data_dir=None).model.state_dict())

    def round(self, number: int) -> None:
        messages = self.strategy.configure_train(number, self.arrays, ConfigRecord(), self.grid)
        replies = list(self.grid.send_and_receive(messages))
        lost = [reply.error.reason for reply in replies if reply.has_error()]
        if lost:
            raise RuntimeError(f"{len(lost)} of Flower's clients failed: {lost[0]}")
        arrays, _ = self.strategy.aggregate_train(number, replies)
        assert arrays is not None
        self.arrays = arrays

    def weights(self) -> dict[str, Tensor]:
        return dict(self.arrays.to_torch_state_dict())
