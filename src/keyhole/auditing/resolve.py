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
from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES, Defense
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.metrics import ImageMetric, Metric, choose_metrics
from keyhole.metrics.image import UNIFORM_WINDOW
from keyhole.models import build
from keyhole.models.building import check_logits
from keyhole.models.modes import default_mode, has_batch_norm
from keyhole.models.weights import fill_defense_weights, read_defense_weights
from keyhole.seeds import generator
from keyhole.settings import ClientMode
from keyhole.threat import Attacker, Knowledge, PublicKnowledge

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
        reported: The parameters that clients report; None: all.
        defense_weights: Weights from the file that belong to what a defense adds to the model.
        notes: What a reader should know about how clients ran the model.
        assumed_normalisation: Whether the mean and std of the clients are only assumed.
        clients_did: How captured clients trained, in words; ``stage`` holds what attacks assume.
        training_known: Whether captured clients trained exactly as attacks assume.
        altered_model: What the server of a captured folder changed in the model, in words; None:
            nothing.
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
    reported: frozenset[str] | None = None
    defense_weights: Mapping[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    assumed_normalisation: bool = False
    clients_did: str = ""
    training_known: bool = True
    altered_model: str | None = None

    def prepare_model(self, defense: Defense) -> nn.Module:
        """The global model under a defense, with the weights it was trained with, if any."""
        return fill_defense_weights(
            defense.prepare_model(self.model), self.defense_weights, str(self.stage.weights)
        )

    def configure(self, attack: Attack) -> Attack:
        """The attack with this stage's settings."""
        return configure_attack(attack, self.stage, labels_known=self.scored, orders=self.orders)

    @property
    def mode(self) -> ClientMode:
        return self.stage.client_mode or "train"

    @property
    def training(self) -> LocalTraining:
        return LocalTraining(self.stage.steps, self.stage.lr, self.mode)

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
            defense=defense if attacker is not Attacker.NAIVE else None,
            adaptive=attacker is Attacker.ADAPTIVE,
            checkpoint_epoch=self.stage.checkpoint_epoch,
            rounds=self.stage.repeats,
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
    LocalTraining(stage.steps, stage.lr)
    images = _load_images(stage, data, data_dir)
    network = _load_model(stage, model, images, seed)
    weights = stage.weights if model is None else None
    victims, public = choose_victims(images, stage.victims, stage.images_per_update, seed)
    mode = stage.client_mode or default_mode(network, stage.batch_size)
    return ResolvedStage(
        stage=stage.model_copy(update={"client_mode": mode}),
        model=network.to(device or torch.device("cpu")),
        data=images,
        defenses=drop_duplicates(defenses or [DEFENSES.parse(text) for text in stage.defenses]),
        attacks=drop_duplicates(
            [configure_attack(a, stage) for a in attacks or choose_attacks(stage)]
        ),
        attacks_named=attacks is not None or stage.attacks != (AUTO,),
        victims=victims,
        public=public,
        seed=seed,
        fingerprint=compute_fingerprint(network, images, victims),
        metrics=resolve_metrics(stage.metrics if metrics is None else metrics, images),
        defense_weights={} if weights is None else read_defense_weights(weights),
        notes=(
            *note_assumption(stage, images, own_model=model is not None and data is None),
            *describe_batch_norms(network, mode, mode_given=stage.client_mode is not None),
        ),
    )


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
        return own
    return build(
        stage.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
        weights=stage.weights,
    )


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
