"""Which victims' pictures a run folder keeps: all of them where they fit.

Where they do not, it keeps those of the first victims, who are chosen without regard to what was
read, and those that the attacker saw most clearly.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST_VICTIMS = 8
"""Victims whose first image is always kept, and of whom there are films and loss curves."""
ROOM = 16 * 2**20
"""Bytes of pictures that are kept of what one attacker saw in one setting."""


def choose_kept(clearness: Mapping[int, float], size: int) -> set[int]:
    """The victims whose pictures are kept.

    Chosen from a part of the victims first and then from all that are left, they are the same ones,
    so that a run in chunks keeps what a run in one piece does.

    Args:
        clearness: How clearly each victim's image was seen, by the victim's number.
        size: Bytes of one picture.
    """
    first = {victim for victim in clearness if victim < FIRST_VICTIMS}
    others = sorted(clearness.keys() - first, key=lambda victim: (-clearness[victim], victim))
    room = max(2 * FIRST_VICTIMS, ROOM // max(size, 1)) - FIRST_VICTIMS
    return first | set(others[:room])
