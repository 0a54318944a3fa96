"""The map of regimes that ships with Keyhole: where its attacks read images, and where not.

A regime is the network, its weights, the images of a local step, the local training, the mode of
batch norms, and the server. ``tools/regimes_table.py`` makes the map from ``results/regimes``,
which ``keyhole study regimes`` measures; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from keyhole.auditing.audit_regime import AuditRegime, read_audit_regime
from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_check import validate

TABLE = "regimes.json"
SOURCE = "results/regimes"


@dataclass(frozen=True)
class MappedRegime:
    """One regime that was measured, without a defense.

    Args:
        model: The model's name.
        network: What people call it.
        norm: The mode of its batch norms; empty: it has none.
        weights: ``fresh``, or the share of its training images that it knows, such as ``70%``.
        batch: Images of a local step.
        local: ``step``, ``steps`` or ``epoch``.
        server: ``honest`` or ``malicious``.
        data: The images.
        read: How many images the best attack read.
        images: How many images were attacked.
        by: That attack.
        auc: The AUC of the best membership attack; None: not asked.
    """

    model: str
    network: str
    norm: str
    weights: str
    batch: int
    local: str
    server: str
    data: str
    read: int
    images: int
    by: str
    auc: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The regime as JSON holds it."""
        return asdict(self)


@dataclass(frozen=True)
class Place:
    """Where an audit stands on the map.

    Args:
        regime: The audit's own regime.
        drawn: All of the map with its network and server.
        here: Those of its regime; an audit whose weights say nothing of their accuracy stands in
            several.
    """

    regime: AuditRegime
    drawn: tuple[MappedRegime, ...]
    here: tuple[MappedRegime, ...]

    @property
    def read(self) -> int:
        """How many images were read here."""
        return sum(each.read for each in self.here)

    @property
    def images(self) -> int:
        """How many images were attacked here."""
        return sum(each.images for each in self.here)

    @property
    def words(self) -> str:
        """What the map says, to follow a verdict."""
        if not self.here:
            return f"this regime was never measured ({SOURCE})"
        about = f"images of {self.here[0].data}, {SOURCE}"
        if not self.read:
            return f"none of our attacks has read anything in this regime ({self.images} {about})"
        best = max(self.here, key=lambda each: each.read / each.images)
        return (
            f"in this regime {best.by} reads {self.read} of {self.images} images without a defense "
            f"({self.here[0].data}, {SOURCE})"
        )


@cache
def read_map() -> tuple[MappedRegime, ...]:
    """The map that comes with the package."""
    text = (resources.files("keyhole.auditing") / TABLE).read_text(encoding="utf-8")
    return tuple(validate(MappedRegime, each) for each in json.loads(text))


def locate(
    findings: Sequence[Finding], regimes: Iterable[MappedRegime] | None = None
) -> Place | None:
    """Where the findings of one setting and server stand; None: their recipe does not say.

    Args:
        findings: Findings of one setting and one kind of server.
        regimes: The map; None: the one that ships.
    """
    regime = read_audit_regime(findings[0]) if findings else None
    if regime is None:
        return None
    every = read_map() if regimes is None else regimes
    drawn = tuple(
        each
        for each in every
        if each.model == regime.model
        and each.server == regime.server
        and each.norm in ("", regime.norm)
    )
    return Place(regime, drawn, find_here(regime, drawn))


def find_here(regime: AuditRegime, drawn: Sequence[MappedRegime]) -> tuple[MappedRegime, ...]:
    """What was measured with these weights and this local training, and the next smaller batch.

    Larger batches and more local steps hide more. A regime therefore counts as that of the largest
    batch on the map that is not larger than its own.
    """
    alike = [
        each
        for each in drawn
        if regime.has_weights(each.weights)
        and each.local == regime.local
        and each.batch <= regime.batch
        and regime.usual
    ]
    batch = max((each.batch for each in alike), default=0)
    return tuple(each for each in alike if each.batch == batch)


def quote_map(findings: Sequence[Finding]) -> str:
    """What the map says of the findings' regime; empty: nobody can say which it is.

    Args:
        findings: Findings of one setting and one kind of server.
    """
    place = locate(findings)
    return "" if place is None else place.words
