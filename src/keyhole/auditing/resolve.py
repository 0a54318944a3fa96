"""A stage with its names resolved: the model, the images, who is a victim and what is public."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.attacks import (
    ATTACKS,
    CLOSED_FORM,
    ITERATIVE,
    Attack,
    Gifd,
    InvertingGradients,
    Matching,
)
from keyhole.auditing.client_normalisation import doubt_normalisation
from keyhole.auditing.plan import AUTO, Stage
from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES, Defense
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.metrics import ImageMetric, Metric, choose_metrics
from keyhole.metrics.image import UNIFORM_WINDOW
from keyhole.models import build, check_takes
from keyhole.models.modes import default_mode, has_batch_norm
from keyhole.models.weights import fill_defense_weights, read_defense_weights
from keyhole.seeds import generator
from keyhole.settings import ClientMode
from keyhole.threat import Attacker, Knowledge, PublicKnowledge

PUBLIC = 128
"""Public images that the null baselines and the gallery may use, at most."""
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
    """A stage with everything resolved: the objects behind the names."""

    stage: Stage
    model: nn.Module
    data: ImageSet
    defenses: tuple[Defense, ...]
    attacks: tuple[Attack, ...]
    chosen: bool
    """Whether the user named the attacks (then one that never applies is an error)."""
    victims: tuple[tuple[int, ...], ...]
    """Image indices of each client's batch."""
    public: tuple[int, ...]
    seed: int
    fingerprint: str
    """Tells these weights and images from others that go by the same names."""
    metrics: tuple[ImageMetric, ...] = ()
    """Those that the user adds."""
    label: str | None = None
    """What the images are called in the report, if not by the data set's name."""
    scored: bool = True
    """Whether the truth is at hand."""
    orders: int = 1
    """In how many ways a client's images may have been shared out among its local steps."""
    reported: frozenset[str] | None = None
    """The parameters that clients report; None: all."""
    spare: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights of the file that belong to what a defense adds to the model."""
    notes: tuple[str, ...] = ()
    """What a reader of the findings should know of how clients ran the model."""
    assumed_normalisation: bool = False
    """Whether nobody knows by which mean and std the clients normalised their images."""
    clients_did: str = ""
    """How captured clients trained, in words; the stage holds what attacks take it for."""

    def prepare_model(self, defense: Defense) -> nn.Module:
        """The global model under a defense, with the weights it was trained with, if any."""
        return fill_defense_weights(
            defense.prepare_model(self.model), self.spare, str(self.stage.weights)
        )

    @property
    def mode(self) -> ClientMode:
        return self.stage.client_mode or "train"

    @property
    def training(self) -> LocalTraining:
        return LocalTraining(self.stage.steps, self.stage.lr, self.mode)

    def public_knowledge(self) -> PublicKnowledge:
        """What the server knows before any client has replied."""
        return PublicKnowledge(
            shape=self.data.shape,
            classes=len(self.data.classes),
            images=self.data.normalise(self.data.images(self.public)),
            batch_size=self.stage.batch_size,
            steps=self.stage.steps,
        )

    def knowledge(
        self,
        defense: Defense,
        attack: Attack,
        attacker: Attacker,
        labels: torch.Tensor,
        masks: tuple[torch.Tensor, ...] = (),
        passed: Sequence[torch.Tensor] = (),
    ) -> Knowledge:
        """What this attacker is told of a client with these labels, dropout masks and images."""
        return Knowledge(
            shape=self.data.shape,
            classes=len(self.data.classes),
            mean=self.data.mean,
            std=self.data.std,
            batch_size=self.stage.batch_size,
            labels=labels.clone() if "labels" in attack.given else None,
            masks=tuple(m.clone() for m in masks) if "masks" in attack.given else None,
            intercepted=tuple(v.clone() for v in passed) if "intercepted" in attack.given else None,
            client_mode=self.mode,
            defense=defense if attacker is not Attacker.NAIVE else None,
            adaptive=attacker is Attacker.ADAPTIVE,
            checkpoint_epoch=self.stage.checkpoint_epoch,
            rounds=self.stage.repeats,
            altered_model=attack.altered_model,
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
    found = data or load(stage.data, image_size=stage.image_size, data_dir=data_dir)
    if stage.mean is not None and stage.std is not None:
        found = found.with_normalisation(stage.mean, stage.std)
    if min(found.size) < UNIFORM_WINDOW:
        raise DoesNotFit(
            f"images of {min(found.size)} px are too small to judge: pass --image-size "
            f"{UNIFORM_WINDOW} or more"
        )
    if model is None:
        network = _network(stage, found, seed)
    else:
        network = copy.deepcopy(model)
        check_takes(network, stage.model, found.shape, len(found.classes))
    spare = (
        {} if stage.weights is None or model is not None else read_defense_weights(stage.weights)
    )
    chosen = attacks is not None or stage.attacks != (AUTO,)
    victims, public = choose_victims(found, stage.victims, stage.batch_size, seed)
    mode = stage.client_mode or default_mode(network, stage.batch_size)
    return ResolvedStage(
        stage=stage.model_copy(update={"client_mode": mode}),
        model=network.to(device or torch.device("cpu")),
        data=found,
        defenses=_unique(defenses or [DEFENSES.parse(text) for text in stage.defenses]),
        attacks=_unique([tuned(a, stage) for a in attacks or attacks_of(stage)]),
        chosen=chosen,
        victims=victims,
        public=public,
        seed=seed,
        fingerprint=fingerprint(network, found, victims),
        metrics=resolve_metrics(stage.metrics if metrics is None else metrics, found),
        spare=spare,
        notes=(
            *doubt_normalisation(stage, found, own_model=model is not None and data is None),
            *about_norms(network, mode, said=stage.client_mode is not None),
        ),
    )


def resolve_metrics(chosen: Sequence[str | Metric], data: ImageSet) -> tuple[ImageMetric, ...]:
    """The metrics that the user adds, each tried on an image: a bad one is told early."""
    found = choose_metrics(chosen)
    image = data.images([0]).double()
    for metric in found:
        metric.measure(image, image)
    return found


def about_norms(model: nn.Module, mode: ClientMode, *, said: bool) -> tuple[str, ...]:
    """What should be known of batch norms, and what was decided where nobody ``said`` the mode."""
    if mode == "train":
        return (OWN_BATCH,) if has_batch_norm(model) else ()
    return () if said else (ONE_IMAGE,)


def _network(stage: Stage, data: ImageSet, seed: int) -> nn.Module:
    return build(
        stage.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
        weights=stage.weights,
    )


def attacks_of(stage: Stage) -> list[Attack]:
    if AUTO not in stage.attacks:
        return [ATTACKS.parse(text) for text in stage.attacks]
    if stage.attacks != (AUTO,):
        raise BadValue("attacks: 'auto' stands alone; name the attacks, or leave it at auto")
    return [member() for member in CLOSED_FORM if member.altered_model is None]


def tuned(attack: Attack, stage: Stage) -> Attack:
    """The attack with the stage's settings for all iterative ones: the paper's, then the budget."""
    if not isinstance(attack, Matching):
        return attack
    settings = dict(attack.published) if stage.parity == "paper" else {}
    if stage.iterations is not None:
        settings["iterations"] = stage.iterations
    return dataclasses.replace(attack, **settings)


def fallbacks(defense: Defense, made: ResolvedStage) -> list[Attack]:
    """What `auto` adds where no closed form reads images.

    IG, GIFD where its generator draws such images, the attacks that the defense was published
    with, and those made for who knows it.
    """
    adaptive = [m() for m in ITERATIVE if m.only_adaptive and m().knows(defense)]
    published = [ATTACKS.parse(name) for name in defense.paper_attacks]
    prior = [Gifd()] if Gifd().generates(made.data.shape) else []
    candidates = _unique([InvertingGradients(), *prior, *published, *adaptive])
    chosen = [attack for attack in candidates if attack.reads_update]
    found = [untold(tuned(attack, made.stage), made.scored) for attack in chosen]
    return [in_all_orders(attack, made.orders) for attack in found]


def in_all_orders(attack: Attack, orders: int) -> Attack:
    """An iterative attack with a trial for each order of the client's images."""
    if not isinstance(attack, Matching) or attack.trials >= orders:
        return attack
    return dataclasses.replace(attack, trials=orders)


