"""The paper's tables with ours beside them, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keyhole.defenses import Mjp
from keyhole_studies.audits import attack_of_row
from keyhole_studies.base import Study
from keyhole_studies.mjp.april import GAMMA, SCORES, SETTINGS, AprilExperiment
from keyhole_studies.mjp.evaluation import GAMMAS
from keyhole_studies.mjp.experiments import PrivacyExperiment, TrainingExperiment
from keyhole_studies.result_files import Results
from keyhole_studies.tables import Cell, combine_tables, format_pairs, format_table

NETWORK_HEAD = ("network", "top-1 %", "Diff. Norm.", "consistency %")
AUDIT_HEAD = ("gamma, attack", "attacker", "images", "SSIM", "PSNR", "LPIPS", "Re-ID %", "read %")
DIGITS = {"psnr": 1, "mse": 4, "fft2d": 4}


def format_networks(study: Study, found: Results) -> Iterator[str]:
    """Table 1."""
    rows = [
        [name, *format_pairs(read_scores(found[name]), paper)]
        for name, paper in study.published["table-1"].items()
        if name in found
    ]
    yield from format_table(
        "Table 1, CIFAR-10's 10,000 test images (the paper's: ImageNet)", NETWORK_HEAD, rows
    )


def read_scores(result: Mapping[str, Any]) -> tuple[float, float, float]:
    """Top-1 in %, the difference of features, consistency in %."""
    value = result["evaluation"]
    return 100 * value["accuracy"], value["difference_norm"], 100 * value["consistency"]


def format_variants(study: Study, found: Results) -> Iterator[str]:
    """Table 2."""
    rows = []
    for name, paper in study.published["table-2"].items():
        if name in found:
            top_1, _, same = read_scores(found[name])
            rows.append([study.labels["table-2"][name], *format_pairs((top_1, same), paper)])
    yield from format_table(
        "Table 2, variants, 10,000 test images", ("variant", "top-1 %", "consistency %"), rows
    )


def format_gammas(study: Study, found: Results) -> Iterator[str]:
    """Table 3."""
    rows = []
    for name, paper in study.published["table-3"].items():
        if name in found:
            experiment = study.find(name)
            assert isinstance(experiment, TrainingExperiment)
            defense = experiment.parse_defense()
            assert isinstance(defense, Mjp)
            rows.append([f"{defense.gamma:g}", *format_pairs(read_scores(found[name]), paper)])
    yield from format_table(
        "Table 3, gamma in training, 10,000 test images", ("gamma", *NETWORK_HEAD[1:]), rows
    )


def format_inference(study: Study, found: Results) -> Iterator[str]:
    """Figure 2 as a table."""
    rows = [
        [e.name, *(100 * found[e.name]["evaluation"]["accuracy_by_gamma"][str(g)] for g in GAMMAS)]
        for e in study.experiments
        if e.group == "figure-2" and e.name in found
    ]
    head = ("network", *map(str, GAMMAS))
    yield from format_table("Figure 2, top-1 % by gamma at inference", head, rows)


def format_positions(study: Study, found: Results) -> Iterator[str]:
    """Tables 7 and 8."""
    rows, errors = [], []
    for name, words in study.labels["positions"].items():
        value = found.get(name, {}).get("positions")
        if value is None:
            continue
        ours = [100 * v for v in value["explained_variance"].values()]
        rows.append([words, *format_pairs(ours, study.published["table-7"].get(name, ()))])
        pair = (value["regression_1d"], value["regression_2d"])
        paper = study.published["table-8"].get(name, ())
        errors.append([words, *format_pairs(pair, paper, digits=3)])
    yield from format_table("Table 7, explained variance %", ("network", *"34567"), rows)
    title = "Table 8, error of positions by regression"
    yield from format_table(title, ("network", "1D", "2D"), errors)


def format_robustness(study: Study, found: Results) -> Iterator[str]:
    """Table 4's measures."""
    rows = []
    for name, result in found.items():
        value = result.get("robustness")
        if value is not None:
            unseen = value.get("aupr_out", value.get("aupr_out_cifar100"))
            rows.append([name, 100 * value["mce"], 100 * value["aurra"], 100 * unseen])
    head = ("network", "mean error %", "AURRA %", "AUPR % (CIFAR-100 unseen)")
    yield from format_table("Table 4's measures, our corruptions of CIFAR-10", head, rows)


