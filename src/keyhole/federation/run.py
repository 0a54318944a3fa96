"""Runs a federated training as a plan says, and captures what the server sees."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from keyhole.data import SOURCES, ImageSet, load
from keyhole.defenses import DEFENSES
from keyhole.errors import DoesNotFit
from keyhole.federation.capture import LIMIT_GB, CaptureWriter, Reply
from keyhole.federation.choosing import choose_backend
from keyhole.federation.partition import ByUser, shuffle
from keyhole.federation.plan import PARTITIONS, TrainingPlan
from keyhole.federation.precision import choose_precision
from keyhole.federation.resident import keep_on_device
from keyhole.federation.rounds import ClientRunner, ClientUpdate, Federation, Round
from keyhole.federation.training_folder import CHECKPOINT, TrainingFolder
from keyhole.lock import locked
from keyhole.mean_and_std import normalisation_entries
from keyhole.models import build
from keyhole.models.fine_tuning import fine_tune
from keyhole.models.weights import fill_defense_weights, read_defense_weights
from keyhole.seeds import generator
from keyhole.settings import Precision

log = logging.getLogger("keyhole")


class Watcher(Protocol):
    """Is called with every round when it ends."""

    def __call__(self, seen: Round) -> None: ...


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training.

    Args:
        model: The trained model.
        rounds: One log line per round, as in ``rounds.jsonl``.
        folder: The run folder.
        resumed_after: The number of rounds that an earlier run had done.
    """

    model: nn.Module
    rounds: tuple[dict[str, Any], ...]
    folder: Path
    resumed_after: int

    def to_json(self) -> dict[str, Any]:
        """Returns what ``keyhole train --json`` prints."""
        last = self.rounds[-1]
        return {
            "accuracy": last["accuracy"],
            "loss": last["loss"],
            "rounds": list(self.rounds),
            "resumed_after": self.resumed_after,
            "run": str(self.folder),
            "weights": str(self.folder / CHECKPOINT),
        }


def train(
    plan: TrainingPlan,
    *,
    out: Path,
    data_dir: str | None = None,
    device: torch.device | None = None,
    capture: Path | None = None,
    limit_gb: float | None = None,
    fresh: bool = False,
    watchers: Sequence[Watcher] = (),
    keep_updates: bool | None = None,
    elsewhere: ClientRunner | None = None,
) -> TrainingResult:
    """Trains as ``plan`` says; the same call continues an interrupted training.

    Args:
        plan: What to train.
        out: The run folder, with checkpoints and a log of every round.
        data_dir: The folder of data sets that are read from files.
        device: The device to train on; None means the CPU.
        capture: The folder for what a curious server would write down; None means no capture.
        limit_gb: The disk space that a capture may use, in gigabytes.
        fresh: Whether to replace what an earlier run left in the folders.
        watchers: Called with every round when it ends.
        keep_updates: Whether watchers see all updates of a round, which takes memory for them
            all; None means that they do if there are any watchers.
        elsewhere: Trains the clients of each round somewhere else; None means in this process.
    """
    federation = build_federation(plan, data_dir=data_dir, device=device or torch.device("cpu"))
    federation.elsewhere = elsewhere
    TrainingFolder.open(out, plan, fresh=fresh)
    if federation.data.versions:
        log.warning(
            "note: %s holds several versions of its images, one per epoch in turn; the images for "
            "evaluation are shuffled as well",
            plan.data,
        )
    if elsewhere is None and (fresh or not (out / CHECKPOINT).is_file()):
        federation.backend = choose_backend(plan, federation)
    with locked(out, *([] if capture is None else [capture])):
        folder = TrainingFolder.open(out, plan, fresh=fresh)  # another run may have come first
        writer = None
        if capture is not None:
            writer = CaptureWriter(
                capture,
                about=describe_run(plan, federation.data),
                fresh=fresh,
                limit_gb=LIMIT_GB if limit_gb is None else limit_gb,
            )
            owners = {str(client): share for client, share in enumerate(federation.shares)}
            writer.write_truth(plan.data, owners, image_size=plan.image_size)
        done = folder.begin(plan, federation, fresh=fresh)
        log.info(
            "training %s on %s (clients: %d, rounds: %d, defense: %s)",
            *(plan.model, plan.data, plan.clients, plan.rounds, plan.defense),
        )
        keep = bool(watchers) if keep_updates is None else keep_updates
        for number in range(done + 1, plan.rounds + 1):
            seen = run_captured_round(federation, number, plan, writer, keep_updates=keep)
            folder.save_round(federation, seen)
            for watcher in watchers:
                watcher(seen)
        return TrainingResult(federation.model, tuple(folder.read_log()), out, done)


