"""A whole frontier: every setting that was measured, as one object and one JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from keyhole.atomic import read_json, write_json
from keyhole.auditing.finding_check import validate
from keyhole.errors import RunFolderError, one_line
from keyhole.frontier.outcome import SettingOutcome, find_front, find_near_front
from keyhole.frontier.plan import UNDEFENDED, FrontierPlan
from keyhole.frontier.seed_outcome import SeedOutcome
from keyhole.settings import make_settings

FRONTIER_FILE = "frontier.json"
"""The file of a frontier in its folder, and in that of an audit that was given one."""
VERSION = 1


@dataclass(frozen=True)
class SearchOutcome:
    """What a search for the mildest strength that holds came to.

    Args:
        text: The range as the user wrote it.
        tried: The settings in the order in which they were tried, as reports name them.
        mildest: The mildest setting that held; None: even the strongest was broken.
        broken: The strongest milder setting that was broken; None: even the mildest held.
        words: The outcome as a sentence.
    """

    text: str
    tried: tuple[str, ...]
    mildest: str | None
    broken: str | None
    words: str


@dataclass(frozen=True)
class FrontierResult:
    """Everything that a frontier measured.

    Args:
        plan: What was asked for.
        settings: One outcome for each setting, no defense first.
        unfit: Settings that could not be measured, and why.
        searches: One for each range that was searched.
        date: The day on which it was measured, ``2026-01-31``.
        versions: Versions of Keyhole, Python and the packages that computed it.
        folder: Where it was read from or written to; None: nowhere.
    """

    plan: FrontierPlan
    settings: tuple[SettingOutcome, ...]
    unfit: dict[str, str]
    searches: tuple[SearchOutcome, ...]
    date: str
    versions: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def undefended(self) -> SettingOutcome | None:
        """The outcome without a defense; None if it could not be measured."""
        found = [each for each in self.settings if each.defense["name"] == UNDEFENDED]
        return found[0] if found else None

    @cached_property
    def front(self) -> list[SettingOutcome]:
        """The settings that no other beats in accuracy and in what was read."""
        return find_front(self.settings)

    @cached_property
    def near_front(self) -> list[SettingOutcome]:
        """Settings behind the front that the intervals cannot tell from it."""
        return find_near_front(self.settings)

    @property
    def mildest(self) -> list[SettingOutcome]:
        """Of each kind of defense the setting that costs least of those that nobody broke."""
        held: dict[str, SettingOutcome] = {}
        for each in (s for s in self.settings if s.held):
            best = held.get(each.defense["name"])
            if best is None or rank_mildness(each) < rank_mildness(best):
                held[each.defense["name"]] = each
        return sorted(held.values(), key=rank_mildness)

    @property
    def broken(self) -> list[SettingOutcome]:
        """The settings of which an attacker read an image, the worst first."""
        found = [each for each in self.settings if each.read and each.read.value > 0]
        return sorted(found, key=lambda each: -(each.read.value if each.read else 0))

    def to_json(self) -> dict[str, Any]:
        """The frontier as plain JSON values; what follows from the others is there as well."""
        from keyhole.frontier.words import describe_frontier

        return {
            "schema_version": VERSION,
            "kind": "frontier",
            "plan": self.plan.to_json(),
            "settings": [describe_setting(each, self) for each in self.settings],
            "unfit": self.unfit,
            "searches": [vars(each) for each in self.searches],
            "date": self.date,
            "versions": self.versions,
            "front": [each.label for each in self.front],
            "mildest": [each.label for each in self.mildest],
            "words": describe_frontier(self),
        }

    @classmethod
    def from_json(cls, values: Any, *, source: str = "a frontier") -> FrontierResult:
        """Reads what :meth:`to_json` gave; what follows from the rest is computed anew.

        Args:
            values: The JSON object.
            source: Where it came from, for errors.
        """
        if not isinstance(values, dict) or values.get("kind") != "frontier":
            raise RunFolderError(f"{source} is no frontier: make one with keyhole frontier")
        if values.get("schema_version") != VERSION:
            raise RunFolderError(
                f"{source} has schema_version {values.get('schema_version')!r}, this keyhole reads "
                f"{VERSION}: make it anew with keyhole frontier"
            )
        try:
            settings = tuple(read_setting(each) for each in values["settings"])
            return cls(
                make_settings(FrontierPlan, values["plan"]),
                settings,
                validate(dict[str, str], values["unfit"]),
                tuple(validate(SearchOutcome, each) for each in values["searches"]),
                validate(str, values["date"]),
                validate(dict[str, str], values["versions"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{source} is not as keyhole frontier writes it ({one_line(error)}): make it anew"
            ) from None

    @classmethod
    def load(cls, place: str | Path) -> FrontierResult:
        """Opens a frontier.

        Args:
            place: Its folder, or the file in it.
        """
        path = Path(place)
        path = path if path.is_file() else path / FRONTIER_FILE
        if not path.is_file():
            raise RunFolderError(f"{path} does not exist: name a folder of keyhole frontier")
        found = cls.from_json(read_json(path), source=str(path))
        return FrontierResult(**{**vars_of(found), "folder": path.parent})

    def save(self, folder: Path) -> Path:
        """Writes :meth:`to_json` into a folder.

        Args:
            folder: The folder.
        """
        return write_json(folder / FRONTIER_FILE, self.to_json())


def vars_of(found: FrontierResult) -> dict[str, Any]:
    """The fields of a frontier by name."""
    return {name: getattr(found, name) for name in FrontierResult.__dataclass_fields__}


def rank_mildness(setting: SettingOutcome) -> tuple[float, float]:
    """What a setting costs: accuracy first, then seconds."""
    return -setting.accuracy.value, setting.seconds_per_round


def describe_setting(setting: SettingOutcome, whole: FrontierResult) -> dict[str, Any]:
    """A setting as JSON holds it: what each seed gave, and what follows from it."""
    plain = whole.undefended
    cost = None if plain is None or plain is setting else setting.cost(plain)
    read, worst = setting.read, setting.worst
    return {
        "label": setting.label,
        "searched": setting.searched,
        "accuracy": vars(setting.accuracy),
        "read": None if read is None else vars(read),
        "worst": None if worst is None else vars(worst),
        "cost": None
        if cost is None
        else {"points": vars(cost.points), "seconds_per_round": cost.seconds},
        "attackers": list(setting.attackers),
        "on_front": setting in whole.front,
        "seeds": [each.to_json() for each in setting.seeds],
    }


def read_setting(values: Any) -> SettingOutcome:
    """A setting out of JSON; raises ValueError where a frontier could not have written it."""
    seeds = tuple(SeedOutcome.from_json(each) for each in values["seeds"])
    if not seeds:
        raise ValueError("a setting needs one seed or more")
    return SettingOutcome(seeds, validate(str, values["searched"]))


def make_result(
    plan: FrontierPlan,
    outcomes: Sequence[SettingOutcome],
    unfit: dict[str, str],
    searches: Sequence[SearchOutcome],
) -> FrontierResult:
    """A frontier measured today by this version; a setting that came twice counts once."""
    from datetime import UTC, datetime

    from keyhole.auditing.finding import read_versions

    by_label: dict[str, SettingOutcome] = {}
    for each in outcomes:
        by_label.setdefault(each.label, each)
    today = datetime.now(UTC).date().isoformat()
    return FrontierResult(
        plan, tuple(by_label.values()), unfit, tuple(searches), today, read_versions()
    )
