"""A federated training in a folder: checkpoints, exact resume, a record of every round.

OUT/plan.json               what is trained
OUT/checkpoint.safetensors  the global weights after the last round, and what clients remember
OUT/rounds.jsonl            one line a round: accuracy, loss, update norms, seconds, telemetry
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from keyhole.atomic import is_half, read_json, sweep, write_json, write_tensors, write_text
from keyhole.data import SOURCES, ImageSet, load
from keyhole.defenses import DEFENSES
from keyhole.errors import DoesNotFit, RunFolderError
from keyhole.federation.capture import Recorder, Reply
from keyhole.federation.fedavg import Federation, Round
from keyhole.federation.partition import PARTITIONS, ByUser, shuffled
from keyhole.federation.plan import TrainingPlan
from keyhole.federation.together import Together, faster_together, why_not_together
from keyhole.models import build
from keyhole.models.weights import filled_up, spare_weights
from keyhole.seeds import generator
from keyhole.update import read_safetensors

log = logging.getLogger("keyhole")

PLAN, CHECKPOINT, ROUNDS = "plan.json", "checkpoint.safetensors", "rounds.jsonl"


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
) -> TrainingResult:
    """Trains as ``plan`` says, in a folder in which the same plan is continued."""
    federation = assemble(plan, data_dir=data_dir, device=device or torch.device("cpu"))
    folder = Folder.checked(out, plan, fresh=fresh)
    if federation.data.versions:
        log.warning(
            "note: %s holds versions of its images, used in turns; those for evaluation are "
            "shuffled as well",
            plan.data,
        )
    if fresh or not (out / CHECKPOINT).is_file():
        federation.together = choose(plan, federation)
    recorder = None
    if capture is not None:
        options = {} if limit_gb is None else {"limit_gb": limit_gb}
        recorder = Recorder(capture, about=about(plan), fresh=fresh, **options)
        owners = {str(client): share for client, share in enumerate(federation.shares)}
        recorder.truth(plan.data, owners, image_size=plan.image_size)
    done = folder.begin(plan, federation, fresh=fresh)
    for seen in federation.rounds(done + 1, plan.rounds):
        if recorder is not None:
            replies = [
                Reply(str(s.client), s.update.change, s.update.examples) for s in seen.shares
            ]
            recorder.round(seen.number, seen.sent, replies, config=recipe(plan))
        folder.keep(federation, seen)
        for watcher in watchers:
            watcher(seen)
    return TrainingResult(federation.model, tuple(folder.lines()), out, done)


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
    options: dict[str, Any] = {"image_size": plan.image_size, "data_dir": data_dir}
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
    """Whether clients are trained side by side: as asked, or as a short measurement says."""
    if plan.together == "no":
        return None
    members = [federation.member(1, client) for client in federation.sampled(1)]
    together = Together()
    if not together.takes(federation.model, members, federation.defense):
        if plan.together == "yes":
            raise DoesNotFit(
                "these clients cannot be trained together: they need equally many images, and a "
                "defense without a gradient of its own"
            )
        return None
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


def about(plan: TrainingPlan) -> dict[str, Any]:
    """What a reader of a captured folder should know of the run."""
    return {
        "model": plan.model,
        "data": plan.data,
        "image-size": plan.image_size,
        "by-user": by_user(plan),
        "run": plan.model_copy(update={"rounds": 1}).digest,
    }


class Folder:
    """A training's folder; one file holds all that is needed to go on."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def checked(cls, root: Path, plan: TrainingPlan, *, fresh: bool) -> Folder:
        """The folder for this plan, if it may be used; more rounds than before may be asked."""
        path = root / PLAN
        if path.is_file() and not fresh:
            found = read_json(path)
            if not isinstance(found, dict) or {**found, "rounds": plan.rounds} != plan.to_json():
                raise RunFolderError(
                    f"{root} holds another training: choose another --out, or replace it with "
                    "--fresh"
                )
        strangers = [] if path.is_file() or not root.is_dir() else list(root.iterdir())
        if any(p.is_file() and not is_half(p) for p in strangers):
            raise RunFolderError(f"{root} holds other files: choose another --out")
        return cls(root)

    def begin(self, plan: TrainingPlan, federation: Federation, *, fresh: bool) -> int:
        """Takes up an earlier run, or starts one; returns the rounds done."""
        if fresh:
            for name in (PLAN, CHECKPOINT, ROUNDS):
                (self.root / name).unlink(missing_ok=True)
        write_json(self.root / PLAN, plan.to_json())
        sweep(self.root)
        if not (self.root / CHECKPOINT).is_file():
            write_text(self.root / ROUNDS, "")
            self.checkpoint(federation, 0, None)
            return 0
        return self.resume(federation)

    def resume(self, federation: Federation) -> int:
        """Puts ``federation`` where the last checkpoint was; returns the rounds done."""
        path = self.root / CHECKPOINT
        tensors, header = read_safetensors(path)
        federation.model.load_state_dict(tensors)
        facts = json.loads(header["facts"])
        federation.memory = {int(client): kept for client, kept in facts["memory"].items()}
        federation.together = Together() if facts["together"] else None
        done = int(facts["round"])
        kept_lines = [line for line in self.lines() if line["round"] < done]
        kept_lines += [facts["record"]] if done else []
        write_text(self.root / ROUNDS, "".join(json.dumps(line) + "\n" for line in kept_lines))
        return done

    def keep(self, federation: Federation, seen: Round) -> None:
        """Appends to the record, then replaces the checkpoint."""
        line = seen.telemetry()
        try:
            with (self.root / ROUNDS).open("a", encoding="utf-8") as record:
                record.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunFolderError(f"cannot write to {self.root} ({error.strerror})") from None
        self.checkpoint(federation, seen.number, line)

    def checkpoint(
        self, federation: Federation, number: int, record: dict[str, Any] | None
    ) -> None:
        """All that is needed to go on after round ``number``, in one file."""
        facts = {
            "round": number,
            "record": record,
            "memory": federation.memory,
            "together": federation.together is not None,
        }
        write_tensors(
            self.root / CHECKPOINT, federation.model.state_dict(), {"facts": json.dumps(facts)}
        )

    def lines(self) -> list[dict[str, Any]]:
        """What is on record; a line that was being written at a kill does not count."""
        path = self.root / ROUNDS
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found
