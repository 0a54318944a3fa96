"""A stage with its names resolved: the model, the images, who is a victim and what is public."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from keyhole.attacks import Attack
from keyhole.auditing.client_normalisation import note_assumption
from keyhole.auditing.plan import AUTO, Stage
from keyhole.auditing.stage_attacks import choose_attacks, configure_attack, drop_duplicates
from keyhole.auditing.step_orders import MAX_ORDERS, count_orders, note_orders
from keyhole.auditing.trained_clients import TrainedClients
from keyhole.auditing.warm_up import WarmedUp, warm_up
from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES, Defense, NoDefense
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.metrics import ImageMetric, Metric, choose_metrics
from keyhole.metrics.image import UNIFORM_WINDOW
from keyhole.models import build
from keyhole.models.building import check_logits
from keyhole.models.fine_tuning import fine_tune
from keyhole.models.modes import (
    default_mode,
    find_trained_parameters,
    has_batch_norm,
    is_partly_frozen,
)
from keyhole.models.weights import fill_defense_weights, read_defense_weights
from keyhole.optimisers import PLAIN_SGD, LocalOptimiser, describe_settings
from keyhole.seeds import generator
from keyhole.settings import ClientMode
from keyhole.threat import Attacker, Knowledge, PublicKnowledge, Server

PUBLIC = 128
"""Public images that the null baselines and the gallery may use, at most."""
FINGERPRINTED = 8
"""Victims whose images count in a stage's fingerprint."""
ONE_IMAGE = (
    "batches of one image: batch norms keep to their running statistics (--client-mode train: to "
    "that image's own, by which iterative attacks find next to nothing)"
)
OWN_BATCH = (
    "batch norms go by each batch's own statistics, by which iterative attacks find next to "
    "nothing: --client-mode frozen-norm where clients freeze them"
)


