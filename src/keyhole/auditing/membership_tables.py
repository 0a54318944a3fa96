"""A membership experiment as plain rows, for data frames, CSV files and LaTeX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.auditing.labels import label_defense
from keyhole.auditing.latex import escape
from keyhole.auditing.tables import Row

if TYPE_CHECKING:
    from keyhole.auditing.membership_result import MembershipResult


def inference_rows(result: MembershipResult) -> list[Row]:
    """One row for each attacker against each model.

    ``tpr_at_0.01`` is the true-positive rate at a false-positive rate of 1%.
    """
    plan = result.plan
    return [
        {
            "model": plan.model,
            "data": plan.data,
            "defense": label_defense(trial.defense),
            "epochs": trial.epochs,
            "attack": inference.attack,
            "attacker": str(inference.attacker),
            "members": result.members,
            "others": result.others,
            "auc": inference.auc,
            "auc_low": inference.auc_low,
            "auc_high": inference.auc_high,
            "balanced_accuracy": inference.balanced_accuracy,
            **{f"tpr_at_{rate.limit:g}": rate.rate for rate in inference.rates},
            "train_accuracy": trial.train_accuracy,
            "test_accuracy": trial.test_accuracy,
            "seconds": inference.seconds,
            "seed": plan.seed,
        }
        for trial in result.trials
        for inference in trial.inferences
    ]


def membership_latex(result: MembershipResult) -> str:
    """One LaTeX table of all attackers."""
    rows = inference_rows(result)
    rates = [name for name in rows[0] if name.startswith("tpr_at_")]
    heads = [f"TPR at {float(name.removeprefix('tpr_at_')):g}" for name in rates]
    lines = [
        "% Needs \\usepackage{booktabs}.",
        r"\begin{table}[t]",
        r"\centering\footnotesize",
        rf"\caption{{{escape(write_caption(result))}}}",
        rf"\begin{{tabular}}{{lrllr{'r' * len(rates)}}}",
        r"\toprule",
        rf"{' & '.join(['Defense', 'Epochs', 'Attack', 'Attacker', 'AUC', *heads])} \\",
        r"\midrule",
        *(build_latex_row(row, rates) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def build_latex_row(row: dict[str, Any], rates: list[str]) -> str:
    """The table's row for one attacker."""
    names = [escape(row[name]) for name in ("defense", "epochs", "attack", "attacker")]
    auc = rf"{row['auc']:.3f} {{\scriptsize [{row['auc_low']:.3f}, {row['auc_high']:.3f}]}}"
    shares = [rf"{row[name]:.1%}".replace("%", r"\%") for name in rates]
    return rf"{' & '.join([*names, auc, *shares])} \\"


def write_caption(result: MembershipResult) -> str:
    """The table's caption."""
    return (
        f"Membership inference, {result.plan.model} on {result.plan.data}: {result.members} "
        f"members, {result.others} others, seed {result.plan.seed}; 95% intervals of the AUC."
    )
