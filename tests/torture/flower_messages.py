"""Flower messages of a hostile server or a hostile client, without Flower's processes."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from keyhole.federation.flower import as_mod, curious
from torture.fuzzing import BrokenPromise, Fuzzer
from torture.mutations import NUMBERS, TEXTS, spoil_bytes
from torture.weights import spoilt_tensors

Tensors = dict[str, Tensor]
CLIP, NOISE = 0.01, 0.001
DEFENSES = (
    f"gaussian(sigma=0, clip={CLIP})",
    f"gaussian(sigma={NOISE})",
    "pruning(ratio=0.5)",
    "dp",
)


class ClientMods(Fuzzer):
    """What leaves a client through :func:`as_mod` is defended, whatever comes in."""

    name: ClassVar[str] = "Flower messages to and from clients"

    def prepare(self) -> None:
        quiet_flower()
        self.start = network()
        self.mods = [(text, as_mod(text)) for text in DEFENSES]

    def run(self, draw: random.Random, folder: Path) -> None:
        start, learnt = self.start, {k: learn(v) for k, v in self.start.items()}
        if draw.random() < 0.5:
            start = that_travel(spoilt_tensors(draw, start))
        if draw.random() < 0.7:
            learnt = that_travel(spoilt_tensors(draw, learnt))
        content = answer(learnt)
        if draw.random() < 0.5:
            spoil(draw, content)
        text, mod = draw.choice(self.mods)
        kind = draw.choice(["train", "train", "train", "evaluate", "query"])
        message = Message(RecordDict({"arrays": ArrayRecord(start)}), 100, kind)
        context = Context(1, 100, {"partition-id": 0}, RecordDict(), {})
        reply = mod(message, context, lambda m, _: Message(content, reply_to=m))
        if kind != "train" and reply.content.array_records:
            raise BrokenPromise(f"tensors left a client in a reply to {kind}")
        for record in reply.content.array_records.values():
            check_defended(text, start, learnt, record.to_torch_state_dict())


class CuriousServers(Fuzzer):
    """A curious strategy does what the plain one does, whatever a client sends."""

    name: ClassVar[str] = "Flower messages to servers"

    def prepare(self) -> None:
        quiet_flower()
        self.start = network()

    def run(self, draw: random.Random, folder: Path) -> None:
        spoilt = draw.random() < 0.5
        content = answer(that_travel(spoilt_tensors(draw, self.start)) if spoilt else self.start)
        spoil(draw, content)
        options: dict[str, Any] = {"min_available_nodes": 3, "min_train_nodes": 3}
        options["fraction_evaluate"] = 0.0
        grid = Clients(lambda: copy.deepcopy(content), self.start)
        plain = outcome(FedAvg(**options), grid, self.start)
        seen = outcome(curious(FedAvg)(**options, capture=folder / "seen"), grid, self.start)
        if plain != seen:
            raise BrokenPromise(f"a curious strategy came to {seen}, the plain one to {plain}")


class Clients(Grid):  # type: ignore[misc]
    """Three clients, of which the second answers as it is told."""

    def __init__(self, hostile: Callable[[], RecordDict], weights: Tensors) -> None:
        self.hostile, self.weights = hostile, weights

    def get_node_ids(self) -> Iterable[int]:
        return [100, 101, 102]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        honest = message.metadata.dst_node_id != 101
        content = answer(self.weights) if honest else self.hostile()
        return Message(content, reply_to=message)

    def nowhere(self, *values: Any, **named: Any) -> Any:
        raise NotImplementedError

    set_run = create_message = push_messages = pull_messages = nowhere
    run = property(nowhere)


def quiet_flower() -> None:
    for room in ("flwr", "keyhole"):
        logging.getLogger(room).setLevel(logging.CRITICAL)
    for name in ("_run_id", "_node_id", "_task_id"):  # as a process of Flower's has them
        setattr(TaskIdentity, name, 1)


def network() -> Tensors:
    torch.manual_seed(0)
    floats = {"weight": torch.randn(6, 4), "bias": torch.randn(6), "unused": torch.zeros(1)}
    return {**floats, "batches": torch.tensor(3), "places": torch.arange(4)}


def learn(tensor: Tensor) -> Tensor:
    """Weights after training; a count goes up, other integers stay."""
    if tensor.is_floating_point():
        return tensor + torch.linspace(0.5, 1.5, tensor.numel()).view_as(tensor)
    return tensor + 1 if tensor.ndim == 0 else tensor


def that_travel(weights: Tensors) -> Tensors:
    """Flower carries NumPy's types, of which bfloat16 is none."""
    return {k: v.float() if v.dtype == torch.bfloat16 else v for k, v in weights.items()}


