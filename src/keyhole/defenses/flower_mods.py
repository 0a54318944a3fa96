"""Runs Flower's own client mods on an update, so that what is audited is what clients run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keyhole.errors import BadUpdate, DoesNotFit
from keyhole.update import Update

NOT_INSTALLED = "Flower is not installed: pip install 'keyhole[flower]'"
ARRAYS = "arrays"
NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)

ClientMod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
"""A mod as Flower calls it: ``mod(message, context, call_next)``."""


def require_flower() -> Any:
    """Returns Flower's module of client mods; raises in one line where Flower is absent."""
    try:
        from flwr.clientapp import mod
    except ImportError:
        raise DoesNotFit(NOT_INSTALLED) from None
    return mod


def run_mod(
    mod: ClientMod, update: Update, generator: torch.Generator, config: dict[str, float]
) -> tuple[Update, dict[str, float]]:
    """Returns what a mod makes of an update, and the metrics that it adds to the reply.

    The mod sees a message with weights of 0 and a reply with the update in their place: it
    works on the difference of the two. What it cannot work on, integer buffers of several numbers,
    is not among the tensors.

    Args:
        mod: One of Flower's mods.
        update: The update.
        generator: Seeds NumPy's global generator, from which Flower's mods draw.
        config: The values of the message's ConfigRecord.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

    end = {name: to_array(v) for name, v in update.change.items() if can_be_modified(v)}
    if not any(array.any() for array in end.values()):
        raise BadUpdate("the update is zero everywhere, and Flower's mods divide by its norm")
    start = {name: np.zeros_like(array) for name, array in end.items()}
    message = make_message(RecordDict({ARRAYS: make_record(start), "config": ConfigRecord(config)}))
    metrics = MetricRecord({"num-examples": update.examples})

    def answer(_: Any, __: Any) -> Any:
        return make_message(RecordDict({ARRAYS: make_record(end), "metrics": metrics}))

    context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={})
    seed = int(torch.randint(2**32, (), generator=generator, device=generator.device))
    with numpy_seeded_globally(seed), without_info_lines("flwr"):
        reply = mod(message, context, answer)
    if reply.has_error():
        raise BadUpdate(f"Flower's mod refuses the update: {reply.error.reason}")
    record = reply.content[ARRAYS]
    assert isinstance(record, ArrayRecord)
    sent = {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}
    changed = update.map(lambda name, tensor: sent[name].to(tensor))
    found = reply.content["metrics"]
    return changed, {name: found[name] for name in found if name != "num-examples"}


def can_be_modified(tensor: Tensor) -> bool:
    """Whether Flower's mods take a tensor: a float, or a number on its own, which they leave."""
    return tensor.is_floating_point() or (tensor.dim() == 0 and tensor.dtype != torch.bool)


def to_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor as NumPy has it; bfloat16, which NumPy does not have, as float32."""
    plain = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.dtype not in NUMPY_FLOATS:
        plain = plain.float()
    array: np.ndarray[Any, Any] = plain.numpy().copy()
    return array


def make_record(arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Flower's record of these arrays."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def make_message(content: Any) -> Any:
    """A training message outside of any run."""
    from flwr.app import Message, MessageType, Metadata

    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=1.0,
        message_type=MessageType.TRAIN,
    )
    return Message(content, metadata=metadata)


@contextmanager
def numpy_seeded_globally(seed: int) -> Iterator[None]:
    """Seeds NumPy's global generator inside the block, and restores its state after it."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


@contextmanager
def without_info_lines(name: str) -> Iterator[None]:
    """Holds back what a logger says of each client inside the block, but not its warnings."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def caveats_of_mods(parameters: Iterator[Tensor]) -> list[str]:
    """What a user should know about Flower's mods on a model with these tensors."""
    if not any(tensor.dim() == 0 for tensor in parameters):
        return []
    return ["Flower's mods send parameters of one number unclipped and without noise"]
