"""What a client's look at an incoming model found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Alarm:
    """One thing about a model that honest initialisation and training do not produce.

    Args:
        name: What was found, in one or two words: ``ladder``, ``dead layer``.
        layer: The layer or tensor where it was found; empty if it is about the whole model.
        sentence: What is wrong there, with numbers, in one plain sentence.
    """

    name: str
    layer: str
    sentence: str

    def __str__(self) -> str:
        place = f" in {self.layer!r}" if self.layer else ""
        return f"{self.name}{place}: {self.sentence}"


@dataclass(frozen=True)
class NotChecked:
    """A check that could not be run.

    Args:
        check: What was not checked.
        why: What was missing for it, and what to do.
    """

    check: str
    why: str

    def __str__(self) -> str:
        return f"{self.check}: {self.why}"


@dataclass(frozen=True)
class IncomingCheck:
    """What was found in the model that a server sent.

    Args:
        alarms: What no honest server would send, in the order of the checks.
        checked: The names of the checks that were run.
        not_checked: The checks that could not be run.
        hash: The sha256 of the model, by which clients can compare theirs.
    """

    alarms: tuple[Alarm, ...]
    checked: tuple[str, ...]
    not_checked: tuple[NotChecked, ...]
    hash: str

    @property
    def suspicious(self) -> bool | None:
        """Whether there is an alarm; None if there is none but the architecture is not known."""
        if self.alarms:
            return True
        return False if "architecture" in self.checked else None

    @property
    def words(self) -> str:
        """The verdict in one line."""
        if self.alarms:
            first, more = self.alarms[0], len(self.alarms) - 1
            return f"{first}{f' (and {more} more alarms)' if more else ''}"
        missing = "; ".join(f"{each.check} ({each.why})" for each in self.not_checked)
        return f"no alarm{f'; not checked: {missing}' if missing else ''}"

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as plain values, with the verdict."""
        return {"suspicious": self.suspicious, "words": self.words, **asdict(self)}
