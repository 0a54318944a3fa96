"""Makes what a plan names before any of its pieces runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyhole.attacks import ATTACKS
from keyhole.auditing.plan import AUTO, Stage
from keyhole.defenses import DEFENSES
from keyhole.federation.plan import PARTITIONS
from keyhole.metrics.selection import choose_metrics


def check_parts(
    *, defenses: Iterable[str] = (), attacks: Iterable[str] = (), partitions: Iterable[str] = ()
) -> None:
    """Makes every part once, and raises what is wrong with its name or its parameters.

    Else a mistake in one name would be found when its piece runs, perhaps hours later.

    Args:
        defenses: Defenses, each with one value for each parameter.
        attacks: Attacks on images; ``auto`` names none.
        partitions: How a federation's images are divided among clients.
    """
    for text in dict.fromkeys(defenses):
        DEFENSES.parse(text)
    for text in dict.fromkeys(attacks):
        if text != AUTO:
            ATTACKS.parse(text)
    for text in dict.fromkeys(partitions):
        PARTITIONS.parse(text)


def check_stages(stages: Sequence[Stage]) -> None:
    """Checks what stages of an audit name: see :func:`check_parts`.

    Args:
        stages: Stages in which no parameter has a list.
    """
    check_parts(
        defenses=(name for stage in stages for name in stage.defenses),
        attacks=(name for stage in stages for name in stage.attacks),
    )
    for metrics in dict.fromkeys(stage.metrics for stage in stages):
        choose_metrics(metrics)
