"""The malicious client of Hitaj et al. 2017, "Deep models under the GAN".

It takes part in the training like any other. The global model, which others teach what the target
class looks like, is its discriminator: a generator learns to draw what that model takes for the
target class. Then it teaches the model that these drawings are something else, the class "fake",
so that the victim's next update must show better what tells the true images apart.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import normalise
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, compute_local_update
from keyhole.seeds import derive, generator, seeded_globally
from keyhole.threat import Knowledge, Server
from keyhole.update import Update
from keyhole_studies.hitaj.attack import Hitaj
from keyhole_studies.hitaj.generator import Generator
from keyhole_studies.hitaj.known_defense import DifferentiableDefense
from keyhole_studies.training import take_gradient_step

MOMENTS = (0.5, 0.999)
"""Adam's, as DCGAN sets them."""


@dataclass(frozen=True)
class Generated:
    """Drawings of the target class, the ones that the attacker is surest of first.

    Args:
        images: ``[n, C, H, W]`` in [0, 1].
        confidence: The probability of the target, among the true classes, that the attacker's
            discriminator gives each, ``[n]``.
    """

    images: Tensor
    confidence: Tensor

    @property
    def pick(self) -> Tensor:
        """The one image ``[1, C, H, W]`` the attacker would show."""
        return self.images[:1]


class Adversary:
    """The malicious client: its own images, what it was sent, and the generator it trains.

    Args:
        attack: What it does in each round.
        knowledge: Shape and classes of the images.
        network: The shared architecture, with one output more than there are classes.
        images: Its own images, ``[n, C, H, W]`` in [0, 1].
        labels: Their labels, ``[n]``.
        known_defense: The clients' defense on images where the adversary knows it: drawings and its
            own images pass it before any model sees them.
        seed: Of the generator and all draws.
    """

    def __init__(
        self,
        attack: Hitaj,
        knowledge: Knowledge,
        network: nn.Module,
        images: Tensor,
        labels: Tensor,
        *,
        known_defense: DifferentiableDefense | None = None,
        seed: int = 0,
    ) -> None:
        if bool((labels == attack.target).any()):
            raise DoesNotFit(
                f"the adversary holds images of class {attack.target}, which it is to learn from "
                "others: give it none"
            )
        self.attack, self.knowledge, self.seed = attack, knowledge, seed
        self.images, self.labels = images.detach().clone(), labels.clone()
        self.known_defense: DifferentiableDefense = known_defense or (lambda drawn: drawn)
        self.discriminator = Server(network).sent
        check_outputs(self.discriminator, knowledge, images)
        with seeded_globally(derive(seed, "generator")):
            untrained = Generator(attack.latent, knowledge.shape, features=attack.features)
        self.generator = untrained.to(images)
        self.averaged = copy.deepcopy(self.generator).eval().requires_grad_(False)
        self.optimiser = torch.optim.Adam(self.generator.parameters(), attack.lr, MOMENTS)
        self.rounds_averaged = 0
        self.earlier_fakes: list[Tensor] = []
        """Drawings that were sent as fakes, round by round."""

    def take_turn(
        self, weights: Mapping[str, Tensor], number: int, training: LocalTraining
    ) -> Update:
        """One round: learns from the global weights, and answers with an update like any other.

        Args:
            weights: The global model.
            number: Of the round, from 1.
            training: How clients train.
        """
        self.discriminator.load_state_dict(weights)
        if number < self.attack.begin:
            return self.train_locally(number, training, self.images[:0])
        draw = generator(self.seed, "adversary", number)
        self.train_generator(draw)
        return self.train_locally(number, training, self.draw_fakes(draw))

    def train_generator(self, draw: torch.Generator) -> float:
        """Trains the generator against the global model; returns the loss of the last step."""
        self.generator.train()
        loss = torch.zeros(())
        for _ in range(self.attack.steps):
            drawn = self.generator(self.generator.sample_codes(self.attack.batch, draw))
            target = torch.full((len(drawn),), self.attack.target, device=drawn.device)
            smooth = self.attack.tv * total_variation(drawn)
            loss = F.cross_entropy(self.compute_logits(drawn), target) + smooth
            loss = take_gradient_step(loss, self.generator, self.optimiser)
        self.average_weights()
        return float(loss)

    def average_weights(self) -> None:
        """Takes the generator's weights into their mean over rounds; the first begins it."""
        fade = self.attack.average if self.rounds_averaged else 0.0
        after = self.generator.state_dict()
        for name, mean in self.averaged.state_dict().items():
            now = after[name]
            mean.copy_(mean * fade + now * (1 - fade) if mean.is_floating_point() else now)
        self.rounds_averaged += 1

    def compute_logits(self, drawn: Tensor) -> Tensor:
        """The global model's logits of drawings in [0, 1], with a gradient."""
        found: Tensor = self.discriminator(self.normalise(self.known_defense(drawn)))
        return found

    def normalise(self, images: Tensor) -> Tensor:
        return normalise(images, self.knowledge.mean, self.knowledge.std)

    @torch.no_grad()
    def draw_fakes(self, draw: torch.Generator) -> Tensor:
        """New drawings and, for half of them where there are any, ones of earlier rounds."""
        attack = self.attack
        codes = self.generator.sample_codes(max(2, attack.fakes), draw)
        new = self.generator(codes)[: attack.fakes]
        mixed: Tensor = new
        if self.earlier_fakes and attack.replay:
            old = torch.cat(self.earlier_fakes)
            chosen = torch.randperm(len(old), generator=draw)[: attack.fakes // 2]
            mixed = torch.cat([new[: attack.fakes - len(chosen)], old[chosen.to(old.device)]])
        self.earlier_fakes = [*self.earlier_fakes, new][-max(1, attack.replay) :]
        return mixed

    def train_locally(self, number: int, training: LocalTraining, fakes: Tensor) -> Update:
        """The update that training on its own images and on ``fakes`` makes."""
        images = torch.cat([self.images, fakes])
        fake = torch.full((len(fakes),), self.knowledge.classes, device=self.labels.device)

        def make_inputs() -> Tensor:
            with torch.no_grad():
                return self.normalise(self.known_defense(images))

        return compute_local_update(
            self.discriminator,
            make_inputs(),
            torch.cat([self.labels, fake]),
            training=training,
            seed=derive(self.seed, "adversary's training", number),
            next_inputs=make_inputs,
        ).check()

    @torch.no_grad()
    def draw_images(self, count: int, draw: torch.Generator, *, views: int = 1) -> Generated:
        """``count`` drawings by the averaged generator, best first by the global model's word.

        The output for fakes, which the adversary itself taught, does not count.

        Args:
            count: How many.
            draw: Draws their codes.
            views: The confidence is a mean over so many passes of a random defense.
        """
        images = self.averaged(self.averaged.sample_codes(count, draw))
        logits = torch.stack([self.compute_logits(images) for _ in range(views)])
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


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across."""
    return images.diff(dim=-2).abs().mean() + images.diff(dim=-1).abs().mean()
