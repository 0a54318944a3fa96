"""The frontier: what each defense costs, what it withstands, and so what to do.

Names are imported when they are first used: a plan can be read and refused without torch.
"""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.frontier.outcome import SettingOutcome
    from keyhole.frontier.plan import FrontierPlan
    from keyhole.frontier.result import FrontierResult, SearchOutcome
    from keyhole.frontier.run import find_frontier
    from keyhole.frontier.seed_outcome import Reading, SeedOutcome

__all__ = [
    "FrontierPlan",
    "FrontierResult",
    "Reading",
    "SearchOutcome",
    "SeedOutcome",
    "SettingOutcome",
    "find_frontier",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