def answer(weights: Tensors) -> RecordDict:
    metrics = MetricRecord({"num-examples": 4, "loss": 0.5})
    return RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})


def spoil(draw: random.Random, content: RecordDict) -> None:
    """Changes what a client is about to send."""
    match draw.randrange(8):
        case 0:
            told = content["metrics"].__dict__["_data"]  # past Flower's own check of types
            numbers = (*NUMBERS, float("nan"), float("inf"), True, 10**5000, [1, 2], "many", b"x")
            told[draw.choice(["num-examples", "loss", "partition-id"])] = draw.choice(numbers)
        case 1:
            content["metrics"].pop("num-examples")
        case 2:
            content.pop(draw.choice(["arrays", "metrics"]))
        case 3:
            content["more"] = ArrayRecord({"w": torch.ones(2)})
        case 4:
            words = {draw.choice(TEXTS) or "a": draw.choice([*TEXTS, b"\0" * 5000, 1.0])}
            content["config"] = ConfigRecord(words)
        case 5 if "arrays" in content and len(content["arrays"]):
            name = draw.choice(sorted(content["arrays"]))
            old = content["arrays"][name]
            facts = {n: getattr(old, n) for n in ("dtype", "shape", "stype", "data")}
            odd: dict[str, Any] = {
                "dtype": draw.choice(["float64", "object", "nonsense", "<U5"]),
                "shape": draw.choice([(2,), (-1,), (10**9, 10**9), ()]),
                "stype": draw.choice(["pickle", "numpy.ndarray", ""]),
                "data": spoil_bytes(draw, old.data),
            }
            chosen = draw.choice(["data", "data", *odd])
            content["arrays"][name] = Array(**{**facts, chosen: odd[chosen]})
        case 6:
            content["keyhole"] = draw.choice(
                [ConfigRecord({"defense": "none"}), MetricRecord({"defense": 1})]
            )
        case _:
            content.clear()


def check_defended(defense: str, start: Tensors, learnt: Tensors, sent: Tensors) -> None:
    """Raises where something left that the defense has not seen."""
    moved = 0.0
    rounding = 0.0
    for name, tensor in sent.items():
        if name not in start or tensor.shape != start[name].shape:
            raise BrokenPromise(f"{name!r}, which the model does not have, left a client")
        if not tensor.isfinite().all():
            raise BrokenPromise(f"{name!r} left a client and is not finite")
        if not tensor.is_floating_point():
            if tensor.numel() > 1 and not torch.equal(tensor.double(), start[name].double()):
                raise BrokenPromise(f"integers in {name!r} left a client undefended")
            continue
        change = tensor.double() - start[name].double()
        moved += float(change.square().sum())
        rounding += float(start[name].double().norm()) * torch.finfo(tensor.dtype).eps
        if tensor.numel() > 1 and change.any() and tensor.equal(learnt[name]):
            raise BrokenPromise(f"{name!r} left a client as it was learnt")
    if f"clip={CLIP}" in defense and moved**0.5 > CLIP * 1.001 + rounding:
        raise BrokenPromise(f"what left has norm {moved**0.5}, not {CLIP}")


def outcome(strategy: FedAvg, grid: Any, start: Tensors) -> Any:
    """What a round comes to: weights and metrics, or what it raises."""
    random.seed(0)
    try:
        with np.errstate(all="ignore"):
            found = strategy.start(grid, ArrayRecord(start), num_rounds=1)
    except Exception as error:  # noqa: BLE001  whatever it is, both must raise it
        return type(error), str(error)
    arrays = {name: array.numpy() for name, array in found.arrays.items()}
    weights = {n: (str(a.dtype), a.tobytes()) for n, a in arrays.items()}
    return weights, repr(found.train_metrics_clientapp)
