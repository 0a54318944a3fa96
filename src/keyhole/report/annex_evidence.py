"""What a run found, in the sentences that an annex puts beside what documents ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.membership_result import MembershipResult
from keyhole.auditing.results import AuditResult
from keyhole.auditing.verdict import BROKEN, HONEST, NOT_BROKEN
from keyhole.defenses.budget import read_budget
from keyhole.metrics.proportion import proportion_interval
from keyhole.report import membership_view, view
from keyhole.report.lights import SERVERS, UNDEFENDED, Judged, list_judged
from keyhole.report.words import count_noun, join_words
from keyhole.threat import Attacker


@dataclass(frozen=True)
class SettingEvidence:
    """One setting before one kind of server.

    Args:
        where: Model and images.
        defense: The defense.
        server: ``honest`` or ``malicious``.
        status: The verdict's.
        read: How many images were read of how many; empty where nobody can say.
        interval: The exact 95% interval of that share.
        by: The worst attacker; empty if no image was read.
        adaptive: Whether an attacker who knows the defense was tried.
    """

    where: str
    defense: str
    server: str
    status: str
    read: str
    interval: str
    by: str
    adaptive: bool


@dataclass(frozen=True)
class Evidence:
    """What a run has to say; a part that it says nothing about is empty.

    Args:
        title: The run's title.
        headline: What was found, in a sentence.
        facts: Who was attacked, one line for each regime.
        settings: What was read in each setting.
        reconstruction: Whether images were reconstructed from updates.
        means: What attackers had, and how long they took.
        adaptive: Whether attackers who know the defense were tried.
        labels: Whether labels were inferred.
        membership: Whether members were told from other images.
        defenses: The defenses that were tried.
        claims: Budgets of differential privacy that defenses claim.
        acted: Whether the defenses acted as they declare.
        server: What the server saw.
        versions: What computed it.
    """

    title: str
    headline: str
    facts: tuple[str, ...] = ()
    settings: tuple[SettingEvidence, ...] = ()
    reconstruction: str = ""
    means: str = ""
    adaptive: str = ""
    labels: str = ""
    membership: str = ""
    defenses: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    acted: str = ""
    server: str = ""
    versions: str = ""

    @property
    def read_any(self) -> bool:
        """Whether any image was read."""
        return any(each.status == BROKEN for each in self.settings)


def gather_evidence(result: AuditResult | MembershipResult) -> Evidence:
    """What a run has to say.

    Args:
        result: What was found.
    """
    if isinstance(result, MembershipResult):
        return gather_membership(result)
    findings = result.findings
    settings = tuple(
        describe_setting(f"{section.model} on {section.data}", server, each)
        for section in result.sections
        for server in SERVERS
        for each in list_judged(section, server)
    )
    names = dict.fromkeys(label_defense(f.defense) for f in findings)
    versions = findings[0].versions if findings else {}
    return Evidence(
        title=result.title,
        headline=view.summarise_verdicts(result.verdicts),
        facts=tuple(f"{s.model} on {s.data}: {s.facts}" for s in result.sections),
        settings=settings,
        reconstruction=describe_reconstruction(settings),
        means=describe_means(findings),
        adaptive=describe_adaptive(settings),
        labels=describe_labels(findings),
        defenses=tuple(name for name in names if name != UNDEFENDED),
        claims=list_claims(findings),
        acted=describe_acted(findings),
        server=describe_server(findings),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
    )


def gather_membership(result: MembershipResult) -> Evidence:
    """What a membership run has to say."""
    headline = membership_view.summarise_trials(result.trials)
    details = "; ".join(
        f"{membership_view.label_trial(trial)}, {trial.epochs} epochs: AUC {trial.worst.auc:.3f} "
        f"[{trial.worst.auc_low:.3f}, {trial.worst.auc_high:.3f}] by {trial.worst.attack}"
        for trial in result.trials
    )
    names = dict.fromkeys(membership_view.label_trial(trial) for trial in result.trials)
    attacks = dict.fromkeys(
        f"{each.attack} ({each.attacker})" for trial in result.trials for each in trial.inferences
    )
    return Evidence(
        title=f"Membership: {result.plan.model} on {result.plan.data}",
        headline=headline,
        facts=(membership_view.describe_experiment(result),),
        membership=f"{headline} {details}. Attacks tried: {join_words(list(attacks))}.",
        defenses=tuple(name for name in names if name != UNDEFENDED),
        versions=", ".join(f"{name} {version}" for name, version in result.versions.items()),
    )


def describe_setting(where: str, server: str, judged: Judged) -> SettingEvidence:
    """One setting before one kind of server."""
    outcome, images = judged.outcome, judged.images
    known = outcome.status in (BROKEN, NOT_BROKEN) and images > 0
    read = round((outcome.read or 0.0) * images)
    low, high = proportion_interval(read, images) if known else (0.0, 1.0)
    return SettingEvidence(
        where=where,
        defense=judged.name,
        server=server,
        status=outcome.status,
        read=f"{read} of {images}" if known else "",
        interval=f"{low:.0%} – {high:.0%}" if known else "",
        by=outcome.by or "",
        adaptive=any(f.attacker == Attacker.ADAPTIVE for f in judged.findings),
    )


def describe_reconstruction(settings: Sequence[SettingEvidence]) -> str:
    """In how many settings images were read, for each kind of server."""
    found = []
    for server in SERVERS:
        known = [each for each in settings if each.server == server and each.read]
        broken = sum(each.status == BROKEN for each in known)
        if known:
            found.append(
                f"{'an' if server == HONEST else 'a'} {server} server read images in {broken} of "
                f"{count_noun(len(known), 'setting')}"
            )
    if not found:
        return ""
    words = join_words(found)
    return f"Reconstruction from updates was tested: {words}."


def describe_means(findings: Sequence[Finding]) -> str:
    """Which attacks were tried, what they were given, how long they took."""
    attacks = dict.fromkeys(f.attack for f in findings if f.reads_images)
    if not attacks:
        return ""
    seconds = [f.seconds / f.victims for f in findings if f.reads_images]
    devices = join_words(list(dict.fromkeys(str(f.recipe.get("device", "")) for f in findings)))
    low, high = min(seconds), max(seconds)
    span = f"{high:.2g} s" if math.isclose(low, high) else f"{low:.2g} to {high:.2g} s"
    where = f" on {devices}" if devices else ""
    return (
        f"Attacks tried: {join_words(list(attacks))}. They took {span} for each client{where}; "
        "whoever holds the updates can run them."
    )


def describe_adaptive(settings: Sequence[SettingEvidence]) -> str:
    """How many of the defended settings met an attacker who knows the defense."""
    met: dict[tuple[str, str], bool] = {}
    for each in settings:
        if each.defense != UNDEFENDED:
            key = each.where, each.defense
            met[key] = met.get(key, True) and each.adaptive
    if not met:
        return ""
    return (
        f"Attackers who know the defense were tried in {sum(met.values())} of "
        f"{count_noun(len(met), 'defended setting')}."
    )


def describe_labels(findings: Sequence[Finding]) -> str:
    """The largest share of labels that was inferred."""
    shares = [f.metrics["labels"].mean for f in findings if "labels" in f.metrics]
    if not shares:
        return ""
    return f"The images' classes were inferred as well: at worst {max(shares):.0%} of them."


def list_claims(findings: Sequence[Finding]) -> tuple[str, ...]:
    """The budgets that defenses report of themselves."""
    found = {}
    for finding in findings:
        budget = read_budget(finding.telemetry)
        if budget is not None:
            name = label_defense(finding.defense)
            found[name] = f"{name} claims epsilon {budget.epsilon:.3g}, delta {budget.delta:.1g}"
    return tuple(found.values())


def describe_acted(findings: Sequence[Finding]) -> str:
    """How many defenses acted as they declare; empty if nobody checked."""
    known = {label_defense(f.defense): f.acted for f in findings if f.acted is not None}
    if not known:
        return ""
    failed = [name for name, acted in known.items() if acted.failed]
    if failed:
        return f"Checked on the clients' updates: {join_words(failed)} did less than declared."
    words = "the defense" if len(known) == 1 else f"all {len(known)} defenses"
    return f"Checked on the clients' updates: no sign that {words} did less than declared."


def describe_server(findings: Sequence[Finding]) -> str:
    """What stands behind an update that the server saw."""
    sums = sorted({int(f.recipe.get("aggregate", 1)) for f in findings})
    images = sorted({int(f.recipe["batch_size"]) for f in findings})
    if not sums:
        return ""
    whose = "each client's own update"
    if sums[-1] > 1:
        whose = f"secure sums of {join_words([str(n) for n in sums])} clients"
    behind = f"{' or '.join(str(n) for n in images)} image{'' if images == [1] else 's'}"
    return f"The attackers saw {whose}, with {behind} behind it, and the model that was sent out."
