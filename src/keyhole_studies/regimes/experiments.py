"""One regime: clients upload once, and the best attacks of one server read what they can."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from keyhole.auditing import Plan, Stage, infer_captured_membership, read_versions, run_plan
from keyhole.data import ImageSet, load
from keyhole.device import find_device
from keyhole.errors import DoesNotFit, KeyholeError
from keyhole.federation import LocalTraining
from keyhole.models import default_mode, has_batch_norm
from keyhole.spelling import parse_call
from keyhole_studies.audits import make_rows
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.regimes.uploads import Round
from keyhole_studies.regimes.weights import Start, choose_images, prepare_start

UNFIT = "does_not_fit"
"""The key under which a result says why a regime cannot be measured."""


class Table(BaseModel):
    """A table of ``cells.toml``, without other keys than these."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Scale(Table):
    """How much is measured; see ``cells.toml``."""

    iterations: int
    lr: float
    clients: int
    victims: int
    trained_on: int


class Network(Table):
    """A network, its images, and the attacks of an honest server on it."""

    model: str
    label: str
    data: str
    attacks: tuple[str, ...]
    image_size: int | None = None
    start: str = ""


class Weights(Table):
    """The share of its training images that a network knows; 0: fresh weights."""

    label: str
    accuracy: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Local(Table):
    """What a client does before it uploads."""

    label: str
    steps: int = 1
    epochs: int | None = None
    batches: int = 1
    attacks: tuple[str, ...] = ()


class Server(Table):
    """An honest server, or one that alters the model for its attack."""

    label: str
    attack: str = ""


@dataclass(frozen=True)
class Settings:
    """The tables that a regime is made of."""

    network: Network
    weights: Weights
    local: Local
    server: Server
    scale: Scale


