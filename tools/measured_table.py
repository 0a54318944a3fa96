"""Makes the table of measurements that ships with Keyhole from the repository's results.

    python tools/measured_table.py src/keyhole/auditing/measured.json

Run it again whenever ``results/`` gains a result that says which images were read: cells of studies
and results of audits. The day of a measurement is that of the commit that its file is from.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keyhole.atomic import read_json, write_text
from keyhole.attacks import ATTACKS
from keyhole.auditing import (
    HONEST,
    MALICIOUS,
    AuditResult,
    Measurement,
    measure_findings,
    merge_measurements,
    read_regime,
)
from keyhole.defenses import DEFENSES
from keyhole.errors import KeyholeError
from keyhole.parameters import make_recordable
from keyhole_studies import STUDIES, load_study
from keyhole_studies.audits import AuditExperiment, attack_of_row
from keyhole_studies.result_files import read_result

ROOT = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the shipped table of measurements.")
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="the results")
    given = parser.parse_args(argv)
    rows = measure_results(given.results)
    write_text(given.out, format_table(rows))
    print(f"{len(rows)} measurements")
    return 0


def measure_results(results: Path) -> list[Measurement]:
    """What the results say: cells of studies first, then results of audits."""
    dates = read_dates(results)
    measured = [*measure_studies(results, dates), *measure_audits(results, dates)]
    return sorted(merge_measurements(measured), key=lambda m: (m.regime, m.server, m.label))


def measure_studies(results: Path, dates: Mapping[Path, str]) -> Iterator[Measurement]:
    """The measurements of every study's cells that are audits."""
    for name in STUDIES:
        for experiment in load_study(name).experiments:
            found = read_result(results / name, experiment.name)
            if isinstance(experiment, AuditExperiment) and found and found["rows"]:
                path = results / name / f"{experiment.name}.json"
                yield from measure_cell(experiment, found, path, dates, results)


def measure_cell(
    experiment: AuditExperiment,
    found: Mapping[str, Any],
    path: Path,
    dates: Mapping[Path, str],
    results: Path,
) -> Iterator[Measurement]:
    """One measurement for each attacker of a cell."""
    stage = experiment.stage
    recipe = {**stage.model_dump(mode="json"), **found["stage"]}
    recipe["batch_size"] = stage.images_per_update
    spec = DEFENSES.parse(stage.defenses[0]).spec
    for name, row in found["rows"].items():
        values = row["metrics"].get("read", {}).get("per_image")
        if not values:
            continue
        attack = attack_of_row(name)
        who, read = f"{attack} ({row['attacker']})", round(sum(values))
        altered = attack in ATTACKS.names() and ATTACKS[attack].altered_model is not None
        yield Measurement(
            regime=read_regime(stage.model, stage.data, recipe),
            defense={"name": spec.name, "parameters": make_recordable(spec.parameters)},
            server=MALICIOUS if altered else HONEST,
            read=read,
            images=len(values),
            by=who if read else None,
            attackers=(who,),
            date=dates.get(path, ""),
            version=str(found["versions"]["keyhole"]),
            source=path.relative_to(results.parent).as_posix(),
        )


def measure_audits(results: Path, dates: Mapping[Path, str]) -> Iterator[Measurement]:
    """The measurements of results that audits wrote as a whole."""
    for path in sorted(results.rglob("*.json")):
        facts = dates.get(path, ""), path.relative_to(results.parent).as_posix()
        try:
            result = AuditResult.load(path)
        except KeyholeError:  # a cell of a study, a benchmark, or findings that were rounded
            yield from measure_rounded(read_json(path), *facts)
        else:
            yield from measure_findings(result.findings, date=facts[0], source=facts[1])


def measure_rounded(found: Any, date: str, source: str) -> Iterator[Measurement]:
    """The measurements of findings whose values were rounded, which no reader accepts."""
    findings = found.get("findings", ()) if isinstance(found, dict) else ()
    for each in findings:
        values = each["metrics"].get("read", {}).get("per_image")
        if values:
            who, read = f"{each['attack']} ({each['attacker']})", round(sum(values))
            honest = each["knowledge"].get("altered_model") is None
            yield Measurement(
                regime=read_regime(each["model"], each["data"], each["recipe"]),
                defense=each["defense"],
                server=HONEST if honest else MALICIOUS,
                read=read,
                images=len(values),
                by=who if read else None,
                attackers=(who,),
                date=date,
                version=str(each["versions"]["keyhole"]),
                source=source,
            )


def read_dates(results: Path) -> dict[Path, str]:
    """The day of the last commit of each result; empty outside a repository."""
    command = ["git", "log", "--format=@%cs", "--name-only", "--", "."]
    shown = subprocess.run(command, cwd=results, capture_output=True, text=True, check=False)
    top = subprocess.run(
        ["git", "rev-parse", "--show-toplevel"],
        cwd=results,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    dates: dict[Path, str] = {}
    day = ""
    for line in shown.stdout.splitlines():
        if line.startswith("@"):
            day = line[1:]
        elif line:
            dates.setdefault(Path(top) / line, day)
    return dates


def format_table(rows: Sequence[Measurement]) -> str:
    """The table as JSON, one line for each measurement."""
    lines = ",\n".join(json.dumps(row.to_json()) for row in rows)
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    sys.exit(main())