def run_captured_round(
    federation: Federation,
    number: int,
    plan: TrainingPlan,
    writer: CaptureWriter | None,
    *,
    keep_updates: bool,
) -> Round:
    """Runs one round; ``writer`` captures the updates as they arrive."""
    if writer is None:
        return federation.run_round(number, keep_updates=keep_updates)
    weights = federation.model.state_dict()
    config = round_config(plan, federation.training.precision)
    round_writer = writer.begin_round(number, weights, config=config)

    def write(sent: ClientUpdate) -> None:
        round_writer.add(Reply(str(sent.client), sent.update.change, sent.update.examples))

    seen = federation.run_round(number, keep_updates=keep_updates, watcher=write)
    round_writer.close()
    return seen


def build_federation(
    plan: TrainingPlan, *, data_dir: str | None, device: torch.device | None = None
) -> Federation:
    """Builds the federation that a plan names: model, data, partition and defense.

    Args:
        plan: What to train.
        data_dir: The folder of data sets that are read from files.
        device: The device to train on; None means the CPU.
    """
    defense = DEFENSES.parse(plan.defense)
    partition = PARTITIONS.parse(plan.partition)
    data, images, test = load_and_split(plan, data_dir)
    model = build(
        plan.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=plan.seed,
        weights=plan.weights,
    )
    model = fine_tune(model, plan.share)
    defense.validate(model)
    model = defense.prepare_model(model)
    if plan.weights is not None:
        model = fill_defense_weights(model, read_defense_weights(plan.weights), str(plan.weights))
    shares = partition(data, images, plan.clients, generator(plan.seed, "partition"))
    place = device or torch.device("cpu")
    model = model.to(place)
    kept = keep_on_device(data, place)
    tested = kept if test[0] is data else keep_on_device(test[0], place)
    return Federation(
        model=model,
        data=kept,
        shares=[share[: plan.images] for share in shares],
        test=(tested, test[1]),
        training=replace(plan.training, precision=choose_precision(plan.precision, model)),
        defense=defense,
        fraction=plan.fraction,
        seed=plan.seed,
    )


def load_and_split(
    plan: TrainingPlan, data_dir: str | None
) -> tuple[ImageSet, list[int], tuple[ImageSet, list[int]]]:
    """Returns the data, the indices to train on, and the data and indices to evaluate on."""
    options: dict[str, Any] = {
        "image_size": plan.image_size,
        "data_dir": data_dir,
        "mean": plan.mean,
        "std": plan.std,
    }
    data = load(plan.data, by_user=reads_by_user(plan), **options)
    source = SOURCES.get(plan.data)
    everything = list(range(len(data)))
    if source is not None and "test" in source.splits:
        test = load(plan.data, split="test", **options)
        return data, everything, (test, list(range(len(test))))
    order = shuffle(everything, generator(plan.seed, "held out"))
    held_out = round(plan.held_out * len(order))
    if held_out < 1 or held_out >= len(order):
        raise DoesNotFit(
            f"data set {plan.data!r} has {len(order)} images: too few to hold out "
            f"{plan.held_out:.0%} of them"
        )
    return data, sorted(order[held_out:]), (data, sorted(order[:held_out]))


def reads_by_user(plan: TrainingPlan) -> bool:
    """Returns whether folders are read as USER/CLASS/IMAGE."""
    return isinstance(PARTITIONS.parse(plan.partition), ByUser)


def round_config(plan: TrainingPlan, precision: Precision | None = None) -> dict[str, Any]:
    """Returns the config that the server sends to its clients; audits read these names.

    Args:
        plan: What is trained.
        precision: The precision that clients train in.
    """
    config: dict[str, Any] = {
        "lr": plan.lr,
        "batch-size": plan.batch_size,
        "optimiser": plan.optimiser,
        "momentum": plan.momentum,
        "client-mode": plan.client_mode,
        "defense": plan.defense,
    }
    if precision not in (None, "float32"):
        config["precision"] = precision
    return config | ({"local-steps": plan.steps} if plan.steps else {"local-epochs": plan.epochs})


def describe_run(plan: TrainingPlan, data: ImageSet) -> dict[str, Any]:
    """Returns what a captured folder says about the run as a whole."""
    return {
        "model": plan.model,
        "data": plan.data,
        "image-size": plan.image_size,
        "by-user": reads_by_user(plan),
        **normalisation_entries(data.mean, data.std),
        **({} if plan.share is None else {"share": plan.share}),
        "run": plan.model_copy(update={"rounds": 1}).digest,
    }
