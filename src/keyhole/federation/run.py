"""A federated training from a plan: who trains, what is captured, round after round."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from keyhole.data import SOURCES, ImageSet, load
from keyhole.data.normalisation import as_facts
from keyhole.defenses import DEFENSES
from keyhole.errors import DoesNotFit
from keyhole.federation.capture import LIMIT_GB, Recorder, Reply
from keyhole.federation.fedavg import Federation, Round, Share
from keyhole.federation.partition import PARTITIONS, ByUser, shuffled
from keyhole.federation.plan import TrainingPlan
from keyhole.federation.together import Together, faster_together, why_not_together
from keyhole.federation.training_folder import CHECKPOINT, TrainingFolder
from keyhole.lock import locked
from keyhole.models import build
from keyhole.models.weights import filled_up, spare_weights
from keyhole.seeds import generator

log = logging.getLogger("keyhole")


class Watcher(Protocol):
    """Sees every round as it ends, updates and all."""

    def __call__(self, seen: Round) -> None: ...


@dataclass(frozen=True)
class TrainingResult:
    """What became of a training."""

    model: nn.Module
    rounds: tuple[dict[str, Any], ...]
    folder: Path
    resumed_after: int
    """Rounds that an earlier run had done."""

    def to_json(self) -> dict[str, Any]:
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
) -> TrainingResult:
    """Trains as ``plan`` says, in a folder in which the same plan is continued.

    ``keep_updates``: whether watchers see all updates of a round, which takes memory for them all;
    None: where there are watchers.
    """
    federation = assemble(plan, data_dir=data_dir, device=device or torch.device("cpu"))
    TrainingFolder.checked(out, plan, fresh=fresh)
    if federation.data.versions:
        log.warning(
            "note: %s holds versions of its images, used in turns; those for evaluation are "
            "shuffled as well",
            plan.data,
        )
    if fresh or not (out / CHECKPOINT).is_file():
        federation.together = choose(plan, federation)
    with locked(out, *([] if capture is None else [capture])):
        folder = TrainingFolder.checked(
            out, plan, fresh=fresh
        )  # another may have come before the lock
        recorder = None
        if capture is not None:
            recorder = Recorder(
                capture,
                about=about(plan, federation.data),
                fresh=fresh,
                limit_gb=LIMIT_GB if limit_gb is None else limit_gb,
            )
            owners = {str(client): share for client, share in enumerate(federation.shares)}
            recorder.truth(plan.data, owners, image_size=plan.image_size)
        done = folder.begin(plan, federation, fresh=fresh)
        log.info(
            "training %s on %s (clients: %d, rounds: %d, defense: %s)",
            *(plan.model, plan.data, plan.clients, plan.rounds, plan.defense),
        )
        kept = bool(watchers) if keep_updates is None else keep_updates
        for number in range(done + 1, plan.rounds + 1):
            seen = captured_round(federation, number, plan, recorder, keep_updates=kept)
            folder.keep(federation, seen)
            for watcher in watchers:
                watcher(seen)
        return TrainingResult(federation.model, tuple(folder.lines()), out, done)


def captured_round(
    federation: Federation,
    number: int,
    plan: TrainingPlan,
    recorder: Recorder | None,
    *,
    keep_updates: bool,
) -> Round:
    """One round, whose updates ``recorder`` writes down as they come."""
    if recorder is None:
        return federation.round(number, keep_updates=keep_updates)
    writer = recorder.begin(number, federation.model.state_dict(), config=recipe(plan))

    def write(share: Share) -> None:
        writer.add(Reply(str(share.client), share.update.change, share.update.examples))

    seen = federation.round(number, keep_updates=keep_updates, watch=write)
    writer.close()
    return seen


def assemble(
    plan: TrainingPlan, *, data_dir: str | None, device: torch.device | None = None
) -> Federation:
    """The plan with its names resolved: who trains what on which images."""
    defense = DEFENSES.parse(plan.defense)
    partition = PARTITIONS.parse(plan.partition)
    data, images, test = parts(plan, data_dir)
    model = build(
        plan.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=plan.seed,
        weights=plan.weights,
    )
    defense.validate(model)
    model = defense.prepared(model)
    if plan.weights is not None:
        model = filled_up(model, spare_weights(plan.weights), str(plan.weights))
    shares = partition(data, images, plan.clients, generator(plan.seed, "partition"))
    return Federation(
        model=model.to(device or torch.device("cpu")),
        data=data,
        shares=[share[: plan.images] for share in shares],
        test=test,
        training=plan.training,
        defense=defense,
        fraction=plan.fraction,
        seed=plan.seed,
    )


def parts(
    plan: TrainingPlan, data_dir: str | None
) -> tuple[ImageSet, list[int], tuple[ImageSet, list[int]]]:
    """The data, the images to train on, and those to evaluate on."""
    options: dict[str, Any] = {
        "image_size": plan.image_size,
        "data_dir": data_dir,
        "mean": plan.mean,
        "std": plan.std,
    }
    data = load(plan.data, by_user=by_user(plan), **options)
    source = SOURCES.get(plan.data)
    everything = list(range(len(data)))
    if source is not None and "test" in source.splits:
        test = load(plan.data, split="test", **options)
        return data, everything, (test, list(range(len(test))))
    order = shuffled(everything, generator(plan.seed, "held out"))
    kept = round(plan.held_out * len(order))
    if kept < 1 or kept >= len(order):
        raise DoesNotFit(
            f"data set {plan.data!r} has {len(order)} images: too few to hold out "
            f"{plan.held_out:.0%} of them"
        )
    return data, sorted(order[kept:]), (data, sorted(order[:kept]))


def by_user(plan: TrainingPlan) -> bool:
    """Whether folders are read as USER/CLASS/IMAGE."""
    return isinstance(PARTITIONS.parse(plan.partition), ByUser)


def choose(plan: TrainingPlan, federation: Federation) -> Together | None:
    """Whether clients are trained side by side: as asked, or by rule."""
    if plan.together == "no":
        return None
    together, clients = Together(), federation.sampled(1)
    sizes = [len(federation.shares[client]) for client in clients]
    if not together.fits(federation.model, sizes, federation.training, federation.defense):
        if plan.together == "yes":
            raise DoesNotFit(
                "these clients cannot be trained together: they need equally many images, and a "
                "defense without a gradient of its own"
            )
        return None
    some = clients[: together.room(federation.model)]
    members = [federation.member(1, client) for client in some]
    if plan.together == "yes":
        why = why_not_together(federation.model, members)
        if why is not None:
            raise DoesNotFit(f"these clients cannot be trained together: {why}")
    elif not faster_together(federation.model, members):
        return None
    return together


def recipe(plan: TrainingPlan) -> dict[str, Any]:
    """What the server tells its clients, in the words that an audit looks for."""
    told: dict[str, Any] = {
        "lr": plan.lr,
        "batch-size": plan.batch_size,
        "optimiser": plan.optimiser,
        "momentum": plan.momentum,
        "client-mode": plan.client_mode,
        "defense": plan.defense,
    }
    return told | ({"local-steps": plan.steps} if plan.steps else {"local-epochs": plan.epochs})


def about(plan: TrainingPlan, data: ImageSet) -> dict[str, Any]:
    """What a reader of a captured folder should know of the run."""
    return {
        "model": plan.model,
        "data": plan.data,
        "image-size": plan.image_size,
        "by-user": by_user(plan),
        **as_facts(data.mean, data.std),
        "run": plan.model_copy(update={"rounds": 1}).digest,
    }
