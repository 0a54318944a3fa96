"""What a study is: experiments that can be run one by one, on any machine, and shown together."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

from keyhole.atomic import check_writable
from keyhole.auditing import Progress
from keyhole.errors import KeyholeError, RunFolderError
from keyhole.spelling import unknown_name
from keyhole_studies.comparisons import Comparison
from keyhole_studies.result_files import read_result, write_result

if TYPE_CHECKING:
    import torch


NAMED = 3
"""Failed experiments whose reasons are told, at most."""


class ExperimentsFailed(KeyholeError):
    """Experiments that failed; all others that were asked for have run.

    Args:
        failed: Each one's name, and why.
    """

    def __init__(self, failed: Mapping[str, KeyholeError]) -> None:
        reasons = [f"{name}: {error}" for name, error in failed.items()]
        more = f"; and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
        count = f"{len(reasons)} experiments failed: " if len(reasons) > 1 else ""
        super().__init__(count + "; ".join(reasons[:NAMED]) + more)


@dataclass(frozen=True)
class StudyContext:
    """Where and how experiments run.

    Args:
        runs: Folder of the audits' run folders and of trained weights.
        data_dir: Folder of data sets; None: the one that ``KEYHOLE_DATA`` names.
        device: ``auto``, ``cpu`` or ``cuda``.
        progress: Told what is being done.
        victims_at_once: Victims that share the device; None: as many as fit.
        changes: Fields that replace those of every audit's stage; None changes nothing.
    """

    runs: Path
    data_dir: str | None
    device: str
    progress: Progress
    victims_at_once: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def name_device(device: torch.device) -> str:
    """What a result says of where it was computed: the GPU's name, or ``cpu``."""
    import torch  # studies are listed without it

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@dataclass(frozen=True)
class Experiment(ABC):
    """One cell of a study: what is measured in one go, and what the paper reports of it.

    Args:
        name: Identifies the experiment and names the file of its result.
        figure: The paper's figure or table, such as ``T2`` or ``F3``.
        group: Which of the study's own tables shows the result.
        paper: The paper's figures.
        explained_by: Experiments of the study whose results say why ours differ from the paper's,
            each with a line about it.
        waits: Why there is no result yet.
    """

    name: str
    figure: str = field(default="", kw_only=True)
    group: str = field(default="", kw_only=True)
    paper: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    explained_by: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    waits: str = field(default="", kw_only=True)

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @abstractmethod
    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        """Runs the experiment and returns its result, as JSON can hold it."""

    def complete(
        self, known: dict[str, Any], study: Study, context: StudyContext
    ) -> dict[str, Any]:
        """Returns a whole result where an earlier one lacks something; by default all is run anew.

        Args:
            known: The earlier result.
            study: The study.
            context: Where and how the experiment runs.
        """
        return self.measure(study, context)

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """What an earlier result lacks, ``part (...)`` or ``stale (...)``; empty: nothing.

        Args:
            known: The earlier result.
            context: Where and how the experiment would run now.
        """
        return ""

    def covers(self, known: dict[str, Any], context: StudyContext) -> bool:
        """Whether an earlier result is as good as a new one would be."""
        return not self.find_gap(known, context)

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """The paper's figures beside those of a result.

        Args:
            study: The study, which holds rows of the paper's tables.
            known: The result.
        """
        yield from ()

    def count_measured(self, known: dict[str, Any]) -> str:
        """What a result rests on, in a word or two."""
        count = known.get("images")
        return "" if count is None else f"{count:,} image{'' if count == 1 else 's'}"

    def tell(self, known: dict[str, Any]) -> str:
        """What a result found, in a line; it stands where the paper has no figure."""
        return ""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the experiment does, for a list."""


@dataclass(frozen=True)
class Study:
    """A paper's tables and figures as experiments.

    Args:
        name: The study's name on the command line.
        title: What the study is about.
        paper: The paper that it reproduces.
        experiments: In the order in which they run.
        seed: Seed of all experiments.
        labels: Words for a table or a figure, by what they label and its identifier.
        published: Rows of the paper's tables, by table and experiment.
        format_tables: Writes the results of a folder as lines of text; None: one line per attack.
        draw_figures: Draws the paper's figures from a folder of results into another folder and
            returns their paths; None: there are none.
    """

    name: str
    title: str
    paper: str
    experiments: tuple[Experiment, ...]
    seed: int = 0
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    format_tables: Callable[[Study, Path], Iterator[str]] | None = None
    draw_figures: Callable[[Study, Path, Path], list[Path]] | None = None

    def find(self, name: str) -> Experiment:
        """The experiment of this name."""
        for experiment in self.experiments:
            if experiment.name == name:
                return experiment
        raise unknown_name(
            f"experiment of study {self.name}", name, [e.name for e in self.experiments]
        )

    def choose(self, patterns: Sequence[str]) -> list[Experiment]:
        """The experiments whose names match, each once; all of them without any pattern.

        Args:
            patterns: Names, or patterns such as ``curve-*-small``.
        """
        if not patterns:
            return list(self.experiments)
        chosen: dict[str, Experiment] = {}
        for pattern in patterns:
            matching = [e for e in self.experiments if fnmatchcase(e.name, pattern)]
            if not matching:
                self.find(pattern)
            chosen |= {experiment.name: experiment for experiment in matching}
        return list(chosen.values())

    def run(
        self,
        experiments: Sequence[Experiment],
        context: StudyContext,
        *,
        results: Path,
        within: float | None = None,
    ) -> Iterator[Experiment]:
        """Runs the experiments that have no result yet, one after the other, and yields each.

        Args:
            experiments: Which to run.
            context: Where and how they run.
            results: The folder of results.
            within: No experiment is begun after so many seconds.

        Raises:
            ExperimentsFailed: Some failed for reasons that the user can correct; the others ran.
        """
        began, failed = time.monotonic(), dict[str, KeyholeError]()
        for experiment in experiments:
            if within is not None and time.monotonic() - began > within:
                break
            known = read_result(results, experiment.name)
            if known is not None and experiment.covers(known, context):
                continue
            check_writable(results)
            try:
                found = (
                    experiment.measure(self, context)
                    if known is None
                    else experiment.complete(known, self, context)
                )
            except RunFolderError:
                raise
            except KeyholeError as error:
                failed[experiment.name] = error
                continue
            write_result(results, experiment.name, found)
            yield experiment
        if failed:
            raise ExperimentsFailed(failed)
