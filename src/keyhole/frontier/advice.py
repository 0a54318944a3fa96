"""What to do after an audit: from a frontier, or else from what was measured in its regime."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from keyhole.auditing.listed_values import name_data_of_all_seeds, name_plain_data
from keyhole.auditing.measured import find_measured
from keyhole.auditing.measurement import Measurement, Regime, read_regime
from keyhole.auditing.results import AuditResult
from keyhole.auditing.sections import Section
from keyhole.auditing.verdict import HONEST
from keyhole.data.sources import SOURCES, is_path
from keyhole.defenses import DEFENSES
from keyhole.errors import KeyholeError
from keyhole.frontier.advice_words import describe_advice
from keyhole.frontier.outcome import SettingOutcome
from keyhole.frontier.plan import UNDEFENDED
from keyhole.frontier.result import FRONTIER_FILE, FrontierResult
from keyhole.models.architectures import check_model_name

FRONTIER, MEASURED, NOTHING = "frontier", "measured", "nothing"
CANDIDATES = "dropout,topk(k=[0.1,0.01])"
SEARCH = "gaussian(sigma=1e-5..1e-1)"


@dataclass(frozen=True)
class AdvisedSetting:
    """A setting of a defense that was measured.

    Args:
        defense: The defense, as reports name it.
        held: Whether nobody read an image; never a promise.
        read: The share of images that the worst attacker read.
        low: The lower end of its 95% interval.
        high: The upper end.
        images: How many images it attacked.
        attackers: Everybody who was tried.
        points: Points of accuracy lost against no defense; None: not measured.
        seconds: Further seconds of training in a round; None: not measured, or seeds disagree.
    """

    defense: str
    held: bool
    read: float
    low: float
    high: float
    images: int
    attackers: tuple[str, ...]
    points: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Advice:
    """What to do about one model on one data set.

    Args:
        model: The model's name.
        data: What reports call the images.
        source: ``frontier``, ``measured`` or ``nothing``.
        where: The folder of the frontier, or the regime that was looked up.
        settings: What was measured there: those that held first, the mildest of them first.
        not_measured: Defenses that were measured nowhere in this regime.
        command: The command that measures more.
        lines: All of it in sentences.
    """

    model: str
    data: str
    source: str
    where: str
    settings: tuple[AdvisedSetting, ...]
    not_measured: tuple[str, ...]
    command: str
    lines: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The advice as JSON holds it; its part of the schema is ``$defs/advice``."""
        return asdict(self)


def load_frontier(result: AuditResult, given: Path | None = None) -> FrontierResult | None:
    """The frontier that a user names, or else that in the audit's run folder, or else None.

    Args:
        result: The audit.
        given: The folder of a frontier.
    """
    if given is not None:
        return FrontierResult.load(given)
    if result.store is None or not (result.store.root / FRONTIER_FILE).is_file():
        return None
    return FrontierResult.load(result.store.root / FRONTIER_FILE)


def advise(result: AuditResult, frontier: FrontierResult | None = None) -> tuple[Advice, ...]:
    """One piece of advice for each model on each data set of an audit; seeds count together.

    Args:
        result: The audit.
        frontier: A frontier, which counts where it is about the same model and data; None: the one
            in the run folder, if there is one.
    """
    frontier = frontier or load_frontier(result)
    return tuple(advise_section(section, frontier) for section in join_seeds(result.sections))


def join_seeds(sections: Sequence[Section]) -> list[Section]:
    """Sections that differ in their seed alone as one."""
    joined: dict[tuple[str, str], Section] = {}
    for section in sections:
        first = section.findings[0] if section.findings else None
        data = section.data if first is None else name_data_of_all_seeds(first)
        before = joined.get((section.model, data), Section(section.model, data, (), ()))
        joined[section.model, data] = replace(
            before,
            findings=(*before.findings, *section.findings),
            verdicts=(*before.verdicts, *section.verdicts),
        )
    return list(joined.values())


def advise_section(section: Section, frontier: FrontierResult | None) -> Advice:
    """What to do about one model on one data set."""
    about, data = frontier, find_data(section)
    if about is not None and (about.plan.model, about.plan.data) != (section.model, data):
        about = None
    regime = find_regime(section)
    measured = find_measured(regime, HONEST) if about is None and regime is not None else []
    if about is not None:
        source, where = FRONTIER, "" if about.folder is None else str(about.folder)
        settings = order_settings(
            [advise_outcome(each, about) for each in about.settings if each.judged]
        )
        tried = {each.defense["name"] for each in about.settings}
    else:
        source = MEASURED if measured else NOTHING
        where = "" if regime is None else regime.facts
        settings = order_settings([advise_measurement(each) for each in measured])
        tried = {each.defense["name"] for each in measured}
    advice = Advice(
        section.model,
        section.data,
        source,
        where,
        tuple(settings),
        tuple(name for name in DEFENSES.names() if name not in tried),
        write_command(section),
    )
    return Advice(**{**vars(advice), "lines": tuple(describe_advice(advice, section, frontier))})


def find_regime(section: Section) -> Regime | None:
    """The regime of a section's findings; None where nothing was found."""
    if not section.findings:
        return None
    return read_regime(section.model, find_data(section), section.findings[0].recipe)


def find_data(section: Section) -> str:
    """The name of a section's images, without what its plan lists."""
    return name_plain_data(section.findings[0]) if section.findings else section.data


def order_settings(settings: Sequence[AdvisedSetting]) -> list[AdvisedSetting]:
    """Settings that held first, by what they cost; then the broken ones, by what was read."""
    return sorted(
        settings, key=lambda s: (not s.held, s.points if s.held and s.points else 0.0, s.read)
    )


def advise_outcome(outcome: SettingOutcome, frontier: FrontierResult) -> AdvisedSetting:
    """A setting of a frontier."""
    read, worst, plain = outcome.read, outcome.worst, frontier.undefended
    assert read is not None
    assert worst is not None
    cost = None if plain is None or outcome.defense["name"] == UNDEFENDED else outcome.cost(plain)
    return AdvisedSetting(
        outcome.label,
        outcome.held,
        read.value,
        read.low,
        read.high,
        worst.images,
        outcome.attackers,
        None if cost is None else cost.points.value,
        cost.seconds if cost is not None and cost.agreed else None,
    )


def advise_measurement(measured: Measurement) -> AdvisedSetting:
    """A measurement of the shipped table, which says nothing of accuracy."""
    low, high = measured.interval
    return AdvisedSetting(
        measured.label,
        measured.held,
        measured.share,
        low,
        high,
        measured.images,
        measured.attackers,
    )


def write_command(section: Section) -> str:
    """The command that makes a frontier of the same model and data, where names can say them."""
    words = ["keyhole", "frontier"]
    words += ["--model", section.model if is_model(section.model) else "MODEL"]
    data = find_data(section)
    recipe = section.findings[0].recipe if section.findings else {}
    if recipe.get("captured"):  # what reports call these images goes on with round and clients
        data = data.split(", captured in round ")[0]
    words += ["--data", data if is_data(data) else "DATA"]
    if recipe.get("batch_size", 1) > 1:
        words += ["--victim-images", str(recipe["batch_size"])]
    words += ["--defenses", CANDIDATES, "--search", SEARCH, "--seeds", "0,1,2"]
    return shlex.join(words)


def is_model(name: str) -> bool:
    """Whether a command can name this model."""
    try:
        check_model_name(name)
    except KeyholeError:
        return False
    return True


def is_data(name: str) -> bool:
    """Whether a command can name these images."""
    return name in SOURCES or (is_path(name) and Path(name).is_dir())