@dataclass(frozen=True)
class ResolvedStage:
    """A stage with the objects behind its names.

    Args:
        stage: The stage; its ``client_mode`` is never None.
        model: The global model, before a defense prepares it.
        data: The image set of victims and public images.
        defenses: The defenses, each once.
        attacks: The attacks, each once.
        attacks_named: Whether the user named the attacks.
        victims: Image indices of each client's batch.
        public: Indices of the public images.
        seed: Seed of weights, victims and noise.
        fingerprint: Tells these weights and images from others of the same names.
        metrics: The metrics that the user adds.
        label: What reports call the images; None: the name of the data set.
        scored: Whether the truth is known.
        orders: In how many ways a client may have divided its images among its local steps.
        optimiser: How clients turn gradients into steps; None: unknown.
        rounds_seen: Captured rounds of a client up to the one that is attacked.
        reported: The parameters that clients report; None: all.
        reported_buffers: The running statistics that captured clients report; None: all.
        defense_weights: Weights from the file that belong to what a defense adds to the model.
        notes: What a reader should know about how clients ran the model.
        warm_up_notes: How the model was trained under each defense, where it was.
        assumed_normalisation: Whether the mean and std of the clients are only assumed.
        clients_did: How captured clients trained, in words; ``stage`` holds what attacks assume.
        training_known: Whether captured clients trained exactly as attacks assume.
        altered_model: What the server of a captured folder changed in the model, in words; None:
            nothing.
        trained: Clients whose training several defenses have in common.
    """

    stage: Stage
    model: nn.Module
    data: ImageSet
    defenses: tuple[Defense, ...]
    attacks: tuple[Attack, ...]
    attacks_named: bool
    victims: tuple[tuple[int, ...], ...]
    public: tuple[int, ...]
    seed: int
    fingerprint: str
    metrics: tuple[ImageMetric, ...] = ()
    label: str | None = None
    scored: bool = True
    orders: int = 1
    optimiser: LocalOptimiser | None = PLAIN_SGD
    rounds_seen: int = 1
    reported: frozenset[str] | None = None
    reported_buffers: frozenset[str] | None = None
    defense_weights: Mapping[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warm_up_notes: dict[str, str] = field(default_factory=dict)
    assumed_normalisation: bool = False
    clients_did: str = ""
    training_known: bool = True
    altered_model: str | None = None
    trained: TrainedClients = field(default_factory=TrainedClients, compare=False)

    def prepare_model(self, defense: Defense) -> nn.Module:
        """The global model under a defense, with the weights it was trained with, if any."""
        prepared = fill_defense_weights(
            defense.prepare_model(self.model), self.defense_weights, str(self.stage.weights)
        )
        if not (self.stage.warm_up and self.stage.warm_up_defended):
            return prepared
        warmed = self.warm_up(prepared, defense)
        self.warm_up_notes[str(defense)] = warmed.note
        return warmed.model

    def note_warm_up(self, defense: Defense) -> tuple[str, ...]:
        """How the model was trained under this defense before the attack, if it was."""
        note = self.warm_up_notes.get(str(defense))
        return () if note is None else (note,)

    def warm_up(self, model: nn.Module, defense: Defense) -> WarmedUp:
        """The model after the rounds that the stage asks for, under a defense."""
        return warm_up(
            model,
            self.stage,
            self.data,
            defense=defense,
            mode=self.mode,
            victims=self.victims,
            seed=self.seed,
        )

    def configure(self, attack: Attack) -> Attack:
        """The attack with this stage's settings."""
        return configure_attack(attack, self.stage, labels_known=self.scored, orders=self.orders)

    @property
    def mode(self) -> ClientMode:
        return self.stage.client_mode or "train"

    @property
    def training(self) -> LocalTraining:
        return plan_training(self.stage, self.mode)

    def find_trained(self, server: Server | None) -> frozenset[str] | None:
        """The parameters that clients train; None: all."""
        if self.reported is not None:
            return self.reported
        if server is None or len(server.reported) == sum(1 for _ in server.sent.parameters()):
            return None
        return server.reported

    def labels_of(self, victim: int) -> Tensor:
        """The labels of one victim's images."""
        return self.data.labels[list(self.victims[victim])]

    def build_public_knowledge(self) -> PublicKnowledge:
        """What the server knows before any client has replied."""
        return PublicKnowledge(
            shape=self.data.shape,
            classes=len(self.data.classes),
            images=self.data.normalise(self.data.images(self.public)),
            batch_size=self.stage.batch_size,
            steps=self.stage.steps,
            clients=self.stage.aggregate,
            lr=self.stage.lr,
            step_images=self.stage.local_batch_size,
        )

    def build_knowledge(
        self,
        defense: Defense,
        attack: Attack,
        attacker: Attacker,
        labels: Tensor,
        masks: Sequence[Tensor] = (),
        intercepted: Sequence[Tensor] = (),
    ) -> Knowledge:
        """What this attacker knows about a client with these labels, masks and images."""
        given = attack.given
        return Knowledge(
            shape=self.data.shape,
            classes=len(self.data.classes),
            mean=self.data.mean,
            std=self.data.std,
            batch_size=self.stage.images_per_update,
            clients=self.stage.aggregate,
            labels=labels.clone() if "labels" in given else None,
            masks=tuple(m.clone() for m in masks) if "masks" in given else None,
            intercepted=tuple(i.clone() for i in intercepted) if "intercepted" in given else None,
            client_mode=self.mode,
            optimiser=self.optimiser,
            orders=self.orders,
            defense=defense if attacker is not Attacker.NAIVE else None,
            adaptive=attacker is Attacker.ADAPTIVE,
            checkpoint_epoch=self.stage.checkpoint_epoch,
            rounds=max(self.stage.repeats, self.rounds_seen),
            altered_model=attack.altered_model or self.altered_model,
        )


def resolve_stage(
    stage: Stage,
    *,
    seed: int,
    data_dir: str | None = None,
    device: torch.device | None = None,
    model: nn.Module | None = None,
    data: ImageSet | None = None,
    defenses: Sequence[Defense] | None = None,
    attacks: Sequence[Attack] | None = None,
    metrics: Sequence[str | Metric] | None = None,
) -> ResolvedStage:
    """Resolves a stage's names; objects given take the place of names."""
    training = plan_training(stage, "train")
    steps = training.count_steps(stage.batch_size)
    images = _load_images(stage, data, data_dir)
    network = _load_model(stage, model, images, seed)
    weights = stage.weights if model is None else None
    victims, public = choose_victims(images, stage.victims, stage.images_per_update, seed)
    mode = stage.client_mode or default_mode(network, training.batch_size_for(stage.batch_size))
    network = network.to(device or torch.device("cpu"))
    warmed = None
    if stage.warm_up and not stage.warm_up_defended:
        warmed = warm_up(
            network, stage, images, defense=NoDefense(), mode=mode, victims=victims, seed=seed
        )
        network = warmed.model
    orders = count_step_orders(training, stage)
    return ResolvedStage(
        stage=stage.model_copy(update={"client_mode": mode, "steps": steps}),
        model=network,
        data=images,
        defenses=drop_duplicates(defenses or [DEFENSES.parse(text) for text in stage.defenses]),
        attacks=drop_duplicates(
            [configure_attack(a, stage, orders=orders) for a in attacks or choose_attacks(stage)]
        ),
        attacks_named=attacks is not None or stage.attacks != (AUTO,),
        victims=victims,
        public=public,
        seed=seed,
        fingerprint=compute_fingerprint(network, images, victims),
        orders=orders,
        optimiser=training.read_optimiser(),
        clients_did=describe_steps(training, stage.batch_size),
        metrics=resolve_metrics(stage.metrics if metrics is None else metrics, images),
        defense_weights={} if weights is None else read_defense_weights(weights),
        notes=(
            *note_assumption(stage, images, own_model=model is not None and data is None),
            *describe_batch_norms(network, mode, mode_given=stage.client_mode is not None),
            *note_orders(orders, steps),
            *note_shared(network, stage.share),
            *(() if warmed is None else (warmed.note,)),
        ),
    )


def note_shared(model: nn.Module, share: str | None) -> tuple[str, ...]:
    """How much of a model clients train and send, where it is not all of it."""
    if share is None or not is_partly_frozen(model):
        return ()
    trained = sum(weight.numel() for weight in find_trained_parameters(model).values())
    every = sum(weight.numel() for weight in model.parameters())
    return (f"clients train and send {share}: {trained:,} of {every:,} parameters",)


def plan_training(stage: Stage, mode: ClientMode) -> LocalTraining:
    """How the clients of a stage train."""
    training = LocalTraining(
        stage.steps,
        stage.lr,
        mode,
        epochs=stage.epochs,
        batch_size=stage.local_batch_size,
        optimiser=stage.optimiser,
    )
    if stage.lr is None:
        if not training.read_optimiser().is_plain:
            raise DoesNotFit(
                f"clients that share a gradient use no {stage.optimiser}: pass --lr, by which they "
                "share weights"
            )
        if training.batch_size_for(stage.batch_size) < stage.batch_size:
            raise DoesNotFit("several local batches need a learning rate: pass --lr")
    return training


def count_step_orders(training: LocalTraining, stage: Stage) -> int:
    """In how many ways a client may have divided its images; in a secure sum, a lower bound."""
    batch, steps = training.batch_size_for(stage.batch_size), training.count_steps(stage.batch_size)
    orders = count_orders(stage.batch_size, batch, steps)
    return orders if stage.aggregate == 1 or orders == 1 else max(orders**2, MAX_ORDERS + 1)


def describe_steps(training: LocalTraining, images: int) -> str:
    """How clients took their steps, in words; empty where it is plain SGD on all images.

    >>> describe_steps(LocalTraining(lr=0.1, epochs=2, batch_size=2, momentum=0.9), images=5)
    '4 steps of sgd, lr 0.1, momentum 0.9 (2 epochs in batches of 2)'
    """
    optimiser, batch = training.read_optimiser(), training.batch_size_for(images)
    if training.lr is None or (optimiser.is_plain and training.epochs is None and batch == images):
        return ""
    steps = training.count_steps(images)
    words = [f"{steps} {'step' if steps == 1 else 'steps'} of {optimiser.name}"]
    words += [f"lr {training.lr:g}", *describe_settings(optimiser)]
    epochs = training.epochs
    length = "" if epochs is None else f"{epochs} {'epoch' if epochs == 1 else 'epochs'} in "
    return f"{', '.join(words)} ({length}batches of {batch})"


def _load_images(stage: Stage, data: ImageSet | None, data_dir: str | None) -> ImageSet:
    images = data or load(stage.data, image_size=stage.image_size, data_dir=data_dir)
    if stage.mean is not None and stage.std is not None:
        images = images.with_normalisation(stage.mean, stage.std)
    if min(images.size) < UNIFORM_WINDOW:
        raise DoesNotFit(
            f"images of {min(images.size)} px are too small to judge: pass --image-size "
            f"{UNIFORM_WINDOW} or more"
        )
    return images


def _load_model(stage: Stage, model: nn.Module | None, data: ImageSet, seed: int) -> nn.Module:
    if model is not None:
        own = copy.deepcopy(model)
        check_logits(own, stage.model, data.shape, len(data.classes))
        return fine_tune(own, stage.share)
    built = build(
        stage.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
        weights=stage.weights,
    )
    return fine_tune(built, stage.share)


def resolve_metrics(chosen: Sequence[str | Metric], data: ImageSet) -> tuple[ImageMetric, ...]:
    """The metrics that the user adds, each tried on an image so that a bad one fails early."""
    found = choose_metrics(chosen)
    image = data.images([0]).double()
    for metric in found:
        metric.measure(image, image)
    return found


def describe_batch_norms(
    model: nn.Module, mode: ClientMode, *, mode_given: bool
) -> tuple[str, ...]:
    """What a reader should know about batch norms, and the mode if it was not given."""
    if mode == "train":
        return (OWN_BATCH,) if has_batch_norm(model) else ()
    return () if mode_given else (ONE_IMAGE,)


def choose_victims(
    data: ImageSet, victims: int, batch_size: int, seed: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Image indices of each victim's batch, and of the public images; the two never overlap."""
    wanted = victims * batch_size
    if wanted > len(data):
        raise DoesNotFit(
            f"data set {data.name!r} has {len(data)} images; {victims} victims of {batch_size} "
            f"need {wanted}: pass fewer --victims or a smaller --batch-size"
        )
    shuffled = torch.randperm(len(data), generator=generator(seed, "victims")).tolist()
    order = list(range(len(data))) if data.curated else shuffled
    private = order[:wanted]
    batches = tuple(tuple(private[i : i + batch_size]) for i in range(0, wanted, batch_size))
    group = list(range(len(data))) if data.groups is None else data.groups.tolist()
    taken = {group[i] for i in private}
    public = [i for i in shuffled if group[i] not in taken]
    return batches, tuple(public[:PUBLIC])


def compute_fingerprint(
    model: nn.Module,
    data: ImageSet,
    victims: Sequence[Sequence[int]],
    update_digests: Sequence[str] = (),
) -> str:
    """Eight hex digits of weights, captured updates and the first victims' images."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sums = (float(tensor.double().sum()), float(tensor.double().abs().sum()))
        digest.update(repr((name, tuple(tensor.shape), sums)).encode())
    for update_digest in update_digests:
        digest.update(update_digest.encode())
    for batch in victims[:FINGERPRINTED]:
        digest.update(data.pixels(batch).numpy().tobytes())
    return digest.hexdigest()[:8]
