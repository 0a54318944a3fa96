"""The malicious client of Hitaj et al. 2017, "Deep models under the GAN".

It takes part in the training like any other. The global model, which others teach what the target
class looks like, is its discriminator: a generator learns to draw what that model takes for the
target class. Then it teaches the model that these drawings are something else, the class "fake",
so that the victim's next update must show better what tells the true images apart.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.generative.generator import Generator
from keyhole.attacks.generative.known_defense import Through
from keyhole.data.image_set import normalise
from keyhole.errors import DoesNotFit
from keyhole.federation.client import local_update
from keyhole.federation.training import LocalTraining
from keyhole.seeds import derive, generator, seeded_globally
from keyhole.threat import Knowledge, Server
from keyhole.update import Update

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOMENTS = (0.5, 0.999)
"""Adam's, as DCGAN sets them."""


@dataclass(frozen=True, kw_only=True)
class Hitaj:
    """What the adversary does in each of ``rounds``.

    ``steps`` steps of Adam at rate ``lr`` on batches of ``batch`` drawings, which lower

        CE(model(drawing), target) + tv * TV(drawing);

    then it adds ``fakes`` drawings to its own images, labelled as fake: half of them new, half from
    the last ``replay`` rounds (as Shrivastava et al. 2017), lest the model forget what it was shown
    before. What it hands over is drawn with the mean of the generator's weights over rounds, old
    ones fading by ``average`` a round (Yazici et al. 2019). Until round ``begin`` it only trains
    along: a model that knows nothing teaches nothing.
    """

    target: Annotated[int, Field(ge=0)]
    rounds: Count = 100
    begin: Count = 1
    steps: Count = 20
    batch: Annotated[int, Field(ge=2)] = 32
    fakes: Count = 100
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5e-4
    latent: Count = 64
    features: Count = 12
    """Of the generator's last stage."""
    tv: Weight = 0.05
    replay: Annotated[int, Field(ge=0)] = 10
    average: Annotated[float, Field(ge=0, lt=1)] = 0.95

    name: ClassVar[str] = "gan"
    summary: ClassVar[str] = "a client trains a generator against the global model"
    paper: ClassVar[str] = "Hitaj et al. 2017"


@plain_dataclass(frozen=True)
class Generated:
    """Drawings of the target class, those the attacker trusts most first.

    ``images [n, C, H, W]`` in [0, 1]; ``confidence [n]``: the probability of the target, among the
    true classes, that the attacker's discriminator gives each. The attacker's pick is the first.
    """

    images: Tensor
    confidence: Tensor

    @property
    def pick(self) -> Tensor:
        """The one image ``[1, C, H, W]`` the attacker would show."""
        return self.images[:1]


