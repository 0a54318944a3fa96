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
from keyhole.auditing.membership_truth import MembershipTruth, draw_truth
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

AttackerWithAttack = tuple[Attacker, MembershipAttack]


@dataclass(frozen=True)
class PlannedTrial:
    """One training and all who attack its model."""

    training: TargetTraining
    attackers: Sequence[AttackerWithAttack]

    @property
    def models(self) -> int:
        """The number of models to train: the target and the attackers' own."""
        return 1 + sum(attack.own_models for _, attack in self.attackers)


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

    Everything that does not fit is refused before anything is trained.

    Args:
        plan: The settings of the experiment.
        out: The run folder. Every model and every trial is saved there when it is finished: an
            interrupted run continues, to the same result (bit for bit on a CPU). None: nothing is
            saved.
        fresh: Whether to replace an earlier run in ``out``.
        data_dir: The folder of data sets that are not built in.
        device: The device to train on; None means the CPU.
        data: The images, in place of those that the plan names.
        defenses: The defenses, in place of those that the plan names.
        progress: Shows how far the experiment is.
    """
    images = data or load(plan.data, image_size=plan.image_size, data_dir=data_dir)
    place = device or torch.device("cpu")
    store = None if out is None else MembershipStore(out, plan.to_json())
    truth = draw_truth(images, plan, place)
    experiment = MembershipRun(plan, images, truth, place, progress or NullProgress(), store)
    attacks = plan.build_attacks()
    trials = [
        PlannedTrial(
            experiment.build_training(defense, epochs), list_attackers(attacks, defense, plan.views)
        )
        for defense in defenses or [DEFENSES.parse(text) for text in plan.defenses]
        for epochs in plan.attacked_epochs
    ]
    notes = dict.fromkeys(note for trial in trials for note in experiment.check_trial(trial))
    if store is not None:
        store.check(fresh=fresh)
    with nullcontext() if out is None else locked(out):
        found = experiment.run_trials(trials, fresh=fresh)
        counts = (len(truth.members), len(truth.others), len(truth.public))
        run = None if out is None else str(out)
        result = MembershipResult(plan, *counts, found, tuple(notes), run=run)
        if store is not None:
            store.conclude(result.to_json())
    return result


def list_attackers(
    attacks: Sequence[MembershipAttack], defense: Defense, views: int
) -> list[AttackerWithAttack]:
    """Every attack by a naive attacker, and by an adaptive one if knowing the defense helps it.

    An adaptive attacker trains its shadow models under the defense, and queries the model with
    images changed as clients change them.
    """
    found: list[AttackerWithAttack] = []
    for attack in attacks:
        found.append((Attacker.NAIVE, attack))
        changed = changes_images(defense)
        aware = replace(attack, views=attack.views or views) if changed else attack
        if not isinstance(defense, NoDefense) and (aware.own_models or (changed and aware.views)):
            found.append((Attacker.ADAPTIVE, aware))
    return found


@dataclass(frozen=True)
class MembershipRun:
    """A plan with its images loaded."""

    plan: MembershipPlan
    data: ImageSet
    truth: MembershipTruth
    device: torch.device
    progress: Progress
    store: MembershipStore | None = None

    def run_trials(self, trials: Sequence[PlannedTrial], *, fresh: bool) -> tuple[Trial, ...]:
        """Runs every trial that an earlier run has not finished."""
        if self.store is not None:
            self.store.begin(fresh=fresh)
        self.progress.begin(sum(trial.models for trial in trials))
        try:
            return tuple(self.load_or_run_trial(n, trial) for n, trial in enumerate(trials))
        except KeyholeError:
            if self.store is not None:
                self.store.discard_if_empty()
            raise

    def load_or_run_trial(self, number: int, trial: PlannedTrial) -> Trial:
        """A trial as an earlier run found it; if there is none, it is run and saved."""
        if self.store is None:
            return self.run_trial(trial)
        key = self.compute_key(trial)
        known = self.store.read_trial(number, key)
        if known is not None:
            self.progress.advance(trial.models)
            return known
        training = replace(trial.training, cache=self.store)
        found = self.run_trial(replace(trial, training=training))
        self.store.write_trial(number, key, found)
        return found

    def compute_key(self, trial: PlannedTrial) -> str:
        """Tells a trial from those with other images, trainings or attackers."""
        digest, training = hashlib.sha256(), trial.training
        names = [f"{attack} {attacker}" for attacker, attack in trial.attackers]
        facts = (str(training.defense), training.local, training.clients, training.rounds, names)
        digest.update(repr((facts, self.plan.model, training.mean, training.std)).encode())
        for part in (self.truth.members, self.truth.others, self.truth.public):
            digest.update(part.images.cpu().numpy().tobytes())
            digest.update(part.labels.cpu().numpy().tobytes())
        return digest.hexdigest()[:12]

    def build_model(self, seed: int) -> nn.Module:
        return build(
            self.plan.model,
            classes=len(self.data.classes),
            channels=self.data.shape[0],
            image_size=self.data.size,
            seed=seed,
        )

    def build_training(self, defense: Defense, epochs: int) -> TargetTraining:
        """How the target model and every shadow model are trained."""
        return TargetTraining(
            network=self.build_model,
            local=self.plan.build_training(epochs),
            mean=self.data.mean,
            std=self.data.std,
            defense=defense,
            clients=self.plan.clients,
            rounds=self.plan.count_rounds(epochs),
            device=self.device,
        )

    def build_problem(self, model: nn.Module, training: TargetTraining) -> MembershipProblem:
        """What an attacker who knows all about the training is given."""
        return MembershipProblem(
            model=Server(model).sent,
            candidates=self.truth.candidates,
            public=self.truth.public,
            training=training,
            members=len(self.truth.members),
            seed=derive(self.plan.seed, "attacker"),
        )

    def check_trial(self, trial: PlannedTrial) -> list[str]:
        """Raises if anything does not fit; returns notes for the reader."""
        training = trial.training
        model = training.network(0)
        training.defense.validate(model)
        notes = training.defense.caveats(model)
        problem = self.build_problem(model, training)
        for _, attack in trial.attackers:
            attack.check(problem)
            notes += attack.notes(problem)
        return notes

    def run_trial(self, trial: PlannedTrial) -> Trial:
        """Trains the target model and runs every attacker against it."""
        began, training = time.perf_counter(), trial.training
        self.progress.show(f"{training.defense}: the model trains")
        seed = derive(self.plan.seed, "target")
        (model,) = next(training.train_models([self.truth.members], [seed], self.progress.advance))
        seconds = time.perf_counter() - began
        problem = self.build_problem(model, training)
        others = self.truth.others.concatenate(self.truth.public)
        train_accuracy, train_loss = evaluate(problem, self.truth.members)
        test_accuracy, test_loss = evaluate(problem, others)
        spec = training.defense.spec
        return Trial(
            defense={"name": spec.name, "parameters": make_recordable(spec.parameters)},
            epochs=training.rounds * (training.local.epochs or 1),
            train_accuracy=train_accuracy,
            test_accuracy=test_accuracy,
            train_loss=train_loss,
            test_loss=test_loss,
            seconds=seconds,
            inferences=tuple(self.run_attacker(problem, *each) for each in trial.attackers),
        )

    def run_attacker(
        self, problem: MembershipProblem, attacker: Attacker, attack: MembershipAttack
    ) -> Inference:
        """Lets one attacker guess, and measures how well it did."""
        began = time.perf_counter()
        self.progress.show(f"{problem.training.defense}: {attack.name} ({attacker})")
        if attacker is Attacker.NAIVE:
            problem = replace(problem, training=problem.training.undefended())
        members, others = self.truth.split_scores(attack(problem, self.progress.advance))
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


def evaluate(problem: MembershipProblem, images: LabelledImages) -> tuple[float, float]:
    """Accuracy and mean loss of the target model on images as they are."""
    logits = problem.query([problem.model], images, 0)[0, 0]
    right = logits.argmax(1) == images.labels
    loss = cross_entropy(confidence(logits, images.labels))
    return float(right.double().mean()), float(loss.mean())
