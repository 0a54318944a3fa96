"""Membership inference from the updates of a captured folder: who was in a client's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from keyhole.attacks.membership.base import compute_logits, confidence, cross_entropy
from keyhole.attacks.membership.fedmia import gradient_cosines, join_tails, mean_cosine
from keyhole.auditing.captured import read_image_size, read_truth
from keyhole.auditing.captured_clients import CapturedClient, Owners, find_clients
from keyhole.auditing.captured_inference import CapturedInference, CapturedMembership
from keyhole.auditing.captured_model import CapturedModel
from keyhole.auditing.client_normalisation import normalise_as_captured
from keyhole.auditing.plan import Stage
from keyhole.data import ImageSet, load
from keyhole.errors import BadValue, KeyholeError, RunFolderError
from keyhole.federation import Capture
from keyhole.federation.capture import GLOBAL
from keyhole.federation.capture_reader import CapturedRound
from keyhole.metrics import membership as metrics
from keyhole.seeds import generator

CAPTURED_ATTACKS = ("fedmia", "cosine", "loss")
"""FedMIA; its cosine without the other clients; the loss of the final model."""
LEAST_CLIENTS = 3
"""Clients of a round that FedMIA needs: two others give a mean and a deviation."""
MOST_IMAGES = 500
"""Images of a client, and others, that are asked about."""
FEWEST_OTHERS, OTHERS_PER_MEMBER = 100, 10
"""Others that an audit asks about: at least so many, or so many per member."""


@dataclass(frozen=True)
class UsableRound:
    """One round, whose tensors are read when they are asked for: one round at a time is held."""

    captured_round: CapturedRound
    clients: tuple[CapturedClient, ...]

    @property
    def number(self) -> int:
        return self.captured_round.number

    def read_changes(self) -> list[dict[str, Tensor]]:
        """What each client changed."""
        return [dict(client.read().change) for client in self.clients]


def infer_captured_membership(
    captured: Path,
    *,
    model: str,
    data: str,
    attacks: Sequence[str] = CAPTURED_ATTACKS,
    image_size: str | int | None = None,
    data_dir: str | None = None,
    device: torch.device | None = None,
    seed: int = 0,
    most_others: int = MOST_IMAGES,
) -> CapturedMembership:
    """Asks of every captured client which images it trained on, from all rounds together.

    Args:
        captured: The folder that a curious server wrote; it must say which images clients have.
        model: The model, by name.
        data: The data set of the clients' images.
        attacks: Some of ``fedmia``, ``cosine`` and ``loss``.
        image_size: Size to scale images to; None: as the folder says.
        data_dir: The folder of data sets that are not built in.
        device: Where gradients are computed; None: the CPU.
        seed: Seed of the choice of images that nobody has.
        most_others: At most so many of them are asked about.
    """
    unknown = [name for name in attacks if name not in CAPTURED_ATTACKS]
    if unknown:
        raise BadValue(
            f"attack: {unknown[0]!r} cannot use captured updates: "
            f"name {', '.join(CAPTURED_ATTACKS)}"
        )
    stage = Stage(model=model, data=data, captured=captured, image_size=image_size, victims=1000)
    capture = Capture.open(captured)
    notes = list(capture.problems)
    size = stage.image_size or read_image_size(capture.about, notes)
    images = load(data, image_size=size, data_dir=data_dir, by_user=False)
    images, _, about_data = normalise_as_captured(images, stage, capture.about)
    notes += about_data
    owners = read_truth(capture, stage, len(images), notes)
    place = device or torch.device("cpu")
    sent = CapturedModel(stage, images, seed, place, capture.about)
    rounds = find_usable_rounds(capture, stage, sent, owners, notes)
    names = sorted({c.name for r in rounds for c in r.clients if c.truth}, key=natural)
    if not names:
        raise RunFolderError(
            f"{captured} does not say which images any of its clients has: add truth.json, "
            'which holds {"clients": {ID: [INDEX, ...]}}'
        )
    asked = Question.draw(images, owners, place, seed, most_others)
    if len(names) < LEAST_CLIENTS and "fedmia" in attacks:
        notes.append(f"fedmia needs {LEAST_CLIENTS} clients or more, and {len(names)} answered")
        attacks = [name for name in attacks if name != "fedmia"]
    return asked.answer(names, rounds, sent, attacks, str(captured), notes)


MOST_WORK = 3_000_000_000
"""Parameters x images x rounds up to which an audit asks for membership by itself: seconds."""


def ask_within_audit(
    stage: Stage, *, data_dir: str | None, device: torch.device, seed: int
) -> tuple[CapturedMembership | None, list[str]]:
    """What an audit of a captured folder says of membership, and a note on why it says nothing.

    It is asked where the truth is known, FedMIA has enough clients, and it takes seconds alone.

    Args:
        stage: The audit's stage, with a captured folder.
        data_dir: The folder of data sets that are not built in.
        device: Where gradients are computed.
        seed: Seed of the choice of images that nobody has.
    """
    assert stage.captured is not None
    capture = Capture.open(stage.captured)
    truth = (capture.truth or {}) if stage.truth is None else {}
    about_these = truth.get("data") in (None, stage.data)
    owners = truth.get("clients", {}) if about_these else {}
    clients = max((len(each.clients) for each in capture.rounds), default=0)
    if not isinstance(owners, dict) or len(owners) < LEAST_CLIENTS or clients < LEAST_CLIENTS:
        return None, []
    bytes_sent = [(each.folder / GLOBAL) for each in capture.rounds]
    weights = sum(file.stat().st_size for file in bytes_sent if file.is_file()) / 4
    members = sum(min(len(own), MOST_IMAGES) for own in owners.values())
    others = min(MOST_IMAGES, max(FEWEST_OTHERS, OTHERS_PER_MEMBER * members))
    if weights * (members + others) > MOST_WORK:
        command = f"keyhole membership --captured {stage.captured} --model {stage.model}"
        return None, [f"who was in it takes long to tell: run {command} --data {stage.data}"]
    try:
        found = infer_captured_membership(
            stage.captured,
            model=stage.model,
            data=stage.data,
            image_size=stage.image_size,
            data_dir=data_dir,
            device=device,
            seed=seed,
            most_others=others,
        )
    except KeyholeError as error:
        return None, [f"who was in it cannot be told: {error}"]
    return found, []


def natural(name: str) -> tuple[int, str]:
    """Sorts numbers by value, before words."""
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (10**10, name)


def find_usable_rounds(
    capture: Capture, stage: Stage, sent: CapturedModel, owners: Owners, notes: list[str]
) -> list[UsableRound]:
    """The rounds that can be used; a note says why one cannot."""
    found = []
    for each in capture.rounds:
        try:
            model = sent.load_round(each)
        except KeyholeError as error:
            notes.append(f"round {each.number}: {error}")
            continue
        clients = tuple(find_clients(each, stage, model, owners, notes))
        single = tuple(client for client in clients if client.training.clients == 1)
        if len(single) < len(clients):
            notes.append(f"round {each.number}: secure sums do not say whose an update is")
        if single:
            found.append(UsableRound(each, single))
    if not found:
        raise RunFolderError(f"nothing in {capture.root} can be used: {(notes or ['empty'])[0]}")
    return found


@dataclass(frozen=True)
class Question:
    """The images that attackers are asked about: each client's own, and some that nobody has."""

    data: ImageSet
    owners: Owners
    others: tuple[int, ...]
    device: torch.device
    own: dict[str, tuple[int, ...]]

    @classmethod
    def draw(
        cls, data: ImageSet, owners: Owners, device: torch.device, seed: int, most: int
    ) -> Question:
        """Draws at most so many others as ``most``; of each client's images, at most 500."""
        taken = {i for indices in owners.values() for i in indices}
        order = torch.randperm(len(data), generator=generator(seed, "others")).tolist()
        free = [i for i in order if i not in taken][:most]
        if len(free) < 10:
            raise RunFolderError(
                "clients have all images of the data set, or nearly: there is nobody to tell them "
                "from; train with a --data of which some images are left over"
            )
        own = {name: tuple(indices[:MOST_IMAGES]) for name, indices in owners.items()}
        return cls(data, owners, tuple(free), device, own)

    def read(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Model inputs and labels."""
        inputs = self.data.normalise(self.data.images(list(indices))).to(self.device)
        return inputs, self.data.labels[list(indices)].to(self.device)

    def answer(
        self,
        names: Sequence[str],
        rounds: Sequence[UsableRound],
        sent: CapturedModel,
        attacks: Sequence[str],
        captured: str,
        notes: list[str],
    ) -> CapturedMembership:
        """Every attack on every client; scores of one attack are pooled over clients."""
        indices = [*self.others, *(i for name in names for i in self.own.get(name, ()))]
        inputs, labels = self.read(indices)
        cosines = []
        for each in rounds:
            network = sent.load_round(each.captured_round).eval()
            changes = each.read_changes()
            cosines.append(gradient_cosines(network, inputs, labels, changes).cpu())
            if each is rounds[-1]:
                apply_mean(network, each.clients, changes)
            del changes
        phi = confidence(compute_logits(network, inputs), labels)
        loss = -cross_entropy(phi).double().cpu()
        scores: dict[str, dict[str, tuple[Tensor, Tensor]]] = {name: {} for name in attacks}
        start = len(self.others)
        for name in names:
            mine = slice(start, start + len(self.own.get(name, ())))
            start = mine.stop
            places = [[c.name for c in r.clients] for r in rounds]
            seen = [n for n, there in enumerate(places) if name in there]
            heard = [cosines[n] for n in seen if len(places[n]) >= LEAST_CLIENTS]
            which = [places[n].index(name) for n in seen if len(places[n]) >= LEAST_CLIENTS]
            every = [places[n].index(name) for n in seen]
            values = {"loss": loss, "cosine": mean_cosine([cosines[n] for n in seen], every)}
            if heard:
                values["fedmia"] = join_tails(heard, which)
            for attack in attacks:
                if attack in values:
                    pair = values[attack][mine], values[attack][: len(self.others)]
                    scores[attack][name] = pair
        inferences = tuple(measure(attack, found) for attack, found in scores.items() if found)
        members = sum(len(self.own.get(name, ())) for name in names)
        numbers = tuple(each.number for each in rounds)
        return CapturedMembership(
            captured, members, len(self.others), numbers, inferences, tuple(notes)
        )


@torch.no_grad()
def apply_mean(
    network: nn.Module, clients: Sequence[CapturedClient], changes: Sequence[dict[str, Tensor]]
) -> None:
    """Changes the global model by its clients' updates: their mean, weighted by images."""
    total = sum(client.training.examples for client in clients)
    weights = network.state_dict()
    for client, change in zip(clients, changes, strict=True):
        for name, delta in change.items():
            weights[name] += delta.to(weights[name]) * (client.training.examples / total)


def measure(attack: str, scores: dict[str, tuple[Tensor, Tensor]]) -> CapturedInference:
    """AUC and rates over all clients: each client's images against the same others."""
    inside = torch.cat([members for members, _ in scores.values()]).numpy()
    outside = torch.cat([others for _, others in scores.values()]).numpy()
    curve = metrics.roc(inside, outside)
    low, high = metrics.auc_interval(inside, outside)
    return CapturedInference(
        attack=attack,
        auc=metrics.auc(inside, outside),
        auc_low=low,
        auc_high=high,
        rates=tuple(metrics.rate_at(curve, limit) for limit in metrics.LIMITS),
        by_client={
            name: metrics.auc(own.numpy(), others.numpy()) for name, (own, others) in scores.items()
        },
    )
