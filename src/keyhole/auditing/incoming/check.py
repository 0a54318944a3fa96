"""All checks of an incoming model, one after the other.

found = check_incoming(model, read_safetensors(path)[0], data=images)
if found.suspicious is not False: ...  # None: the architecture could not be checked
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from keyhole.auditing.incoming.activity import check_activity, check_first_layer
from keyhole.auditing.incoming.architecture import check_architecture, check_types
from keyhole.auditing.incoming.fingerprint import check_hash, hash_weights
from keyhole.auditing.incoming.identities import check_identities
from keyhole.auditing.incoming.input_shape import find_shape
from keyhole.auditing.incoming.last_layer import check_last_layer
from keyhole.auditing.incoming.result import Alarm, IncomingCheck, NotChecked
from keyhole.auditing.incoming.rounds import check_change, check_loss
from keyhole.auditing.incoming.rows import check_rows
from keyhole.auditing.incoming.scale import check_scale
from keyhole.auditing.incoming.subject import IncomingModel, Tensors, choose_images
from keyhole.data import ImageSet
from keyhole.errors import BadUpdate, DoesNotFit, KeyholeError, one_line
from keyhole.models.anatomy import Shape, find_logits_layer
from keyhole.models.building import count_logits
from keyhole.seeds import generator
from keyhole.update import check_finite

NOISE_IMAGES = 4
"""Noise images if the client has none; each has many positions."""


def check_incoming(
    model: nn.Module | None,
    weights: Mapping[str, Tensor],
    previous: Mapping[str, Tensor] | None = None,
    data: ImageSet | None = None,
    *,
    shape: Shape | None = None,
    expected_hash: str | None = None,
) -> IncomingCheck:
    """Looks for signs that a server altered the model which it sent out.

    Nothing is changed, and nothing of the weights is executed. Weights that are not finite, or
    that the model cannot run with, are an alarm.

    Args:
        model: The model as the client's own code builds it, without the server's weights. None:
            only the tensors themselves are checked.
        weights: The tensors that the server sent, by name.
        previous: The tensors of the round before, if the client kept them.
        data: The client's images. Without them units are looked at with noise, and no loss is
            computed.
        shape: The images' shape ``(C, H, W)`` if there are no ``data``; None: the model's own.
        expected_hash: The hash that other clients computed of their model.
    """
    return _Examination(model, dict(weights), previous, data, shape).run(expected_hash)


class _Examination:
    """The checks of one model, and what they have found so far."""

    def __init__(
        self,
        model: nn.Module | None,
        weights: dict[str, Tensor],
        previous: Tensors | None,
        data: ImageSet | None,
        shape: Shape | None,
    ) -> None:
        self.model, self.weights, self.previous = model, weights, previous
        self.data, self.shape = data, shape
        self.alarms: list[Alarm] = []
        self.checked: list[str] = []
        self.not_checked: list[NotChecked] = []

    def run(self, expected_hash: str | None) -> IncomingCheck:
        """Runs the checks that apply."""
        found = hash_weights(self.weights)
        if expected_hash is not None:
            self.checked.append("hash")
            if found != check_hash(expected_hash):
                sentence = (
                    f"its hash is {found[:16]}..., the other clients' {expected_hash[:16]}..."
                )
                self.alarms.append(Alarm("other model", "", sentence))
        if self.check_values():
            self.check_names()
            subject = self.make_subject()
            self.check_tensors(subject)
            self.check_network(subject)
        return IncomingCheck(
            tuple(self.alarms), tuple(self.checked), tuple(self.not_checked), found
        )

    def check_values(self) -> bool:
        """Returns whether there are weights and all are finite; if not, nothing else is checked."""
        self.checked.append("values")
        try:
            check_finite(self.weights, "the model has", "do not train on it")
        except BadUpdate as error:
            self.alarms.append(Alarm("not finite", "", str(error)))
            return False
        if not self.weights:
            self.alarms.append(Alarm("no weights", "", "the model has no tensors at all"))
        self.alarms += check_types(self.weights, {} if self.model is None else self.own_tensors())
        return not any(alarm.name in ("no weights", "other type") for alarm in self.alarms)

    def own_tensors(self) -> Tensors:
        """Returns the tensors of the client's own model."""
        assert self.model is not None
        return dict(self.model.state_dict())

    def check_names(self) -> None:
        """Compares names and shapes with the client's own model, or with the previous round's."""
        trusted = self.previous if self.model is None else self.own_tensors()
        if trusted is None:
            why = "it takes the model's name, or the previous round's weights"
            self.skip("architecture", why)
            return
        whose = "the previous round's model" if self.model is None else "the client's own model"
        self.checked.append("architecture")
        self.alarms += check_architecture(self.weights, trusted, whose)

    def make_subject(self) -> IncomingModel:
        """Puts the weights into a copy of the client's model, if they fit."""
        if self.model is None:
            return IncomingModel(self.weights, previous=self.previous)
        own = self.own_tensors()
        shape = find_shape(self.model, self.shape if self.data is None else self.data.shape)
        if self.data is not None:
            check_labels(self.model, self.data)
        last = None if shape is None else find_logits_layer(self.model, shape)
        subject = IncomingModel(self.weights, own, last=last, previous=self.previous)
        if self.alarms_about_names() or shape is None:
            return subject
        network = copy.deepcopy(self.model).eval()
        network.load_state_dict(self.weights)
        inputs = self.make_inputs(shape).to(next(network.parameters()))
        return IncomingModel(self.weights, own, network, last, inputs, self.previous)

    def alarms_about_names(self) -> bool:
        return any(
            alarm.name in ("added tensors", "missing tensors", "other shape")
            for alarm in self.alarms
        )

    def make_inputs(self, shape: Shape) -> Tensor:
        """Returns some of the client's images as model inputs, or noise."""
        if self.data is None:
            return torch.randn(NOISE_IMAGES, *shape, generator=generator(0, "incoming"))
        return self.data.normalise(self.data.images(choose_images(self.data)))

    def check_tensors(self, subject: IncomingModel) -> None:
        """Runs the checks that need no network."""
        for name, check in (
            ("rows", check_rows),
            ("identities", check_identities),
            ("scale", check_scale),
        ):
            self.checked.append(name)
            self.alarms += check(subject)
        if subject.previous is not None:
            self.checked.append("change")
            self.alarms += check_change(subject)

    def check_network(self, subject: IncomingModel) -> None:
        """Runs the checks of the last layer, and those that let the network look at images."""
        if subject.last_layer() is None:
            self.skip("last layer", "no linear layer gives the logits")
        else:
            self.checked.append("last layer")
        if subject.network is None:
            why = (
                "the weights do not fit the client's own model"
                if self.alarms_about_names()
                else "it takes the client's own model, and the size of its images"
            )
            self.skip("activity", why)
            self.alarms += check_last_layer(subject)
            return
        try:
            self.alarms += check_last_layer(subject)
            self.checked.append("activity")
            self.alarms += check_activity(subject)
            self.check_with_images(subject, subject.network)
        except (KeyholeError, RuntimeError, ValueError) as error:
            self.alarms.append(Alarm("does not run", "", f"the model fails ({one_line(error)})"))

    def check_with_images(self, subject: IncomingModel, network: nn.Module) -> None:
        """Runs the checks that need the client's own images."""
        if self.data is None:
            self.skip("first layer and loss", "it takes the client's own images")
            return
        self.checked += ["first layer", "loss"]
        self.alarms += check_first_layer(subject)
        self.alarms += check_loss(network, self.weights, self.previous, self.data)

    def skip(self, check: str, why: str) -> None:
        """Notes that a check was not run."""
        self.not_checked.append(NotChecked(check, why))


def check_labels(model: nn.Module, data: ImageSet) -> None:
    """Raises :class:`DoesNotFit` if an image has a class that the model does not know."""
    logits = count_logits(model, type(model).__name__, data.shape)
    largest = int(data.labels.max()) if len(data) else 0
    if largest >= logits:
        raise DoesNotFit(f"an image has class {largest}, and the model knows {logits} classes")
