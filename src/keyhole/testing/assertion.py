"""One assertion for a test suite: no attacker reads more of the clients' images than allowed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from keyhole.attacks import Attack
from keyhole.auditing import AuditResult, audit
from keyhole.auditing.gate import judge_gate
from keyhole.auditing.gate_conditions import Condition, Rule
from keyhole.auditing.plan import AUTO
from keyhole.data import ImageSet
from keyhole.defenses import Defense
from keyhole.errors import BadValue
from keyhole.report import write


def assert_private(
    model: str | nn.Module,
    data: str | ImageSet,
    defense: str | Defense = "none",
    *,
    max_read: float = 0.0,
    attacks: Sequence[str | Attack] = (AUTO,),
    victims: int = 4,
    batch_size: int = 1,
    seed: int = 0,
    out: str | Path | None = None,
    **stage: Any,
) -> AuditResult:
    """Audits a model under a defense; raises AssertionError if too many images were read.

    It also raises where nothing was measured: what nobody tested is not private. An audit that
    passes says that these attacks read no more than that, not that no attack can.

    >>> result = assert_private("mlp", "digits", "gaussian(sigma=10)", attacks=["linear"])
    >>> result.verdicts[0].status
    'not broken'

    Args:
        model: The model that clients train.
        data: The images of the victims.
        defense: The defense that all clients use.
        max_read: The largest share of images that any attacker may read, from 0 to 1.
        attacks: The attacks; ``auto``: all that apply to an honest server.
        victims: The number of clients attacked.
        batch_size: Images in a client's batch.
        seed: Seed of weights, victims and noise.
        out: The run folder, for the findings and the page; None: nothing is kept.
        **stage: Further fields of :class:`keyhole.auditing.Stage`, such as ``steps`` and ``lr``.
    """
    if not 0 <= max_read < 1:
        raise BadValue(f"max_read is {max_read!r}: write a share of images from 0 to below 1")
    result = audit(
        model=model,
        data=data,
        defenses=[defense],
        attacks=attacks,
        victims=victims,
        batch_size=batch_size,
        seed=seed,
        out=out,
        **stage,
    )
    pages = [] if out is None else [f"report: {write(result)}"]
    gate = judge_gate(result, [Condition(f"read>{max_read:g}", Rule.READ, limit=max_read)])
    if not gate.passed:
        raise AssertionError("\n".join([*(failure.line for failure in gate.failures), *pages]))
    return result
