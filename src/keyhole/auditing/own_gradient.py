"""An attack on a gradient of one's own: what can be seen of the images behind it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from keyhole.attacks import ATTACKS, Attack
from keyhole.auditing.gradient_search import GradientAttackResult, GradientSearch, tune_attack
from keyhole.auditing.plan import AUTO
from keyhole.data import Normalisation
from keyhole.defenses import DEFENSES, Defense
from keyhole.errors import BadUpdate, BadValue, DoesNotFit
from keyhole.mean_and_std import check_mean_and_std, parse_deviations, parse_means
from keyhole.models.building import count_logits
from keyhole.settings import ClientMode, parse_mode
from keyhole.threat import Knowledge, Server
from keyhole.update import Update

Gradient = Mapping[str, Tensor | None] | Sequence[Tensor | None] | Update


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
        gradient: The gradient as ``torch.autograd.grad`` returns it, or by parameter name, or an
            :class:`~keyhole.Update` of several steps; None means the parameters' ``.grad``.
        image_shape: Channels, height and width of one image.
        attack: The attack, or its name; ``auto`` tries closed forms first, then iterative
            attacks, and returns the result of greatest confidence.
        labels: The images' classes, if they are known.
        batch_size: The number of images; None means one for each label, or a single image.
        classes: The number of classes; None means one for each logit.
        mean: The mean that was subtracted from pixels in [0, 1]: one number, or one per channel.
            None means that pixels were not normalised, unless what is found fits a common
            normalisation better.
        std: The standard deviation that pixels were divided by; given with ``mean``.
        client_mode: The mode that the model was in: ``train``, ``eval`` or ``frozen-norm``. None
            means that it is inferred from the gradient, or chosen by the smaller loss.
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
    search = GradientSearch(
        Server(model).receive(update, knowledge),
        given_mode=None if client_mode is None else parse_mode(client_mode),
        assumed=normalisation if mean is None else None,
        notes=notes,
    )
    if attack == AUTO:
        search.try_all(iterations, seed)
    elif isinstance(attack, str):
        search.run(tune_attack(ATTACKS.resolve(attack), search.observation, iterations, seed))
    else:
        search.run(attack)
    return search.conclude()


def read_gradient(
    model: nn.Module,
    gradient: Gradient | None,
    labels: Tensor | Sequence[int] | None,
    batch_size: int | None,
) -> tuple[Update, list[str]]:
    """The gradient as an update, and notes on what was assumed."""
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
    """Mean and std of each channel; 0 and 1 if neither is given."""
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
