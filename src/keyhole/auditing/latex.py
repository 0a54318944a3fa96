r"""Results as LaTeX tables (``\usepackage{booktabs}``), one for each model and data set."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_attack, label_defense
from keyhole.auditing.sections import Section
from keyhole.auditing.verdict import Verdict
from keyhole.metrics import Metric
from keyhole.untrusted import printable

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    **{char: f"\\{char}" for char in "&%$#_"},
}

UP, DOWN = r"$\uparrow$", r"$\downarrow$"
DAGGER, MALICIOUS = r"$^\dagger$", "needs a malicious server, which changes the model."
HOW_TO_READ = (
    "Means over images, below them 95% bootstrap intervals; arrows point to where more is seen."
)


def latex_tables(sections: Sequence[Section]) -> str:
    r"""A ``table`` for each section: means, below them their 95% intervals.

    Names come from files and users; every character that LaTeX would act on is escaped.
    """
    return "\n".join(["% Needs \\usepackage{booktabs}.", *map(latex_table, sections)])


def latex_table(section: Section) -> str:
    """One section; its verdicts alone if no attack returned images."""
    metrics = section.main_metrics
    findings = [f for f in section.findings if any(m.name in f.metrics for m in metrics)]
    body = format_findings(findings, metrics) if findings else format_verdicts(section.verdicts)
    caption = f"{section.model} on {section.data}: {section.facts}."
    if findings:
        caption += f" {HOW_TO_READ}"
    latex_caption = escape(caption)
    if any(not f.honest for f in findings):
        latex_caption += f" {DAGGER} {MALICIOUS}"
    lines = (
        r"\begin{table}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{latex_caption}}}",
        *body,
        r"\end{table}",
    )
    return "\n".join(lines) + "\n"


def format_findings(findings: Sequence[Finding], metrics: Sequence[Metric]) -> list[str]:
    """The ``tabular`` of all attackers who returned images, a rule between defenses."""
    heads = [rf"{escape(m.label)} {UP if m.leaks_high else DOWN}" for m in metrics]
    lines = [
        rf"\begin{{tabular}}{{lll{'r' * len(metrics)}}}",
        r"\toprule",
        rf"{' & '.join(['Defense', 'Attack', 'Attacker', *heads])} \\",
    ]
    last = None
    for finding in findings:
        defense = label_defense(finding.defense)
        if defense != last:
            lines.append(r"\midrule")
        names = ["" if defense == last else defense, label_attack(finding), finding.attacker]
        first = " & ".join(map(escape, names)) + ("" if finding.honest else DAGGER)
        lines.append(rf"{' & '.join([first, *format_means(finding, metrics)])} \\")
        intervals = format_intervals(finding, metrics)
        if any(intervals):
            lines.append(rf"{' & '.join(['', '', '', *intervals])} \\")
        last = defense
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def format_means(finding: Finding, metrics: Sequence[Metric]) -> list[str]:
    """The means of one finding; a dash if a metric was not measured."""
    return [
        format_number(m, finding.metrics[m.name].mean) if m.name in finding.metrics else "--"
        for m in metrics
    ]


def format_intervals(finding: Finding, metrics: Sequence[Metric]) -> list[str]:
    """The intervals of one finding's means; empty if all images agree."""
    cells = []
    for metric in metrics:
        summary = finding.metrics.get(metric.name)
        ends = () if summary is None else (summary.low, summary.high)
        low_high = [format_number(metric, end) for end in ends]
        same = len(set(low_high)) < 2
        cells.append("" if same else rf"{{\scriptsize [{', '.join(low_high)}]}}")
    return cells


def format_verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    """The ``tabular`` of a section without images: the verdict on each defense."""
    rows = [
        rf"{escape(label_defense(v.defense))} & {escape(line.status)} & {escape(str(line))} \\"
        for v in verdicts
        for line in v.lines
    ]
    head = (r"\begin{tabular}{llp{0.6\linewidth}}", r"\toprule", r"Defense & Verdict & Why \\")
    return [*head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]


def format_number(metric: Metric, value: float) -> str:
    """A rounded value, with a minus sign instead of a hyphen."""
    text = escape(metric.format(value))
    return f"$-${text[1:]}" if text.startswith("-") else text


def escape(text: object) -> str:
    r"""Text that LaTeX prints as it is.

    >>> print(escape(r"50% of \input{x}"))
    50\% of \textbackslash{}input\{x\}
    """
    return "".join(SPECIAL.get(char, char) for char in printable(text, longest=1000))
