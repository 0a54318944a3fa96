"""Whether several defenses in a row acted: what of their traces still holds of what leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import nn

from keyhole.data import load
from keyhole.defenses import DEFENSES, Acted, Defense, NoDefense, check_defense
from keyhole.errors import KeyholeError
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")
MODEL = build("lenet", classes=10, channels=1, image_size=8)
QUIET = {
    "flower-clipping": "flower-clipping(clipping_norm=0.1)",
    "censor": "censor(trials=2)",
    "gaussian": "gaussian(sigma=0.01)",
    "tip": "tip(beta=0.1)",
    "agp": "agp(sigma=0.1)",
}
"""Settings that are quick, or that later defenses could hide."""


def updated(
    defense: Defense, training: LocalTraining | None = None, model: nn.Module = MODEL
) -> Update:
    return train_client(
        model,
        digits.images([1, 2]),
        digits.labels[[1, 2]],
        data=digits,
        defense=defense,
        generator=generator(0),
        training=training,
    )[0]


def fitting_pairs(first: str) -> Iterator[Defense]:
    """What ``first`` can be joined with, each behind it."""
    for second in DEFENSES.names():
        text = f"{QUIET.get(first, first)} + {QUIET.get(second, second)}"
        try:
            joined = DEFENSES.parse(text)
            joined.validate(MODEL)
        except KeyholeError:  # the same twice, two steps, or no dropout to set
            continue
        yield joined


@pytest.mark.parametrize("first", [name for name in DEFENSES.names() if name != "none"])
def test_no_pair_of_defenses_raises_a_false_alarm(first: str) -> None:
    for package in ("opacus", "flwr"):
        pytest.importorskip(package)
    training = LocalTraining(steps=2, lr=0.05)
    for joined in fitting_pairs(first):
        model = joined.prepare_model(MODEL)
        sent, plain = (updated(each, training, model) for each in (joined, NoDefense()))
        for reference in (plain, None):
            check = check_defense(joined, sent, model, reference=reference)
            assert check is not None
            assert check.status in (Acted.ACTED, Acted.UNKNOWN), f"{joined}: {check.words}"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("pruning + gaussian", ["noise"]),
        ("gaussian + pruning", ["zeros"]),
        ("gaussian(clip=1.0) + topk", ["norm", "zeros"]),
        ("topk + gaussian(sigma=0, clip=1.0)", ["zeros", "norm"]),
        ("topk + flower-clipping", ["zeros", "norm"]),
        ("gaussian + dp", ["noise", "norm"]),
        ("dp + gaussian", ["noise", "noise"]),
        ("flower-clipping + dpsgd", ["norm", "norm"]),
        ("dpsgd + half", ["precision"]),
        ("half + topk", ["precision", "zeros"]),
        ("topk + half", ["zeros", "precision"]),
        ("topk + quantise", ["levels"]),
        ("topk + quantise(rounding='qsgd')", ["zeros", "levels"]),
        ("soteria + signsgd", ["columns", "levels"]),
        ("soteria + percentile-privacy", ["columns", "zeros", "bound"]),
        ("percentile-privacy + svt", ["zeros", "bound"]),
        ("svt + share(part='body')", ["bound"]),
        ("pruning + share(part='body')", ["zeros"]),
        ("pruning + topk(error_feedback=True)", ["zeros"]),
        ("dropout + censor", []),
        ("precode + pruning", ["zeros"]),
    ],
)
def test_of_the_parts_traces_those_are_left_that_still_hold(text: str, kinds: list[str]) -> None:
    defense = DEFENSES.parse(text)
    model = defense.prepare_model(MODEL)
    sent = Update({n: p.detach() for n, p in model.named_parameters()})
    assert [trace.kind for trace in defense.expected_traces(sent, model)] == kinds


def test_a_part_that_was_left_out_is_found() -> None:
    whole = DEFENSES.parse("pruning(ratio=0.5) + gaussian(sigma=0, clip=0.1)")
    for left in whole.each_part():
        check = check_defense(whole, updated(left), MODEL, reference=updated(NoDefense()))
        assert check is not None
        assert check.status is Acted.WEAK, left
    check = check_defense(whole, updated(whole), MODEL, reference=updated(NoDefense()))
    assert check is not None
    assert check.status is Acted.ACTED
