"""One call on one's own gradient: what can be seen of the images behind it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from keyhole.attacks import (
    ATTACKS,
    CLOSED_FORM,
    Attack,
    DiaRead,
    LabelInference,
    Matching,
    Reconstruction,
)
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.auditing.client_mode import choose_mode, keeps_statistics, used_batch_statistics
from keyhole.auditing.client_normalisation import attack_by_best_fit
from keyhole.auditing.guard import choose_iterative, name_missing
from keyhole.auditing.plan import AUTO
from keyhole.auditing.time_budget import limit_iterations
from keyhole.data import Normalisation
from keyhole.defenses import DEFENSES, Defense
from keyhole.errors import BadUpdate, BadValue, DoesNotFit, KeyholeError
from keyhole.mean_and_std import check_mean_and_std, parse_deviations, parse_means
from keyhole.models.building import count_logits
from keyhole.settings import ClientMode, parse_mode
from keyhole.threat import Knowledge, Observation, Server
from keyhole.update import Update

Gradient = Mapping[str, Tensor | None] | Sequence[Tensor | None] | Update
SURE = 0.9
"""Mean confidence from which no further attack is tried."""
PROBE = 50
"""Iterations after which two modes are compared by their losses."""


@dataclass(frozen=True)
class TriedAttack:
    """An attack that ``auto`` has tried, or why it has not."""

    attack: str
    client_mode: ClientMode
    confidence: float | None = None
    """The mean over the client's images of what the attack itself believes; None: not tried."""
    why_not: str = ""


@dataclass(frozen=True)
class GradientAttackResult(Reconstruction):
    """What an attack saw: model inputs in ``images``, the same in [0, 1] in ``pixels``."""

    pixels: Tensor | None = None
    """``[n, C, H, W]`` in [0, 1]; None where nothing was seen."""
    attack: str = ""
    """The attack that saw it; empty where none saw anything."""
    client_mode: ClientMode = "train"
    """The mode that the client is taken to have been in."""
    tried: tuple[TriedAttack, ...] = ()


def attack_gradient(
    model: nn.Module,
    gradient: Gradient | None = None,
    *,
    image_shape: tuple[int, int, int],
    attack: str | Attack = AUTO,
    labels: Tensor | Sequence[int] | None = None,
    batch_size: int | None = None,
    classes: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    client_mode: ClientMode | None = None,
    defense: str | Defense | None = None,
    iterations: int | None = None,
    seed: int = 0,
) -> GradientAttackResult:
    """Reconstructs the images that a gradient was computed from.

    What is not given is inferred or assumed, and the result's ``notes`` say so.

    >>> from torch.nn.functional import cross_entropy
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> secret = torch.rand(1, 1, 8, 8)
    >>> cross_entropy(model(secret), torch.tensor([3])).backward()
    >>> result = attack_gradient(model, image_shape=(1, 8, 8))
    >>> result.attack, bool(torch.allclose(result.pixels.float(), secret, atol=1e-3))
    ('linear', True)

    Args:
        model: The model with the weights that the gradient was taken at.
        gradient: As ``torch.autograd.grad`` returns it, or by parameter name, or an
            :class:`~keyhole.Update` of several steps; None means the parameters' ``.grad``.
        image_shape: Channels, height and width of one image.
        attack: The attack, or its name; ``auto`` tries closed forms first, then iterative
            attacks, and returns the result of greatest confidence.
        labels: The images' classes, if they are known.
        batch_size: How many images there were; None means one for each label.
        classes: The number of classes; None means one for each logit.
        mean: The mean that was subtracted from pixels in [0, 1]: one number, or one per channel.
            None means that pixels were fed as they are, unless what is found fits another
            normalisation better.
        std: The standard deviation that they were divided by; given with ``mean``.
        client_mode: ``train``, ``eval`` or ``frozen-norm``: the mode that the model was in. None
            means that it is inferred from the gradient, or else the mode of least loss is taken.
        defense: The defense that the gradient went through, or its name; the attacker knows it.
        iterations: Iterations of iterative attacks; None means as many as each one's default.
        seed: Seed of iterative attacks' first guesses.
    """
    update, notes = read_gradient(model, gradient, labels, batch_size)
    normalisation = read_normalisation(mean, std, image_shape[0])
    knowledge = Knowledge(
        shape=image_shape,
        classes=classes or count_logits(model, type(model).__name__, image_shape),
        mean=normalisation.mean,
        std=normalisation.std,
        batch_size=update.examples,
        labels=None if labels is None else torch.as_tensor(labels, dtype=torch.long),
        defense=None if defense is None else DEFENSES.resolve(defense),
    )
    search = Search(
        Server(model).receive(update, knowledge),
        said_mode=None if client_mode is None else parse_mode(client_mode),
        assumed=normalisation if mean is None else None,
        notes=notes,
    )
    if attack == AUTO:
        search.try_all(iterations, seed)
    else:
        chosen = ATTACKS.resolve(attack)
        named = isinstance(attack, str)
        search.run(tune(chosen, search.seen, iterations, seed) if named else chosen)
    return search.conclude()