def format_april(study: Study, found: Results) -> Iterator[str]:
    """Table 5, ours and the paper's; accuracies are those of the trained networks' experiments."""
    head = ("setting", *map(str.upper, SCORES), "TOP-1 %")
    for experiment in study.experiments:
        if not isinstance(experiment, AprilExperiment) or experiment.name not in found:
            continue
        result = found[experiment.name]
        rows = [
            [
                f"{setting} {name}",
                *(format_score(each[setting][k], k) for k in SCORES),
                find_accuracy(found.get(name), setting),
            ]
            for setting in SETTINGS
            for name, each in result["rows"].items()
        ]
        title = f"Table 5, APRIL as published, {experiment.label}, {result['images']} images"
        yield from format_table(title, head, rows)
    rows = [
        [
            name,
            *(format_score(v, k) for v, k in zip(values, SCORES, strict=True)),
            *study.published["table-5-accuracy"][name],
        ]
        for name, values in study.published["table-5"].items()
    ]
    yield from format_table("Table 5, the paper's", head, rows)


def find_accuracy(trained: Mapping[str, Any] | None, setting: str) -> float | None:
    """A network's accuracy on what a setting shows it, in percent; None: it was not measured.

    Args:
        trained: The result of the experiment that trained the network.
        setting: ``a`` to ``d``; in ``c`` it is told all positions, which is not measured.
    """
    if trained is None or setting == "c":
        return None
    by_gamma = trained["evaluation"]["accuracy_by_gamma"]
    return float(100 * by_gamma["0.0" if setting == "a" else str(GAMMA)])


def format_privacy(study: Study, found: Results) -> Iterator[str]:
    """What attackers read at each gamma, and from which gamma on nothing was read."""
    audits = [e for e in study.experiments if isinstance(e, PrivacyExperiment) and e.name in found]
    audits.sort(key=lambda e: (e.gamma, e.name))
    for network, words in study.labels["audits"].items():
        one, several = (
            [e for e in audits if e.network == network and e.updates == updates]
            for updates in ("one", "several")
        )
        titles = (f"Attackers, {words}", f"Several updates by one image, {network}")
        for title, some in zip(titles, (one, several), strict=True):
            rows = [row for e in some for row in make_attack_rows(e, found[e.name])]
            yield from format_table(title, AUDIT_HEAD, rows)
        yield from format_verdict("one update", one, found)
        yield from format_verdict("several updates", several, found)


def format_verdict(
    words: str, audits: Sequence[PrivacyExperiment], found: Results
) -> Iterator[str]:
    """From which gamma on nothing that was tried read an image."""
    read: dict[float, float] = {}
    for audit in audits:
        rows = found[audit.name]["rows"].values()
        shares = [row["metrics"]["read"]["mean"] for row in rows]
        read[audit.gamma] = max([read.get(audit.gamma, 0.0), *shares])
    if not read:
        return
    broken = max((gamma for gamma, share in read.items() if share > 0), default=None)
    unbroken = [gamma for gamma in sorted(read) if broken is None or gamma > broken]
    yield ""
    if unbroken:
        yield f"  {words}: nothing tried read an image from gamma = {unbroken[0]:g} on"
    else:
        yield f"  {words}: images were read at every gamma tried, up to {max(read):g}"


def make_attack_rows(audit: PrivacyExperiment, result: Mapping[str, Any]) -> list[list[Cell]]:
    """A row for every attacker of an audit."""
    rows: list[list[Cell]] = []
    for name, row in result["rows"].items():
        metrics = {k: v["mean"] for k, v in row["metrics"].items()}
        words = f"{audit.gamma:g} {attack_of_row(name)}"
        if row["iterations"]:
            words += f", {row['iterations']:.0f} steps"
        repeats = result["stage"].get("repeats", 1)
        words += f", {repeats} updates" if repeats > 1 else ""
        scores = ("ssim", "psnr", "lpips")
        values = [format_score(metrics[k], k) if k in metrics else "" for k in scores]
        shares = [100 * metrics["reid"], 100 * metrics["read"]]
        rows.append([words, row["attacker"], str(result["images"]), *values, *shares])
    return rows


def format_score(value: float, name: str) -> str:
    return f"{value:.{DIGITS.get(name, 3)}f}"


format_tables = combine_tables(
    format_networks,
    format_variants,
    format_gammas,
    format_inference,
    format_positions,
    format_robustness,
    format_april,
    format_privacy,
)
