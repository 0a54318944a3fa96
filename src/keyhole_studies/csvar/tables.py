"""The paper's tables with ours beside them, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole_studies.audits import AuditExperiment, attack_of_row
from keyhole_studies.base import Study
from keyhole_studies.csvar.experiments import AccuracyExperiment, MembershipExperiment
from keyhole_studies.csvar.generation import GanExperiment
from keyhole_studies.result_files import Results
from keyhole_studies.tables import combine_tables, format_table

ACCURACIES = ("accuracy", "accuracy_on_defended")
LIKENESSES = ("recognised", "nearest_ssim", "mean_ssim")
SCORES = ("ssim", "psnr", "reid", "read")


def format_accuracies(study: Study, found: Results) -> Iterator[str]:
    """Table I: accuracy on clean test images, and on such as the defense shows."""
    cells = {
        (e.data_name, e.defense, e.network_name): e.name
        for e in study.experiments
        if isinstance(e, AccuracyExperiment) and e.group == "table-1"
    }
    data, _, networks = (list(dict.fromkeys(key[axis] for key in cells)) for axis in range(3))
    rows = []
    for name in data:
        for defense, words in study.labels["defense"].items():
            row = [cells[name, defense, network] for network in networks]
            if any(cell in found for cell in row):
                values = [format_accuracy(study, found, cell) for cell in row]
                counts = {found[c]["test_images"] for c in row if c in found}
                n = " or ".join(f"{count:,}" for count in sorted(counts))
                rows.append([f"{name}, {words}, n = {n}", *values])
    head = ("accuracy %: clean / as defended", *networks)
    yield from format_table("Table I, ten clients", head, rows)


def format_accuracy(study: Study, found: Results, name: str) -> str:
    """``clean / as defended (the paper's)``."""
    (paper,) = study.published["table-1"][name]
    result = found.get(name)
    if result is None:
        return f"- ({paper:.2f})"
    defended = result["accuracy_on_defended"]
    also = "" if defended is None else f" / {100 * defended:.1f}"
    return f"{100 * result['accuracy']:.1f}{also} ({paper:.2f})"


def format_parts(study: Study, found: Results) -> Iterator[str]:
    """The same of CSVAR without some of its parts."""
    rows = [
        [found[e.name]["defense"], *(f"{100 * found[e.name][kind]:.1f}" for kind in ACCURACIES)]
        for e in study.experiments
        if e.group == "parts" and e.name in found
    ]
    head = ("defense", "clean %", "as defended %")
    yield from format_table("What of CSVAR costs accuracy: CIFAR-10, MobileNet", head, rows)


def format_overfitting(study: Study, found: Results) -> Iterator[str]:
    """Figure 1."""
    rows = [
        [
            str(trial["epochs"]),
            f"{100 * trial['train_accuracy']:.1f}",
            f"{100 * trial['test_accuracy']:.1f}",
            f"{trial['inferences'][0]['auc']:.3f}",
        ]
        for experiment in study.experiments
        if experiment.group == "figure-1" and experiment.name in found
        for trial in found[experiment.name]["trials"]
    ]
    low, high = study.published["figure-1"]["overfitting"]
    auc = f"AUC ({low:.1f} to {high:.2f})".replace("0.", ".")
    head = ("epochs", "train %", "test %", auc)
    yield from format_table("Figure 1, overfitting and membership inference by loss", head, rows)


def format_membership(study: Study, found: Results) -> Iterator[str]:
    """Figure 7; the paper's attacker looks at the loss and does not know the defense."""
    rows = []
    for experiment in study.experiments:
        if not isinstance(experiment, MembershipExperiment) or experiment.group != "figure-7":
            continue
        words = study.labels["defense"][experiment.plan.defenses[0]]
        (paper,) = study.published["figure-7"][experiment.name]
        for trial in found.get(experiment.name, {}).get("trials", ()):
            for one in trial["inferences"]:
                same = one["attack"] == "loss" and one["attacker"] == "naive"
                auc = f"{one['auc']:.3f}" + (f" ({paper:.2f})" if same else "")
                rates = [f"{100 * rate['rate']:.1f}" for rate in one["rates"]]
                members = found[experiment.name].get("members", experiment.plan.members)
                who = f"{words}: {one['attack']}, {one['attacker']}, {members} members"
                rows.append([who, f"{100 * trial['gap']:.0f}", auc, *rates])
    head = ("attack", "gap", "AUC", "TPR % at .1% FPR", "at 1%")
    title = "Figure 7, membership inference on a client of 500 images"
    yield from format_table(title, head, rows)


def format_rounds(study: Study, found: Results) -> Iterator[str]:
    """Membership inference by loss on networks of Table I, after so many rounds."""
    rows = []
    for experiment in study.experiments:
        if not isinstance(experiment, AccuracyExperiment) or experiment.name not in found:
            continue
        words = study.labels["defense"].get(experiment.defense, experiment.defense)
        for at in found[experiment.name].get("overfitting", ()):
            shares = [f"{100 * at[key]:.1f}" for key in ("members_accuracy", "others_accuracy")]
            rows.append([experiment.name, words, str(at["round"]), *shares, f"{at['auc']:.3f}"])
    head = ("piece", "defense", "round", "members %", "others %", "AUC by loss")
    yield from format_table("Membership inference on federated networks", head, rows, left=2)


def format_drawings(study: Study, found: Results) -> Iterator[str]:
    """Figure 6: drawings beside images of other classes, which score so without any attack."""
    rows = []
    for experiment in study.experiments:
        if not isinstance(experiment, GanExperiment) or experiment.name not in found:
            continue
        result = found[experiment.name]
        scores = [
            f"{result['generated'][key]:.3f} ({result['others'][key]:.3f})" for key in LIKENESSES
        ]
        accuracy = f"{100 * result['accuracy']:.0f}"
        rows.append([experiment.name, result["attacker"], accuracy, *scores])
    head = ("piece", "attacker", "model %", "recognised", "SSIM to nearest", "SSIM to class mean")
    yield from format_table("Figure 6, drawn by a GAN (images of other classes)", head, rows)


def format_audits(study: Study, found: Results) -> Iterator[str]:
    """What attackers see of images on their way, and read out of updates."""
    rows = []
    for experiment in study.experiments:
        if not isinstance(experiment, AuditExperiment) or experiment.name not in found:
            continue
        for name, row in found[experiment.name]["rows"].items():
            values = [f"{row['metrics'][score]['mean']:.3f}" for score in SCORES]
            who = f"{attack_of_row(name)}, {row['attacker']}"
            count = str(found[experiment.name]["images"])
            rows.append([experiment.name, who, count, *values])
    head = ("cell", "attack", "images", "SSIM", "PSNR", "re-identified", "read")
    yield from format_table("What is seen of the images", head, rows)


format_tables = combine_tables(
    format_accuracies,
    format_parts,
    format_overfitting,
    format_membership,
    format_rounds,
    format_drawings,
    format_audits,
)
