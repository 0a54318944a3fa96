"""The gate: whether an audit's result is good enough to go on, and if not, why.

A setting that was not tested or not scored fails every condition: what nobody measured is no pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keyhole.auditing.comparison import RunComparison, VerdictPair, compare_runs
from keyhole.auditing.differences import Leak
from keyhole.auditing.finding import Finding
from keyhole.auditing.gate_conditions import Condition, Rule
from keyhole.auditing.labels import label_defense
from keyhole.auditing.results import AuditResult
from keyhole.auditing.verdict import HONEST, MALICIOUS, Verdict
from keyhole.auditing.verdict_words import name_attacker
from keyhole.defenses import Acted

Setting = tuple[str, str, str]
"""Model, data set and defense, as reports name them; all empty: the whole audit."""
WHOLE: Setting = ("", "", "")


@dataclass(frozen=True)
class GateFailure:
    """One condition that one setting met.

    Args:
        condition: The condition, as the user wrote it.
        rule: Why it fails: ``broken``, ``read``, ``defense-idle``, ``worse-than`` or
            ``not-tested``.
        model: The model's name; empty if the failure is about the whole audit.
        data: What reports call the images.
        defense: The defense, as reports name it.
        server: ``honest`` or ``malicious``; None if it is about neither.
        attacker: The attack and its kind; None if nobody read anything.
        read: The share of images that was read; None if nobody can say.
        limit: The share that is allowed; None if there is none.
        words: What was read, against what limit.
    """

    condition: str
    rule: str
    model: str
    data: str
    defense: str
    server: str | None
    attacker: str | None
    read: float | None
    limit: float | None
    words: str

    @property
    def setting(self) -> Setting:
        """Model, data set and defense."""
        return self.model, self.data, self.defense

    @property
    def line(self) -> str:
        """The failure in one line."""
        server = f", {self.server} server" if self.server else ""
        where = f"{name_setting(self.setting)}{server}: "
        return f"{where}{self.words} ({self.condition})"


@dataclass(frozen=True)
class Gate:
    """What a gate decided.

    Args:
        conditions: The conditions, as the user wrote them.
        settings: The settings that were judged: model, data set and defense.
        failures: What failed, in the order of the conditions.
    """

    conditions: tuple[str, ...]
    settings: tuple[Setting, ...]
    failures: tuple[GateFailure, ...]

    @property
    def passed(self) -> bool:
        """Whether no condition was met."""
        return not self.failures

    def failures_of(self, setting: Setting) -> tuple[GateFailure, ...]:
        """What failed in one setting.

        Args:
            setting: Model, data set and defense.
        """
        return tuple(failure for failure in self.failures if failure.setting == setting)

    def to_json(self) -> dict[str, Any]:
        """The key ``gate`` of what ``--json`` prints."""
        return {
            "passed": self.passed,
            "conditions": list(self.conditions),
            "failures": [asdict(failure) for failure in self.failures],
        }


def judge_gate(
    result: AuditResult,
    conditions: Sequence[Condition],
    baselines: Mapping[Path, AuditResult] | None = None,
) -> Gate:
    """Checks every condition in every setting of an audit.

    Args:
        result: The audit.
        conditions: The conditions under which the gate fails.
        baselines: The runs that ``worse-than`` names, by their path in the condition; one that is
            missing is opened.
    """
    failures: list[GateFailure] = []
    for condition in conditions:
        if condition.rule is Rule.IDLE:
            found = [f for v in result.verdicts for f in check_acted(v, condition)]
        elif condition.baseline is None:
            found = [f for v in result.verdicts for f in check_verdict(v, condition)]
        else:
            known = (baselines or {}).get(condition.baseline)
            baseline = AuditResult.load(condition.baseline) if known is None else known
            found = list(check_comparison(compare_runs(baseline, result), condition))
        if not result.verdicts and not found:
            found = [fail(condition, WHOLE, Rule.UNTESTED, "the audit tested nothing")]
        failures += found
    settings = dict.fromkeys([*map(setting_of, result.verdicts), *(f.setting for f in failures)])
    return Gate(tuple(c.text for c in conditions), tuple(settings), tuple(failures))


def fail(
    condition: Condition,
    setting: Setting,
    rule: Rule,
    words: str,
    *,
    server: str | None = None,
    attacker: str | None = None,
    read: float | None = None,
    limit: float | None = None,
) -> GateFailure:
    model, data, defense = setting
    return GateFailure(
        condition.text, rule.value, model, data, defense, server, attacker, read, limit, words
    )


def setting_of(verdict: Verdict) -> Setting:
    return verdict.model, verdict.data, label_defense(verdict.defense)


def name_setting(setting: Setting) -> str:
    """A setting in words.

    >>> name_setting(("mlp", "digits", "none"))
    'mlp on digits, none'
    """
    model, data, defense = setting
    return f"{model} on {data}, {defense}" if model else "all settings"


def check_verdict(verdict: Verdict, condition: Condition) -> Iterator[GateFailure]:
    """What of one setting meets a condition on what was read."""
    setting, judged = setting_of(verdict), verdict.by_server
    servers = [condition.server] if condition.server else list(judged)
    for server in servers:
        outcome = judged.get(server)
        if outcome is None:
            words = f"not tested: no attack with {article(server)} server was run on images"
            yield fail(condition, setting, Rule.UNTESTED, words, server=server)
        elif outcome.read is None:
            yield fail(condition, setting, Rule.UNTESTED, outcome.words, server=server)
        elif condition.is_met(outcome.read):
            broken = condition.rule is Rule.BROKEN
            allowed = "none allowed" if broken else describe_limit(condition)
            yield fail(
                condition,
                setting,
                condition.rule,
                f"{describe_read(outcome.by, outcome.read)}, {allowed}",
                server=server,
                attacker=outcome.by,
                read=outcome.read,
                limit=condition.limit,
            )


def check_acted(verdict: Verdict, condition: Condition) -> Iterator[GateFailure]:
    """Whether a setting's defense did nothing or too little, or nobody can tell."""
    acted, setting = verdict.acted, setting_of(verdict)
    if acted is None and verdict.defense["name"] != "none":
        yield fail(condition, setting, Rule.UNTESTED, "whether the defense acted was not checked")
    elif acted is not None and acted.failed:
        yield fail(condition, setting, Rule.IDLE, acted.words)
    elif acted is not None and acted.status is Acted.UNKNOWN:
        yield fail(condition, setting, Rule.UNTESTED, acted.words)


