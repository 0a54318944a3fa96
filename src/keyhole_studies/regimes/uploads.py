"""What a curious server writes down of one round: every client's update, and whose images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from keyhole.attacks import ATTACKS
from keyhole.data import ImageSet
from keyhole.federation import CaptureWriter, LocalTraining, Reply, compute_local_update
from keyhole.seeds import derive, generator
from keyhole.threat import PublicKnowledge

PUBLIC = 128
"""Images by which a malicious server lays its attack."""


@dataclass(frozen=True)
class Round:
    """One round of clients who train alike.

    Args:
        model: The network, on its device, with the weights of the honest server.
        data: The images.
        shares: Indices of each client's images.
        training: What every client does.
        seed: Of the clients' batches.
    """

    model: nn.Module
    data: ImageSet
    shares: Sequence[Sequence[int]]
    training: LocalTraining
    seed: int

    @property
    def images(self) -> int:
        """The images of a client."""
        return len(self.shares[0])

    def capture(self, folder: Path, about: dict[str, Any], attack: str = "") -> None:
        """Lets all clients train, and writes down what the server gets.

        Args:
            folder: The folder to write.
            about: What a captured folder says about the run.
            attack: That of a malicious server; empty: the server is honest.
        """
        model = self.model
        if attack:
            model, said = self.alter_model(attack)
            about = {**about, **said}
        writer = CaptureWriter(folder, about={**about, **self.describe_pixels()}, fresh=True)
        owners = {str(number): list(share) for number, share in enumerate(self.shares)}
        writer.write_truth(self.data.name, owners)
        written = writer.begin_round(1, model.state_dict(), config=self.describe_training())
        for number, share in enumerate(self.shares):
            written.add(self.train_one(model, number, share))
        written.close()

    def alter_model(self, name: str) -> tuple[nn.Module, dict[str, Any]]:
        """The model as an attack alters it, and what an audit must know to follow the attack."""
        attack, public = ATTACKS.parse(name), self.choose_public()
        model = attack.alter(self.model, public).to(next(self.model.parameters()).device)
        return model, {
            "attack": str(attack),
            "altered_model": attack.altered_model,
            "public-batch-size": public.batch_size,
            "public-steps": public.steps,
            "public-clients": public.clients,
        }

    def describe_pixels(self) -> dict[str, str]:
        """By which mean and standard deviation clients normalise."""
        pairs = {"mean": self.data.mean, "std": self.data.std}
        return {name: ",".join(repr(v) for v in values) for name, values in pairs.items()}

    def train_one(self, model: nn.Module, number: int, share: Sequence[int]) -> Reply:
        """The update of one client."""
        like = next(model.parameters())
        inputs = self.data.normalise(self.data.images(list(share)).to(like))
        labels = self.data.labels[list(share)].to(like.device)
        seed = derive(self.seed, "client", number)
        update = compute_local_update(model, inputs, labels, training=self.training, seed=seed)
        return Reply(str(number), update.check().change, examples=len(share))

    def describe_training(self) -> dict[str, Any]:
        """The config that the server sends to its clients, by the names that audits read."""
        training = self.training
        config: dict[str, Any] = {
            "lr": training.lr,
            "batch-size": training.batch_size_for(self.images),
            "optimiser": training.optimiser,
            "momentum": training.momentum,
            "client-mode": training.mode,
            "defense": "none",
        }
        if training.epochs:
            return config | {"local-epochs": training.epochs}
        return config | {"local-steps": training.steps}

    def choose_public(self) -> PublicKnowledge:
        """What a malicious server knows beforehand: images of nobody, and how clients train."""
        private = {index for share in self.shares for index in share}
        order = torch.randperm(len(self.data), generator=generator(self.seed, "public")).tolist()
        public = [index for index in order if index not in private][:PUBLIC]
        return PublicKnowledge(
            shape=self.data.shape,
            classes=len(self.data.classes),
            images=self.data.normalise(self.data.images(public)),
            batch_size=self.images,
            steps=self.training.count_steps(self.images),
            lr=self.training.lr,
            step_images=self.training.batch_size_for(self.images),
        )