@dataclass(frozen=True)
class RegimeExperiment(Experiment):
    """What one kind of server reads in one regime, and whom it can tell to be a member.

    Args:
        network: The network's table in ``cells.toml``.
        weights: The line of the weights.
        batch: Images of a local step.
        local: The line of the local training.
        server: ``honest`` or ``malicious``.
        settings: The tables of all of them.
    """

    network: str
    weights: str
    batch: int
    local: str
    server: str
    settings: Settings = field(repr=False)

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """The regime, by the names of its tables in ``cells.toml``."""
        return self.network, self.weights, self.batch, self.local, self.server

    @property
    def images(self) -> int:
        """The images of a client."""
        return self.batch * self.settings.local.batches

    @property
    def attacks(self) -> tuple[str, ...]:
        """The attacks that this kind of server tries."""
        network, local, server = self.settings.network, self.settings.local, self.settings.server
        return (server.attack,) if server.attack else (*network.attacks, *local.attacks)

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        return self.measure_attacks(self.attacks, study, context)

    def complete(
        self, known: dict[str, Any], study: Study, context: StudyContext
    ) -> dict[str, Any]:
        """Only the attacks that an earlier result lacks, if clients uploaded the same."""
        lacking = self.list_lacking(known)
        if not lacking or not self.is_whole(known, context):
            return self.measure(study, context)
        found = self.measure_attacks(lacking, study, context, whole=False)
        same = ("start", "norm", "lr", "victims", "images", "seed", "device")
        if any(found.get(name) != known.get(name) for name in same):
            return self.measure(study, context)
        return {
            **known,
            "rows": {**known["rows"], **found["rows"]},
            "skipped": [*known["skipped"], *found["skipped"]],
            "seconds": round(known["seconds"] + found["seconds"], 1),
        }

    def list_lacking(self, known: dict[str, Any]) -> tuple[str, ...]:
        """The attacks of which an earlier result neither has a row nor says why not."""
        had = {name.partition(" (")[0] for name in known["rows"]}
        had |= {parse_call(text.partition(": ")[0])[0] for text in known["skipped"]}
        return tuple(text for text in self.attacks if parse_call(text)[0] not in had)

    def measure_attacks(
        self,
        attacks: tuple[str, ...],
        study: Study,
        context: StudyContext,
        *,
        whole: bool = True,
    ) -> dict[str, Any]:
        """Lets clients upload, and what some attacks read; with membership if it is whole."""
        began = time.perf_counter()
        folder = context.runs / self.name
        try:
            found = self.measure_uploads(attacks, study, context, folder, whole=whole)
        except DoesNotFit as error:
            return {"piece": self.name, UNFIT: str(error)}
        shutil.rmtree(folder, ignore_errors=True)
        return {
            "piece": self.name,
            **{name: getattr(self, name) for name in ("network", "weights", "batch")},
            **{name: getattr(self, name) for name in ("local", "server")},
            **found,
            "seed": study.seed,
            "seconds": round(time.perf_counter() - began, 1),
            "versions": read_versions(),
        }

    def measure_uploads(
        self,
        attacks: tuple[str, ...],
        study: Study,
        context: StudyContext,
        folder: Path,
        *,
        whole: bool,
    ) -> dict[str, Any]:
        """Lets clients upload, then attacks what they sent."""
        network, device = self.settings.network, find_device(context.device)
        data = load(network.data, image_size=network.image_size, data_dir=context.data_dir)
        start = self.prepare(data, study, context, device)
        mode = default_mode(start.model, self.batch)
        captured = folder / "captured"
        if not (captured / "round-0001" / "manifest.json").is_file():
            context.progress.show(f"{self.name}: {self.settings.scale.clients} clients train")
            self.choose_round(data, start, study.seed, mode).capture(
                captured,
                {"model": network.model, "data": network.data, "image-size": network.image_size},
                self.settings.server.attack,
            )
        result = run_plan(
            Plan(
                title=self.name,
                seed=study.seed,
                stage=(self.make_stage(captured, context, attacks),),
            ),
            out=folder / "audit",
            data_dir=context.data_dir,
            device=context.device,
            progress=context.progress,
            victims_at_once=context.victims_at_once,
        )
        first = result.findings[0]
        return {
            "model": network.model,
            "data": network.data,
            "image_size": list(data.size),
            "norm": mode if has_batch_norm(start.model) else "",
            "start": start.facts,
            "lr": self.settings.scale.lr,
            "victims": first.victims,
            "images": first.victims * self.images,
            "rows": make_rows(result.findings),
            "skipped": [f"{each.attack}: {each.why}" for each in result.skipped],
            "membership": (self.ask_membership(captured, study, context, device) if whole else {}),
            "device": name_device(device),
        }

    def prepare(
        self, data: ImageSet, study: Study, context: StudyContext, device: torch.device
    ) -> Start:
        """The network with this regime's weights."""
        settings = self.settings
        return prepare_start(
            f"{self.network}-{self.weights}",
            settings.network.model,
            data,
            choose_images(data, settings.scale.trained_on, study.seed),
            settings.weights.accuracy,
            context,
            device=device,
            seed=study.seed,
            start=settings.network.start,
        )

    def choose_round(self, data: ImageSet, start: Start, seed: int, mode: Any) -> Round:
        """The clients, whose images are among those that the weights were trained on."""
        local, scale, own = self.settings.local, self.settings.scale, self.images
        order = choose_images(data, max(scale.trained_on, scale.clients * own), seed)
        training = LocalTraining(
            steps=local.steps,
            lr=scale.lr,
            mode=mode,
            epochs=local.epochs,
            batch_size=self.batch if local.epochs else None,
        )
        shares = [order[n * own : (n + 1) * own] for n in range(scale.clients)]
        return Round(start.model, data, shares, training, seed)

    def make_stage(self, captured: Path, context: StudyContext, attacks: tuple[str, ...]) -> Stage:
        """The audit of what was captured."""
        network = self.settings.network
        changes = {name: value for name, value in context.changes.items() if value}
        values = {
            "model": network.model,
            "data": network.data,
            "image_size": network.image_size,
            "attacks": attacks,
            "victims": self.settings.scale.victims,
            "iterations": self.settings.scale.iterations,
            "captured": captured,
        }
        return Stage(**{**values, **changes})

    def ask_membership(
        self, captured: Path, study: Study, context: StudyContext, device: torch.device
    ) -> dict[str, Any]:
        """Who was in it, from the updates of all clients; a malicious server need not ask."""
        if self.settings.server.attack:
            return {}
        network = self.settings.network
        context.progress.show(f"{self.name}: membership")
        try:
            found = infer_captured_membership(
                captured,
                model=network.model,
                data=network.data,
                image_size=network.image_size,
                data_dir=context.data_dir,
                device=device,
                seed=study.seed,
            )
        except KeyholeError as error:
            return {"why_not": str(error)}
        return {
            "members": found.members,
            "others": found.others,
            "clients": self.settings.scale.clients,
            "attacks": {
                each.attack: {
                    "auc": round(each.auc, 4),
                    "low": round(each.auc_low, 4),
                    "high": round(each.auc_high, 4),
                }
                for each in found.attacks
            },
        }

    def covers(self, known: dict[str, Any], context: StudyContext) -> bool:
        """Whether as many clients were attacked by as much; what does not fit needs none."""
        if UNFIT in known:
            return True
        return self.is_whole(known, context) and not self.list_lacking(known)

    def is_whole(self, known: dict[str, Any], context: StudyContext) -> bool:
        """Whether as many clients were attacked for as long."""
        victims = context.changes.get("victims") or self.settings.scale.victims
        wanted = context.changes.get("iterations") or self.settings.scale.iterations
        allowed = [row["parameters"].get("iterations") for row in known["rows"].values()]
        enough = all(each >= wanted for each in allowed if each)
        return bool(known["victims"] >= victims and enough)

    def describe(self) -> dict[str, Any]:
        settings = self.settings
        images = "1 image" if self.batch == 1 else f"batches of {self.batch}"
        how = f"{images}, {settings.local.label}, {settings.weights.label} weights"
        return {"does": f"{settings.network.label}: {how}, {settings.server.label}"}
