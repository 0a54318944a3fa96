"""A defense in your own training loop, without Flower and without Keyhole's loop.

Shares weights after local training::

    client = keyhole.protect(model, "gaussian(sigma=0.001)", optimiser=lambda w: SGD(w, lr=0.1))
    for images, labels in batches:
        client.backward(normalise(client.images(images)), labels)
        client.optimiser.step()
    send(client.weights(batch_size=16))

A client that shares gradients calls :meth:`ProtectedClient.gradient` after each ``backward``.
Nothing leaves undefended: where the loop skips something that the defense needs, what would be sent
raises :class:`~keyhole.errors.DoesNotFit`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from keyhole.defenses import DEFENSES
from keyhole.defenses.base import ClientSide, Defense, Memory, Telemetry, uses_door
from keyhole.errors import DoesNotFit
from keyhole.seeds import generator as seeded_generator
from keyhole.update import Update, apply_change, check_finite, check_weights, convert_type, subtract

MakeOptimiser = Callable[[Iterable[nn.Parameter]], Optimizer]


def protect(
    model: nn.Module,
    defense: Defense | str,
    *,
    optimiser: MakeOptimiser | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    normalise: Callable[[Tensor], Tensor] | None = None,
    memory: Memory | None = None,
    seed: int | None = None,
) -> ProtectedClient:
    """Puts a defense around one client's share of one round.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> client = protect(model, "pruning(ratio=0.9)", seed=0)
    >>> client.backward(torch.rand(4, 1, 8, 8), torch.tensor([3, 1, 4, 1]))
    >>> sent = client.gradient(batch_size=4)
    >>> sum(int((g != 0).sum()) for g in sent.values())
    65

    Args:
        model: The global model, as the server sent it. It stays as it is: train
            :attr:`ProtectedClient.model`, which is another.
        defense: The defense, or its name: ``"gaussian(sigma=0.001)"``.
        optimiser: Makes an optimiser for the parameters that it is given, so that steps and
            learning rate are known; without it, pass them to :meth:`ProtectedClient.update`.
        images: The client's images ``[n, C, H, W]`` in [0, 1], for defenses that look at them.
        labels: Their classes ``[n]``.
        normalise: Turns images into the model's inputs; None means that they are the same.
        memory: What the defense kept in earlier rounds: ``client.memory`` of the round before.
        seed: Seed of the defense's random numbers. Leave it out where updates really leave: then
            nobody can repeat the noise.
    """
    chosen = DEFENSES.resolve(defense)
    chosen.validate(model)
    check_weights(model.state_dict())
    side = ClientSide(
        model=model, images=images, labels=labels, memory={} if memory is None else memory
    )
    if seed is not None:
        side.generator = seeded_generator(seed, "plain loop")
    if normalise is not None:
        side.normalise = normalise
    return ProtectedClient(chosen, side, optimiser)


class ProtectedClient:
    """One client under a defense, for one round; made by :func:`protect`.

    Args:
        defense: The defense.
        side: What the client gives the defense to work with; it has a model.
        make_optimiser: Makes an optimiser for given parameters; None: the loop has its own.
    """

    def __init__(
        self, defense: Defense, side: ClientSide, make_optimiser: MakeOptimiser | None
    ) -> None:
        assert side.model is not None
        self.defense, self._side, self._received = defense, side, side.model
        self._start = copy_weights(side.model)
        self.model: nn.Module = copy.deepcopy(defense.on_model(side.model, side))
        """The model to train."""
        if self.model.state_dict().keys() != self._start.keys():
            raise DoesNotFit(
                f"defense {defense.name!r} adds parameters that the server must have: make its "
                "model by defense.prepare_model(model), and protect that one"
            )
        self._changed_images = self._shared = False
        self._defended_gradients: list[tuple[Tensor | None, int]] = []
        self._defended_steps = 0
        self._rates: list[float] = []
        self._optimiser: Optimizer | None = None
        if make_optimiser is not None:
            self._optimiser = make_optimiser(list(self.model.parameters()))
            self._optimiser.register_step_pre_hook(self._count_step)

    @property
    def optimiser(self) -> Optimizer:
        """The optimiser of :attr:`model`, if :func:`protect` got one to make."""
        if self._optimiser is None:
            raise DoesNotFit("there is no optimiser: pass optimiser= to protect()")
        return self._optimiser

    @property
    def telemetry(self) -> Telemetry:
        """What the defense reports about its work."""
        return self._side.telemetry

    @property
    def memory(self) -> Memory:
        """What the defense keeps for the next round."""
        return self._side.memory

    def images(self, images: Tensor) -> Tensor:
        """Returns images as the defense lets the client train on them.

        Args:
            images: A batch ``[n, C, H, W]`` in [0, 1], before it is normalised.
        """
        self._changed_images = True
        return self.defense.on_images(images, self._side)

    def backward(self, inputs: Tensor, labels: Tensor) -> None:
        """Fills the gradients of :attr:`model` with those of one step.

        The loss is the mean cross-entropy. Where the defense has no gradient of its own, any other
        ``loss.backward()`` will do as well.

        Args:
            inputs: The model's inputs ``[n, C, H, W]``.
            labels: Their classes ``[n]``.
        """
        own = self.defense.on_step(self.model, inputs, labels, self._side)
        self.model.zero_grad()
        if own is None:
            cross_entropy(self.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        else:
            for parameter, found in zip(self.model.parameters(), own, strict=True):
                parameter.grad = found
        self._defended_gradients = self._gradients()
        if self._optimiser is None:
            self._defended_steps += 1

    def gradient(self, *, batch_size: int) -> dict[str, Tensor]:
        """Returns the gradients of :attr:`model` by name, defended; they are then cleared.

        Args:
            batch_size: Images that the gradient is the mean over.
        """
        found = {name: p.grad for name, p in self.model.named_parameters()}
        if all(g is None for g in found.values()):
            raise DoesNotFit("there is no gradient to share: call backward() first, once for each")
        self._check_images()
        if uses_door(self.defense, "on_step") and not self._gradients_are_defended():
            raise self._skipped_call(
                "client.backward(inputs, labels), and leave gradients as they are"
            )
        update = Update.from_gradient(found, batch_size=batch_size)
        sent = self.defense.on_update(update.check(), self._side)
        self.model.zero_grad()
        return sent.gradient()

    def update(
        self, *, batch_size: int, steps: int | None = None, lr: float | None = None
    ) -> Update:
        """Returns what local training changed in the model, defended; only once in a round.

        Args:
            batch_size: Images per local step.
            steps: The number of local steps; needed where :func:`protect` made no optimiser.
            lr: Their learning rate; likewise.
        """
        if self._rates:
            steps, lr = len(self._rates), sum(self._rates) / len(self._rates)
        if steps is None or lr is None:
            raise DoesNotFit(
                "how the client trained is not known: pass optimiser= to protect() and train with "
                "client.optimiser, or pass steps= and lr="
            )
        self._check_images()
        if uses_door(self.defense, "on_step") and self._defended_steps < steps:
            raise self._skipped_call("client.backward(inputs, labels) before each optimiser step")
        self._check_trained()
        change = {n: subtract(t, self._start[n]) for n, t in copy_weights(self.model).items()}
        examples = batch_size if self._side.images is None else len(self._side.images)
        update = Update(change, steps=steps, lr=lr, batch_size=batch_size, examples=examples)
        self._side.weights = self._start
        sent = self.defense.on_update(update.check(), self._side)
        self._shared = True
        return sent

    def weights(
        self, *, batch_size: int, steps: int | None = None, lr: float | None = None
    ) -> dict[str, Tensor]:
        """Returns the same as :meth:`update` as weights, to be sent in place of a ``state_dict``.

        Args:
            batch_size: Images per local step.
            steps: The number of local steps; needed where :func:`protect` made no optimiser.
            lr: Their learning rate; likewise.
        """
        sent = self.update(batch_size=batch_size, steps=steps, lr=lr).change
        found = {n: apply_change(convert_type(self._start[n], c), c) for n, c in sent.items()}
        check_finite(found, "the defended weights have", "the server sent too large weights")
        return found

    def _count_step(self, optimiser: Optimizer, *_: Any) -> None:
        self._rates.append(float(optimiser.param_groups[0]["lr"]))
        self._defended_steps += self._gradients_are_defended()

    def _gradients(self) -> list[tuple[Tensor | None, int]]:
        """The gradients, each with a number that grows when something is added to it."""
        found = [p.grad for p in self.model.parameters()]
        return [(g, 0 if g is None else g._version) for g in found]

    def _gradients_are_defended(self) -> bool:
        """Whether the gradients are still those that :meth:`backward` computed."""
        pairs = zip(self._gradients(), self._defended_gradients, strict=False)
        same = [now is before and a == b for (now, a), (before, b) in pairs]
        return len(same) > 0 and all(same)

    def _check_images(self) -> None:
        if uses_door(self.defense, "on_images") and not self._changed_images:
            raise self._skipped_call("images = client.images(images)")

    def _skipped_call(self, call: str) -> DoesNotFit:
        return DoesNotFit(
            f"defense {self.defense.name!r} was not applied: the loop must call `{call}`"
        )

    def _check_trained(self) -> None:
        """Raises :class:`DoesNotFit` unless ``client.model`` was trained and not shared yet."""
        if self._shared:
            raise DoesNotFit(
                "this round's update was shared already, and twice the same would be less noise: "
                "call protect() again for the next round"
            )
        if not are_equal(copy_weights(self._received), self._start):
            raise DoesNotFit("the model given to protect() was trained: train client.model instead")
        if are_equal(copy_weights(self.model), self._start):
            raise DoesNotFit("client.model was not trained: there is nothing to share")


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model as they are now."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two models have the same tensors."""
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())
