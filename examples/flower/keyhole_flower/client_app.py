"""A client that trains on its own images; the run's defense stands between them and the server."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from keyhole.defenses import DEFENSES
from keyhole.federation.flower import CallNext, as_mod, train_locally
from keyhole_flower.secure_aggregation import mask_update
from keyhole_flower.task import federation_of, sent_model


def defended(message: Message, context: Context, call_next: CallNext) -> Message:
    """The defense that the run's settings name, which are not known when the app is made.

    It is seeded so that a run can be repeated; against a real server leave the seed out.
    """
    defense = DEFENSES.parse(str(context.run_config["defense"]))
    mod = as_mod(defense, seed=int(context.run_config["seed"]))
    return mod(message, context, call_next)


app = ClientApp(mods=[mask_update, defended])  # an update is defended first, masked last


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training on the images of the node's partition."""
    federation = federation_of(context.run_config)
    client = int(context.node_config["partition-id"])
    model = sent_model(context.run_config)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    member = federation.make_client(int(message.content["config"]["server-round"]), client)
    update = train_locally(
        model,
        member.images,
        member.labels,
        data=federation.data,
        training=federation.training,
        generator=member.generator,
        images_by_epoch=member.images_by_epoch,
    )
    weights = {name: start + update.change[name] for name, start in model.state_dict().items()}
    said = MetricRecord({"num-examples": update.examples, "partition-id": client})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": said}), reply_to=message)