def untold(attack: Attack, scored: bool) -> Attack:
    """An attack that is given labels infers them where nobody knows them."""
    if scored or not isinstance(attack, Matching) or attack.labels != "given":
        return attack
    return dataclasses.replace(attack, labels="inferred")


def _unique(things: Sequence[Any]) -> tuple[Any, ...]:
    """Each thing once, by how it is spelled."""
    return tuple({str(thing): thing for thing in things}.values())


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
    if data.groups is None:
        taken, group = set(private), list(range(len(data)))
    else:
        group = data.groups.tolist()
        taken = {group[i] for i in private}
    public = [i for i in shuffled if group[i] not in taken]
    return batches, tuple(public[:PUBLIC])


def fingerprint(
    model: nn.Module,
    data: ImageSet,
    victims: Sequence[Sequence[int]],
    updates: Sequence[str] = (),
    *,
    looked_at: int = 8,
) -> str:
    """Eight hex digits over weights, digests of captured updates, the first victims' images."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sums = (float(tensor.double().sum()), float(tensor.double().abs().sum()))
        digest.update(repr((name, tuple(tensor.shape), sums)).encode())
    for update in updates:
        digest.update(update.encode())
    for batch in victims[:looked_at]:
        digest.update(data.pixels(batch).numpy().tobytes())
    return digest.hexdigest()[:8]
