"""Lists what there is to choose from: attacks, defenses, models, data sets and metrics."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keyhole.attacks import ATTACKS
from keyhole.attacks.membership import MEMBERSHIP
from keyhole.data.sources import OWN_FOLDER, SOURCES, known_sources
from keyhole.defenses import DEFENSES
from keyhole.errors import KeyholeError
from keyhole.metrics.selection import NAMED
from keyhole.models import FAMILIES, MODELS, PLUGINS, USER_MODEL, Architecture
from keyhole.models.architectures import known_models
from keyhole.parameters import default_parameters, parameter_names
from keyhole.registry import Registry

if TYPE_CHECKING:
    from keyhole.defenses import Defense

Entry = dict[str, Any]


def build_catalogue() -> dict[str, list[Entry]]:
    """Lists attacks on images and on membership, defenses, models, data sets and metrics.

    Those of other packages come after Keyhole's own, and say where they are from.
    """
    return {kind: list_parts() for kind, list_parts in LISTS.items()}


def list_members(registry: Registry[Any]) -> Iterator[tuple[str, Any, str]]:
    """Returns each part with its name and the package that adds it; none for Keyhole's own."""
    for member in registry:
        yield str(vars(member)["name"]), member, ""
    for plugin, part in registry.load_installed():
        yield plugin.name, part, plugin.package


def part_entry(name: str, part: Any, package: str = "") -> Entry:
    """Describes an attack on membership, a defense, or a function that makes one.

    Args:
        name: The name by which users ask for it.
        part: A class, a function that makes one, or an object.
        package: The package that adds it; empty for Keyhole's own.
    """
    maker = part if callable(part) else type(part)
    usual = default_parameters(maker)
    entry: Entry = {
        "name": name,
        "summary": summary_of(part),
        "paper": getattr(part, "paper", ""),
        "parameters": usual,
    }
    required = [each for each in parameter_names(maker) if each not in usual]
    return entry | ({"required": required} if required else {}) | origin_entry(package)


def attack_entry(name: str, part: Any, package: str = "") -> Entry:
    """Describes an attack on images; see :func:`part_entry`."""
    entry = part_entry(name, part, package)
    try:
        made = ATTACKS.make(part, name, {})
    except KeyholeError:  # one of its parameters must be given
        return entry
    return entry | {
        "needs": made.needs,
        "is_given": sorted(made.given),
        "adapts_to": sorted(d for d, defense in usual_defenses() if made.knows(defense)),
        "alters_model": made.altered_model,
    }


def defense_entry(name: str, part: Any, package: str = "") -> Entry:
    """Describes a defense; see :func:`part_entry`."""
    entry = part_entry(name, part, package)
    try:
        made = DEFENSES.make(part, name, {})
    except KeyholeError:  # one of its parameters must be given
        return entry
    return entry | {"declares": sorted(made.declares)}


def usual_defenses() -> Iterator[tuple[str, Defense]]:
    """Makes every defense with its default parameters, where all of them have defaults."""
    for name, part, _ in list_members(DEFENSES):
        with contextlib.suppress(KeyholeError):
            yield name, DEFENSES.make(part, name, {})


def model_entries() -> list[Entry]:
    """Lists the models by name, those of other packages, and the ways to name others."""
    found: list[Entry] = [
        {"name": m.name, "summary": m.summary, "paper": m.paper} for m in MODELS.values()
    ]
    for plugin, part in PLUGINS.load_all():
        paper = part.paper if isinstance(part, Architecture) else ""
        summary = summary_of(part)
        found.append(
            {"name": plugin.name, "summary": summary, "paper": paper} | origin_entry(plugin.package)
        )
    for family, (summary, _) in FAMILIES.items():
        found.append({"name": f"{family}:NAME", "summary": summary, "paper": ""})
    private = "any of these made fit for DP-SGD: BatchNorm becomes GroupNorm (Opacus)"
    adapted = "a frozen vision transformer of these with adapters: only they and the head train"
    own = (
        "your own: called with those of classes, channels and image_size (height, width) that it "
        "has arguments for"
    )
    return [
        *found,
        {"name": "dp:NAME", "summary": private, "paper": ""},
        {"name": "adapters:NAME", "summary": adapted, "paper": "Houlsby et al. 2019"},
        {"name": USER_MODEL, "summary": own, "paper": ""},
    ]


def metric_entry(name: str, part: Any, package: str = "") -> Entry:
    """Describes a metric, or a function that makes one; see :func:`part_entry`."""
    entry: Entry = {"name": name, "summary": summary_of(part)} | origin_entry(package)
    try:
        made = NAMED.make(part, name, {})
    except KeyholeError:  # one of its parameters must be given
        return entry
    seen = {"summary": made.summary, "more is seen when": "high" if made.leaks_high else "low"}
    return entry | seen


def summary_of(part: Any) -> str:
    """Returns the one-line summary of a part, or the first line of its docstring."""
    lines = inspect.cleandoc(part.__doc__ or "").splitlines()
    return getattr(part, "summary", "") or remove_roles(lines[0] if lines else "")


def remove_roles(text: str) -> str:
    """Removes Sphinx's marks.

    >>> remove_roles("``sigma`` as in :mod:`keyhole.attacks.noise`")
    '`sigma` as in `keyhole.attacks.noise`'
    """
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`")


def origin_entry(package: str) -> Entry:
    return {"from": package} if package else {}


def data_entries() -> list[Entry]:
    """Lists the data sets by name, and the way to name a folder."""
    known = [{"name": s.name, "summary": s.summary, "needs": s.where} for s in SOURCES.values()]
    own = {"name": OWN_FOLDER, "summary": "any folder of images", "needs": "CLASS/IMAGE.png"}
    return [*known, own]


LISTS: dict[str, Callable[[], list[Entry]]] = {
    "attacks": lambda: [attack_entry(*each) for each in list_members(ATTACKS)],
    "membership": lambda: [part_entry(*each) for each in list_members(MEMBERSHIP)],
    "defenses": lambda: [defense_entry(*each) for each in list_members(DEFENSES)],
    "models": model_entries,
    "data": data_entries,
    "metrics": lambda: [metric_entry(*each) for each in list_members(NAMED)],
}
"""The functions that list the parts of each kind."""
NAMES: dict[str, Callable[[], list[str]]] = {
    "attacks": ATTACKS.known_names,
    "membership": MEMBERSHIP.known_names,
    "defenses": DEFENSES.known_names,
    "models": known_models,
    "data": known_sources,
    "metrics": NAMED.known_names,
}
"""The functions that list their names, which import no part."""
