"""Table 1: what IG and GIFD read through each defense, and what they read who know of it."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.audit import Stage
from keyhole.studies.base import AuditPiece
from keyhole.studies.tip import paper

SPELLED = {
    "none": "none",
    "dp": "dp(epsilon=5.0)",
    "agp": "agp(epsilon=5.0)",
    "tip": "tip(epsilon=1.0)",
}
"""With the budgets of the authors' code."""
OTHERS = {
    "tip-divided": "tip(epsilon=1.0, divide=True)",
    "dp-as-tip": "dp(epsilon=1.0)",
}
"""TIP as the paper prints it; DP with TIP's budget."""
LONG_AS_TIP = {"dp-long": "dp(sigma=0.00712)"}
"""DP with noise as long as TIP's on the attacked ResNet-18; elsewhere it is not as long."""
FRONT = {
    "tip-r30": "tip(epsilon=1.0, ratio=0.3)",
    "tip-r60": "tip(epsilon=1.0, ratio=0.6)",
    "tip-r100": "tip(epsilon=1.0, ratio=1.0)",
    "tip-r100-printed": "tip(epsilon=1.0, ratio=1.0, reading='printed')",
    "tip-r100-divided": "tip(epsilon=1.0, ratio=1.0, divide=True)",
    "dp-e50": "dp(epsilon=50.0)",
    "dp-e500": "dp(epsilon=500.0)",
    "dp-e5000": "dp(epsilon=5000.0)",
    "agp-e500": "agp(epsilon=500.0)",
}
"""Settings between which privacy is traded for accuracy, besides those above."""
PRIVATE = {"dpsgd": "dpsgd(noise=1.0)", "dpsgd-n01": "dpsgd(noise=0.1)"}
"""With a guarantee, and with next to none. Only where there is no batch norm: two convolutions."""
SOURCES = {
    "cifar10": "dia-cifar10",
    "cifar100": "cifar100",
    "tiny-imagenet": "tiny-imagenet",
}
VICTIMS = 32
IG = "ig(iterations=1000)"
GIFD = "gifd(iterations=200, pixels=200)"
"""Four stages and the pixels: as many iterations in all."""
SHORTER = "ig(iterations=500)", "gifd(iterations=100, pixels=100)"
"""On the other data sets."""
LONG = "ig(iterations=2500, patience=250)"
"""Where IG has all the time it can use."""
RATE = 0.001
SMALL, SMALL_IG = "keyhole.models.shallow_convnet:shallow_convnet", "ig(iterations=400)"
"""Two convolutions: the same comparison within minutes on a CPU."""
UPLOADED = "ig-uploaded(iterations=400)"


def stage(
    data: str,
    defense: str,
    *attacks: str,
    victims: int = VICTIMS,
    steps: int = 1,
    model: str = "resnet18",
) -> Stage:
    """Clients of one image that train a fresh network as the authors' do, statistics fixed.

    Noise and gradient grow alike with the number of steps: one step, unless it is unrolled.
    """
    return Stage(
        model=model,
        data=SOURCES[data],
        defenses=(defense,),
        attacks=attacks,
        victims=victims,
        steps=steps,
        lr=RATE,
        client_mode="eval",
    )


def all_inversions() -> Iterator[AuditPiece]:
    for data in paper.DATA:
        attacks = (IG, GIFD) if data == "cifar10" else SHORTER
        for short, defense in SPELLED.items():
            yield AuditPiece(
                f"invert-{data}-{short}",
                stage(data, defense, *attacks),
                figure="T1",
                paper=paper.table_1(data, short),
            )
    for short, defense in (OTHERS | LONG_AS_TIP | FRONT).items():
        yield AuditPiece(f"invert-cifar10-{short}", stage("cifar10", defense, IG), figure="T1")
    for short in ("none", "tip"):
        long = stage("cifar10", SPELLED[short], LONG)
        yield AuditPiece(f"long-cifar10-{short}", long, figure="T1")
    yield from on_two_convolutions()


def on_two_convolutions() -> Iterator[AuditPiece]:
    for short, defense in (SPELLED | OTHERS | FRONT | PRIVATE).items():
        small = stage("cifar10", defense, SMALL_IG, model=SMALL)
        yield AuditPiece(f"small-cifar10-{short}", small, figure="front")
    for short in ("none", "tip"):
        there = stage("cifar10", SPELLED[short], UPLOADED, victims=8, model=SMALL)
        yield AuditPiece(f"uploaded-cifar10-{short}", there, figure="T1")
        steps = stage("cifar10", SPELLED[short], SMALL_IG, victims=8, steps=4, model=SMALL)
        yield AuditPiece(f"unrolled-cifar10-{short}", steps, figure="T1")
    for short in ("tip", "tip-r100"):
        defense = (SPELLED | FRONT)[short]
        once = stage("cifar10", defense, SMALL_IG, victims=8, model=SMALL)
        for times in (1, 8):
            several = once.model_copy(update={"repeats": times})
            yield AuditPiece(f"several-cifar10-{short}-x{times}", several, figure="T1")
