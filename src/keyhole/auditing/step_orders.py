"""In which order a client's local steps took its images, which no server knows."""

from __future__ import annotations

import math

from keyhole.federation.training import cut_batches

MAX_ORDERS = 24
"""Orders of a client's images that an attack tries, each as a trial."""


def count_orders(images: int, batch: int, steps: int) -> int:
    """The ways in which a client may have divided its images among its steps.

    Of many images, and of several epochs, a lower bound above :data:`MAX_ORDERS`.

    Args:
        images: The client's number of images.
        batch: Images of a full batch.
        steps: Local steps.

    >>> count_orders(4, 2, 2), count_orders(5, 2, 2), count_orders(4, 4, 9)
    (6, 10, 1)
    >>> min(count_orders(10**6, 16, 2), count_orders(2, 1, 4)) > MAX_ORDERS
    True
    """
    cuts = cut_batches(images, min(batch, images))
    if len(cuts) == 1 or steps == 1 == len(cuts):
        return 1
    if images > MAX_ORDERS or steps > len(cuts):
        return max(images, MAX_ORDERS + 1)
    ways = math.factorial(images)
    for cut in cuts:
        ways //= math.factorial(cut.stop - cut.start)
    return ways


def choose_trials(trials: int, orders: int) -> int:
    """The first guesses for each client: one for every order, if all of them are tried.

    Args:
        trials: The first guesses that an attack makes of itself.
        orders: The ways in which the client may have divided its images.
    """
    return max(trials, orders) if orders <= MAX_ORDERS else trials


def note_orders(orders: int, steps: int) -> tuple[str, ...]:
    """Says what attacks do where the order of a client's images is not known.

    Args:
        orders: The ways in which the client may have divided its images.
        steps: Local steps.
    """
    if orders == 1:
        return ()
    note = f"which image was in which of the {steps} steps is not known: "
    if orders <= MAX_ORDERS:
        return (f"{note}iterative attacks try all {orders} orders",)
    return (f"{note}attacks that unroll steps take them for one large step on all images",)