@dataclass
class Search:
    """The attacks tried on one observation, and the best of what they found."""

    seen: Observation
    said_mode: ClientMode | None
    assumed: Normalisation | None
    """The normalisation that is assumed where the user gave none."""
    notes: list[str] = field(default_factory=list)
    tried: list[TriedAttack] = field(default_factory=list)
    best: GradientAttackResult | None = None
    score: float = -1.0
    by_batch: bool | None = None
    """Whether batch norms are taken to go by the batch; None: not yet known."""

    def __post_init__(self) -> None:
        self.norms = keeps_statistics(self.seen.model)
        self.drops = bool(MatchingProblem.from_observation(self.seen).sites)
        if self.said_mode is None and self.norms and self.seen.knowledge.defense is None:
            self.by_batch = used_batch_statistics(self.seen.model, self.seen.update)
            if self.by_batch is not None:
                which = "the batch's own" if self.by_batch else "their running"
                self.notes.append(
                    f"client_mode was not given: the gradient shows that batch norms used {which} "
                    "statistics"
                )

    def try_all(self, iterations: int | None, seed: int) -> None:
        """Tries closed forms, then iterative attacks, until one is sure of what it sees."""
        closed = [member() for member in CLOSED_FORM if member.altered_model is None]
        knowledge = self.seen.knowledge
        later: list[Attack] = [*choose_iterative(knowledge.defense, knowledge.shape)]
        if self.drops and self.said_mode != "eval":
            later.append(DiaRead())
        wanted = [a for a in closed if a.reads_images and a.reads_update]
        for attack in (*wanted, *(tune(a, self.seen, iterations, seed) for a in later)):
            if self.score >= SURE:
                return
            try:
                self.run(attack)
            except KeyholeError as error:
                mode = self.said_mode or "train"
                self.tried.append(TriedAttack(attack.label, mode, why_not=str(error)))

    def run(self, attack: Attack) -> None:
        """Runs one attack in the mode that fits; raises where it does not apply."""
        mode = self.mode_for(attack)
        found, by = self.reconstruct(attack, self.in_mode(mode))
        trust = 0.0 if found.confidence is None else float(found.confidence.double().sum())
        score = trust / self.seen.knowledge.batch_size
        self.tried.append(TriedAttack(attack.label, mode, round(score, 4)))
        if found.images is not None and len(found.images) and score > self.score:
            pixels = by.pixels(found.images.double()).clamp(0, 1).to(found.images)
            facts = {name: getattr(found, name) for name in Reconstruction.__dataclass_fields__}
            self.best = GradientAttackResult(
                **facts, pixels=pixels, attack=attack.label, client_mode=mode
            )
            self.score = score

    def reconstruct(
        self, attack: Attack, seen: Observation
    ) -> tuple[Reconstruction, Normalisation]:
        """What an attack finds, and by which normalisation that becomes pixels."""
        if self.assumed is None or not attack.recovers_inputs:
            return attack(seen), Normalisation(seen.knowledge.mean, seen.knowledge.std)
        exact = seen.knowledge.defense is None
        return next(
            attack_by_best_fit(attack, [seen], NullCheckpointer(), self.assumed, exact=exact)
        )

    def in_mode(self, mode: ClientMode) -> Observation:
        return replace(self.seen, knowledge=replace(self.seen.knowledge, client_mode=mode))

    def mode_for(self, attack: Attack) -> ClientMode:
        """The mode said, shown by the gradient, or of least loss for this attack."""
        if self.said_mode is not None:
            return self.said_mode
        if not (self.norms or self.drops):
            return "train"
        drops = isinstance(attack, Matching) and attack.masks != "ignored"
        if self.norms and self.by_batch is None and isinstance(attack, Matching):
            self.by_batch = self.compare_modes(attack, drops=drops)
        return choose_mode(batch_statistics=self.by_batch is True, norms=self.norms, drops=drops)

    def compare_modes(self, attack: Matching, *, drops: bool) -> bool:
        """Whether an attack's loss is less after a few iterations with batch statistics."""
        probe = limit_iterations(replace(attack, iterations=max(PROBE, attack.iterations)), PROBE)
        losses = {}
        for by_batch in (False, True):
            mode = choose_mode(batch_statistics=by_batch, norms=True, drops=drops)
            found = probe(self.in_mode(mode))
            losses[by_batch] = found.diagnostics["loss"] if found.images is not None else torch.inf
        better = losses[True] < losses[False]
        which = "the batch's own" if better else "their running"
        self.notes.append(
            f"client_mode was not given: with batch norms that use {which} statistics the loss of "
            f"{attack.name} is less ({min(losses.values()):.3g} against "
            f"{max(losses.values()):.3g} after {PROBE} iterations)"
        )
        return better

    def conclude(self) -> GradientAttackResult:
        """The best result, with all that was tried and assumed."""
        best = self.best or GradientAttackResult(client_mode=self.said_mode or "train")
        notes = [*self.notes, *best.notes]
        if self.said_mode is None and (self.norms or self.drops):
            matters = " and ".join(["batch norms"] * self.norms + ["dropout"] * self.drops)
            notes.append(
                f"client_mode was not given, and the model has {matters}: {best.client_mode} is "
                "assumed; if it was another, pass it, for attacks look weaker than they are"
            )
        if self.assumed is not None:
            notes.append(
                "mean and std were not given: pixels in [0, 1] are assumed to be fed as they are, "
                "unless a note says otherwise"
            )
        return replace(best, notes=tuple(notes), tried=tuple(self.tried))