class Adversary:
    """The malicious client: its own images, what it was sent, and the generator it trains.

    ``network`` is the shared architecture, with one output more than there are classes.
    ``through`` is the clients' defense on images where the adversary knows it: then drawings and
    its own images pass it before any model sees them.
    """

    def __init__(
        self,
        attack: Hitaj,
        knowledge: Knowledge,
        network: nn.Module,
        images: Tensor,
        labels: Tensor,
        *,
        through: Through | None = None,
        seed: int = 0,
    ) -> None:
        if bool((labels == attack.target).any()):
            raise DoesNotFit(
                f"the adversary holds images of class {attack.target}, which it is to learn from "
                "others: give it none"
            )
        self.attack, self.knowledge, self.seed = attack, knowledge, seed
        self.images, self.labels = images.detach().clone(), labels.clone()
        self.through: Through = through or (lambda drawn: drawn)
        self.discriminator = Server(network).sent
        check_outputs(self.discriminator, knowledge, images)
        with seeded_globally(derive(seed, "generator")):
            made = Generator(attack.latent, knowledge.shape, features=attack.features)
        self.generator = made.to(images)
        self.averaged = copy.deepcopy(self.generator).eval().requires_grad_(False)
        self.optimiser = torch.optim.Adam(self.generator.parameters(), attack.lr, MOMENTS)
        self.lessons = 0
        self.shown: list[Tensor] = []
        """Drawings of earlier rounds that the model was taught are fake."""

    def turn(self, weights: Mapping[str, Tensor], number: int, training: LocalTraining) -> Update:
        """One round: learns from the global weights, and answers with an update like any other."""
        self.discriminator.load_state_dict(weights)
        if number < self.attack.begin:
            return self.trained(number, training, self.images[:0])
        draw = generator(self.seed, "adversary", number)
        self.learn(draw)
        return self.trained(number, training, self.fakes(draw))

    def learn(self, draw: torch.Generator) -> float:
        """Trains the generator against the global model; the loss of the last step."""
        self.generator.train()
        loss = torch.zeros(())
        for _ in range(self.attack.steps):
            drawn = self.generator(self.generator.codes(self.attack.batch, draw))
            target = torch.full((len(drawn),), self.attack.target, device=drawn.device)
            loss = F.cross_entropy(self.logits(drawn), target) + self.attack.tv * variation(drawn)
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
        self.remember()
        return float(loss.detach())

    def remember(self) -> None:
        """Takes the generator as it is now into the mean over rounds; the first is all of it."""
        fade = self.attack.average if self.lessons else 0.0
        after = self.generator.state_dict()
        for name, mean in self.averaged.state_dict().items():
            now = after[name]
            mean.copy_(mean * fade + now * (1 - fade) if mean.is_floating_point() else now)
        self.lessons += 1

    def logits(self, drawn: Tensor) -> Tensor:
        """What the global model makes of drawings in [0, 1], with a gradient."""
        found: Tensor = self.discriminator(self.inputs(self.through(drawn)))
        return found

    def inputs(self, images: Tensor) -> Tensor:
        return normalise(images, self.knowledge.mean, self.knowledge.std)

    @torch.no_grad()
    def fakes(self, draw: torch.Generator) -> Tensor:
        """New drawings and, for half of them where there are any, ones of earlier rounds."""
        attack = self.attack
        new = self.generator(self.generator.codes(max(2, attack.fakes), draw))[: attack.fakes]
        mixed: Tensor = new
        if self.shown and attack.replay:
            old = torch.cat(self.shown)
            chosen = torch.randperm(len(old), generator=draw)[: attack.fakes // 2]
            mixed = torch.cat([new[: attack.fakes - len(chosen)], old[chosen.to(old.device)]])
        self.shown = [*self.shown, new][-max(1, attack.replay) :]
        return mixed

    def trained(self, number: int, training: LocalTraining, fakes: Tensor) -> Update:
        """What training on its own images and on ``fakes`` changes in the global model."""
        images = torch.cat([self.images, fakes])
        fake = torch.full((len(fakes),), self.knowledge.classes, device=self.labels.device)

        def shown() -> Tensor:
            with torch.no_grad():
                return self.inputs(self.through(images))

        return local_update(
            self.discriminator,
            shown(),
            torch.cat([self.labels, fake]),
            training=training,
            seed=derive(self.seed, "adversary's training", number),
            again=shown,
        ).check()

    @torch.no_grad()
    def drawings(self, count: int, draw: torch.Generator, *, views: int = 1) -> Generated:
        """``count`` drawings by the averaged generator, best first by the global model's word.

        The output for fakes, which the adversary itself taught, has no say. ``views``: over how
        many passes of a random defense the confidence is averaged.
        """
        images = self.averaged(self.averaged.codes(count, draw))
        logits = torch.stack([self.logits(images) for _ in range(views)])
        true_classes = logits[..., : self.knowledge.classes].log_softmax(-1)
        confidence = true_classes[..., self.attack.target].mean(0)
        order = confidence.argsort(descending=True)
        return Generated(images[order], confidence[order].exp())


def check_outputs(network: nn.Module, knowledge: Knowledge, like: Tensor) -> None:
    """Raises :class:`DoesNotFit` unless the model has one output beside the classes."""
    with torch.no_grad():
        outputs = network(torch.zeros(1, *knowledge.shape).to(like)).shape[1]
    if outputs != knowledge.classes + 1:
        raise DoesNotFit(
            f"the model has {outputs} outputs for {knowledge.classes} classes: the attack needs "
            "one more, for what is fake; build the model with classes + 1"
        )


def variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across."""
    return images.diff(dim=-2).abs().mean() + images.diff(dim=-1).abs().mean()
