"""Membership inference as an experiment: train on some images, then ask who was among them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from keyhole.attacks.membership import (
    LabelledImages,
    MembershipAttack,
    MembershipProblem,
    TargetTraining,
)
from keyhole.attacks.membership.base import confidence, cross_entropy
from keyhole.attacks.membership.target_training import changes_images
from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.auditing.membership_result import Inference, MembershipResult, Trial
from keyhole.auditing.membership_store import MembershipStore
from keyhole.auditing.membership_truth import Truth, drawn
from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES, Defense, NoDefense
from keyhole.errors import KeyholeError
from keyhole.lock import locked
from keyhole.metrics import membership as metrics
from keyhole.models import build
from keyhole.parameters import make_recordable, read_parameters
from keyhole.progress import NullProgress, Progress
from keyhole.seeds import derive
from keyhole.threat import Attacker, Server

__all__ = [
    "Inference",
    "MembershipPlan",
    "MembershipResult",
    "Trial",
    "drawn",
    "infer_membership",
]

AttackRun = tuple[Attacker, MembershipAttack]


def infer_membership(
    plan: MembershipPlan,
    *,
    out: Path | None = None,
    fresh: bool = False,
    data_dir: str | None = None,
    device: torch.device | None = None,
    data: ImageSet | None = None,
    defenses: Sequence[Defense] | None = None,
    progress: Progress | None = None,
) -> MembershipResult:
    """Trains a model under each defense and lets every attacker guess who was a member.

    Objects given take the place of the plan's names. Everything that cannot fit is said before
    anything is trained. With a folder ``out`` every model and every trial is kept as it gets done:
    an interrupted run goes on there, to the same result (bit for bit on a CPU).
    """
    found = data or load(plan.data, image_size=plan.image_size, data_dir=data_dir)
    place = device or torch.device("cpu")
    store = None if out is None else MembershipStore(out, plan.model_dump(mode="json"))
    truth = drawn(found, plan, place)
    experiment = MembershipRun(plan, found, truth, place, progress or NullProgress(), store)
    attacks = plan.attackers()
    tables = [
        (experiment.make_training(defense, epochs), rows_of(attacks, defense, plan.views))
        for defense in defenses or [DEFENSES.parse(text) for text in plan.defenses]
        for epochs in plan.stops
    ]
    notes = dict.fromkeys(note for table in tables for note in experiment.checked(*table))
    if store is not None:
        store.check(fresh=fresh)
    with nullcontext() if out is None else locked(out):
        trials = experiment.trials(tables, fresh=fresh)
        counts = (len(truth.members), len(truth.others), len(truth.public))
        run = None if out is None else str(out)
        result = MembershipResult(plan, *counts, trials, tuple(notes), run=run)
        if store is not None:
            store.conclude(result.to_json())
    return result


def rows_of(attacks: Sequence[MembershipAttack], defense: Defense, views: int) -> list[AttackRun]:
    """Every attack by one who does not know the defense, and by one who does where that tells.

    Who knows it trains shadow models under it, and looks at views such as clients train on.
    """
    found: list[AttackRun] = []
    for attack in attacks:
        found.append((Attacker.NAIVE, attack))
        seen = changes_images(defense)
        aware = replace(attack, views=attack.views or views) if seen else attack
        if not isinstance(defense, NoDefense) and (aware.own_models or (seen and aware.views)):
            found.append((Attacker.ADAPTIVE, aware))
    return found


@dataclass(frozen=True)
class MembershipRun:
    """A plan with its images at hand."""

    plan: MembershipPlan
    data: ImageSet
    truth: Truth
    device: torch.device
    progress: Progress
    store: MembershipStore | None = None

    def trials(
        self, tables: Sequence[tuple[TargetTraining, Sequence[AttackRun]]], *, fresh: bool
    ) -> tuple[Trial, ...]:
        """Every trial; of an earlier run, what it had done is taken up."""
        if self.store is not None:
            self.store.begin(fresh=fresh)
        self.progress.begin(sum(models_of(rows) for _, rows in tables))
        try:
            return tuple(self.kept_trial(n, *table) for n, table in enumerate(tables))
        except KeyholeError:
            if self.store is not None:
                self.store.discard_if_empty()
            raise

    def kept_trial(self, number: int, training: TargetTraining, rows: Sequence[AttackRun]) -> Trial:
        """A trial, or what an earlier run found in it."""
        if self.store is None:
            return self.trial(training, rows)
        key = self.key(training, rows)
        known = self.store.trial(number, key)
        if known is not None:
            self.progress.advance(models_of(rows))
            return known
        found = self.trial(replace(training, cache=self.store), rows)
        self.store.keep_trial(number, key, found)
        return found

    def key(self, training: TargetTraining, rows: Sequence[AttackRun]) -> str:
        """Tells a trial from those of other images, trainings and attackers."""
        digest = hashlib.sha256()
        attackers = [f"{attack} {attacker}" for attacker, attack in rows]
        facts = (
            str(training.defense),
            training.local,
            training.clients,
            training.rounds,
            attackers,
        )
        digest.update(repr((facts, self.plan.model, training.mean, training.std)).encode())
        for part in (self.truth.members, self.truth.others, self.truth.public):
            digest.update(part.images.cpu().numpy().tobytes())
            digest.update(part.labels.cpu().numpy().tobytes())
        return digest.hexdigest()[:12]

    def network(self, seed: int) -> nn.Module:
        return build(
            self.plan.model,
            classes=len(self.data.classes),
            channels=self.data.shape[0],
            image_size=self.data.size,
            seed=seed,
        )

    def make_training(self, defense: Defense, epochs: int) -> TargetTraining:
        """How the target model and every shadow model are trained for so many epochs."""
        return TargetTraining(
            network=self.network,
            local=self.plan.training(epochs),
            mean=self.data.mean,
            std=self.data.std,
            defense=defense,
            clients=self.plan.clients,
            rounds=self.plan.rounds(epochs),
            device=self.device,
        )

    def make_problem(self, model: nn.Module, training: TargetTraining) -> MembershipProblem:
        """What an attacker who knows everything about the training is given."""
        return MembershipProblem(
            model=Server(model).sent,
            candidates=self.truth.candidates,
            public=self.truth.public,
            training=training,
            members=len(self.truth.members),
            seed=derive(self.plan.seed, "attacker"),
        )

    def checked(self, training: TargetTraining, rows: Sequence[AttackRun]) -> list[str]:
        """What a reader should know of these rows; raises where anything does not fit."""
        model = training.network(0)
        training.defense.validate(model)
        notes = training.defense.caveats(model)
        problem = self.make_problem(model, training)
        for _, attack in rows:
            attack.check(problem)
            notes += attack.notes(problem)
        return notes

    def trial(self, training: TargetTraining, rows: Sequence[AttackRun]) -> Trial:
        """Trains the model under attack and lets every attacker at it."""
        began = time.perf_counter()
        self.progress.show(f"{training.defense}: the model trains")
        seed = derive(self.plan.seed, "target")
        (model,) = next(training.train_models([self.truth.members], [seed], self.progress.advance))
        spent = time.perf_counter() - began
        problem = self.make_problem(model, training)
        ours = performance(problem, self.truth.members)
        theirs = performance(problem, self.truth.others.concatenate(self.truth.public))
        spec = training.defense.spec
        return Trial(
            defense={"name": spec.name, "parameters": make_recordable(spec.parameters)},
            epochs=training.rounds * (training.local.epochs or 1),
            train_accuracy=ours[0],
            test_accuracy=theirs[0],
            train_loss=ours[1],
            test_loss=theirs[1],
            seconds=spent,
            inferences=tuple(self.inference(problem, *row) for row in rows),
        )

    def inference(
        self, problem: MembershipProblem, attacker: Attacker, attack: MembershipAttack
    ) -> Inference:
        """Lets one attacker guess, and tells how well it did."""
        began = time.perf_counter()
        self.progress.show(f"{problem.training.defense}: {attack.name} ({attacker})")
        if attacker is Attacker.NAIVE:
            problem = replace(problem, training=problem.training.undefended())
        members, others = self.truth.apart(attack(problem, self.progress.advance))
        curve = metrics.roc(members, others)
        low, high = metrics.auc_interval(members, others, seed=self.plan.seed)
        known = None if attacker is Attacker.NAIVE else str(problem.training.defense.spec)
        return Inference(
            attack=attack.label,
            attack_parameters=make_recordable(read_parameters(attack)),
            attacker=attacker,
            knowledge=attack.knowledge(problem) | {"defense": known},
            auc=metrics.auc(members, others),
            auc_low=low,
            auc_high=high,
            balanced_accuracy=metrics.balanced_accuracy(curve),
            rates=tuple(metrics.rate_at(curve, limit) for limit in metrics.LIMITS),
            roc=tuple(curve.plot_points()),
            seconds=time.perf_counter() - began,
        )


def models_of(rows: Sequence[AttackRun]) -> int:
    """How many models a trial trains: the one under attack and the attackers' own."""
    return 1 + sum(attack.own_models for _, attack in rows)


def performance(problem: MembershipProblem, images: LabelledImages) -> tuple[float, float]:
    """Accuracy and mean loss of the model under attack on images as they are."""
    logits = problem.query([problem.model], images, 0)[0, 0]
    right = logits.argmax(1) == images.labels
    loss = cross_entropy(confidence(logits, images.labels))
    return float(right.double().mean()), float(loss.mean())