def tune(attack: Attack, seen: Observation, iterations: int | None, seed: int) -> Attack:
    """The attack with these settings; where labels are not known, it infers or seeks them."""
    if not isinstance(attack, Matching):
        return attack
    attack = replace(attack, seed=seed, iterations=iterations or attack.iterations)
    if attack.labels != "given" or seen.knowledge.labels is not None:
        return attack
    inference = LabelInference()
    unfit = inference.incompatibilities(seen) or name_missing(inference, seen)
    return replace(attack, labels="sought" if unfit else "inferred")


def read_gradient(
    model: nn.Module,
    gradient: Gradient | None,
    labels: Tensor | Sequence[int] | None,
    batch_size: int | None,
) -> tuple[Update, list[str]]:
    """What was handed in as an update of so many images, and what was assumed of it."""
    count = None if labels is None else len(labels)
    if batch_size is not None and count not in (None, batch_size):
        raise BadValue(f"batch_size is {batch_size}, but there are {count} labels")
    images = batch_size or count
    if isinstance(gradient, Update):
        update = gradient.check_against(model.state_dict())
        return (update if images is None else replace(update, examples=images)), []
    if gradient is None:
        gradient = {name: parameter.grad for name, parameter in model.named_parameters()}
        if all(g is None for g in gradient.values()):
            raise BadUpdate("no parameter has a gradient: call loss.backward(), or pass gradients")
    notes = [] if images else ["batch_size was not given: a single image is assumed"]
    return Update.from_gradient(gradient, model=model, batch_size=images or 1), notes


def read_normalisation(
    mean: float | Sequence[float] | None, std: float | Sequence[float] | None, channels: int
) -> Normalisation:
    """Mean and std of each channel; pixels as they are where neither is given."""
    check_mean_and_std(mean, std)
    if mean is None:
        return Normalisation((0.0,) * channels, (1.0,) * channels)
    means, deviations = parse_means(mean), parse_deviations(std)
    for name, values in (("mean", means), ("std", deviations)):
        if len(values) not in (1, channels):
            raise DoesNotFit(f"{name} has {len(values)} numbers for images of {channels} channels")
    return Normalisation(
        means * channels if len(means) == 1 else means,
        deviations * channels if len(deviations) == 1 else deviations,
    )