def check_comparison(compared: RunComparison, condition: Condition) -> Iterator[GateFailure]:
    """What is worse than in the baseline, or cannot be compared with it."""
    reported: set[tuple[Setting, str]] = set()
    for pair in compared.verdicts:
        for server in pair.servers:
            failure = check_pair(pair, server, condition)
            if failure is not None:
                reported.add((failure.setting, server))
                yield failure
    for findings in compared.findings:
        difference = findings.differences.get("read")
        place = setting_and_server(findings.second)
        if difference is None or difference.leak is not Leak.MORE or place in reported:
            continue
        by = name_attacker(findings.second)
        yield fail(
            condition,
            place[0],
            Rule.WORSE,
            f"{describe_read(by, difference.second)}, {difference.first:.1%} in the baseline",
            server=place[1],
            attacker=by,
            read=difference.second,
            limit=difference.first,
        )
    for finding in compared.only_first:
        place = setting_and_server(finding)
        if finding.reads_images and place not in reported:
            by = name_attacker(finding)
            words = f"not tested: {by} attacked the baseline and was not run as there"
            yield fail(condition, place[0], Rule.UNTESTED, words, server=place[1], attacker=by)


def check_pair(pair: VerdictPair, server: str, condition: Condition) -> GateFailure | None:
    """Whether the verdict on one setting and server is worse than in the baseline."""
    before, now = pair.judged(server)
    setting = setting_of(pair.either)
    if now is None or now.read is None:
        words = "not tested: the baseline has it, this audit has not" if now is None else now.words
        return fail(condition, setting, Rule.UNTESTED, words, server=server)
    if before is None or before.read is None:
        what = "does not have it" if before is None else f"says {before.status}"
        words = f"cannot be compared: the baseline {what}; audit the baseline anew"
        return fail(condition, setting, Rule.UNTESTED, words, server=server, read=now.read)
    if now.read <= before.read:
        return None
    return fail(
        condition,
        setting,
        Rule.WORSE,
        f"{describe_read(now.by, now.read)}, {before.read:.1%} in the baseline",
        server=server,
        attacker=now.by,
        read=now.read,
        limit=before.read,
    )


def setting_and_server(finding: Finding) -> tuple[Setting, str]:
    setting = finding.model, finding.data, label_defense(finding.defense)
    return setting, HONEST if finding.honest else MALICIOUS


def describe_read(by: str | None, read: float) -> str:
    """Who read which share of the images.

    >>> describe_read("linear (naive)", 0.5)
    'linear (naive) read 50.0% of the images'
    """
    return f"{by or 'nobody'} read {read:.1%} of the images"


def describe_limit(condition: Condition) -> str:
    """The limit of a condition in words."""
    return f"{'less than' if condition.inclusive else 'at most'} {condition.limit:.1%} allowed"


def article(server: str) -> str:
    """The server's kind with its article.

    >>> article("honest")
    'an honest'
    """
    return f"{'an' if server == HONEST else 'a'} {server}"
