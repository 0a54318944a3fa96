"""Dropout against gradient inversion: Figures 2, 6 and 7 of Scheliga et al. 2023 (DIA)."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.audit import Stage
from keyhole.studies.base import AuditPiece, Piece, Study

IMAGES = 128
RATES = (0.0, 0.25, 0.5, 0.75)
BATCHES = (4, 8, 16)
MODELS = ("mlp", "lenet", "vit-small", "resnet18")
DATA = {"dia-mnist": "mnist", "dia-cifar10": "cifar10"}

CLOSED_FORM = {"mlp": ("linear",), "vit-small": ("patch-lstsq",)}
"""What reads the image without iterations, at one image a client."""

SETTINGS = {"mlp": "tv=1e-6", "lenet": "tv=1e-6", "resnet18": "precision='tf32'"}
"""Where the attacks differ from their defaults. LeNet's sigmoids leave a matching loss of 1e-7,
which the usual prior outweighs; ResNet-18 runs in TF32 for speed."""

READ = "masks='read'"

FROZEN_NORM = ("resnet18",)
"""Models whose BatchNorms keep to their running statistics, at the client and at the attacker, as
IG was published; with the statistics of one image 0.01 of noise on the true image already turns
the gradient by a cosine of 0.8, and nothing is found."""

READS_MASKS = ("mlp", "lenet")
"""Models on which the attack that reads masks off the update is run as well."""

PAPER: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("mlp", "dia-mnist"): {"ig": (1.00, 0.79, 0.59, 0.30), "wiig": (1.00, 1.00, 0.82)},
    ("vit-small", "dia-mnist"): {"ig": (0.98, 0.04, 0.02, 0.02), "wiig": (0.99, 0.99, 1.00)},
    ("mlp", "dia-cifar10"): {"ig": (1.00, 0.68, 0.51, 0.38), "wiig": (0.98, 0.84, 0.78)},
    ("vit-small", "dia-cifar10"): {"ig": (0.87, 0.01, 0.01, 0.00), "wiig": (0.93, 0.96, 0.95)},
    ("lenet", "dia-mnist"): {"ig": (0.95, 0.57, 0.40, 0.23), "dia": (0.94, 0.95, 0.94)},
    ("resnet18", "dia-mnist"): {"ig": (0.88, 0.37, 0.18, 0.09), "dia": (0.94, 0.93, 0.93)},
    ("lenet", "dia-cifar10"): {"ig": (0.89, 0.48, 0.32, 0.21), "dia": (0.89, 0.88, 0.88)},
    ("resnet18", "dia-cifar10"): {"ig": (0.64, 0.28, 0.15, 0.08), "dia": (0.71, 0.70, 0.71)},
}
"""SSIM at one image a client, over RATES (attacks on masks: without p = 0)."""

PAPER_BATCHES = {
    ("mlp", "dia-mnist", 0.75, 16): 0.80,
    ("mlp", "dia-cifar10", 0.75, 16): 0.63,
}
"""SSIM of DIA in Figure 6, where the text gives a number."""


def published(model: str, data: str, rate: float) -> dict[str, dict[str, float]]:
    """What the paper reports of one cell."""
    found = {}
    for attack, values in PAPER[model, data].items():
        rates = RATES if attack == "ig" else RATES[1:]
        if rate in rates:
            found[attack] = {"ssim": values[rates.index(rate)]}
    return found


def piece_name(model: str, data: str, rate: float, batch: int = 1) -> str:
    """
    >>> piece_name("mlp", "dia-mnist", 0.25, 4)
    'mlp-mnist-p25-b4'
    """
    ending = "" if batch == 1 else f"-b{batch}"
    return f"{model}-{DATA[data]}-p{round(100 * rate):02d}{ending}"


def single(model: str, data: str, rate: float) -> Piece:
    """One image a client: all attackers of Figures 2 and 7, and the closed form beside them."""
    informed = ["wiig"] if model in ("mlp", "vit-small") else []
    attacks = ["ig"] if rate == 0 else ["ig", *informed, "dia"]
    settings = SETTINGS.get(model, "")
    attacks = [f"{attack}({settings})" if settings else attack for attack in attacks]
    if rate > 0 and model in READS_MASKS:
        attacks.append(f"dia({', '.join(filter(None, [settings, READ]))})")
    stage = Stage(
        model=model,
        data=data,
        defenses=("none",) if rate == 0 else (f"dropout(p={rate})",),
        attacks=(*CLOSED_FORM.get(model, ()), *attacks),
        victims=IMAGES,
        client_mode="frozen-norm" if model in FROZEN_NORM else "train",
    )
    figure = "2" if model in ("mlp", "vit-small") else "7"
    return AuditPiece(
        piece_name(model, data, rate),
        stage,
        paper=published(model, data, rate),
        figure=figure,
    )


def batched(model: str, data: str, rate: float, batch: int) -> Piece:
    """Several images a client: DIA alone, as in Figure 6."""
    stage = Stage(
        model=model,
        data=data,
        defenses=(f"dropout(p={rate})",),
        attacks=(f"dia({SETTINGS[model]})" if model in SETTINGS else "dia",),
        victims=IMAGES // batch,
        batch_size=batch,
    )
    known = PAPER_BATCHES.get((model, data, rate, batch))
    paper = {} if known is None else {"dia": {"ssim": known}}
    return AuditPiece(piece_name(model, data, rate, batch), stage, paper=paper, figure="6")


def imagenet() -> Piece:
    """ViT-B/16 at 224 px, p = .1: a few victims."""
    stage = Stage(
        model="timm:vit_base_patch16_224",
        data="imagenet-sample",
        defenses=("dropout(p=0.1)",),
        attacks=("patch-lstsq", "ig", "dia"),
        victims=4,
    )
    paper = {"ig": {"ssim": 0.01}, "dia": {"ssim": 0.72}}
    return AuditPiece("vit-b16-imagenet-p10", stage, paper=paper, figure="7")


def pieces() -> Iterator[Piece]:
    """The cheap ones first, so that an interrupted study has most of the table."""
    for model in MODELS:
        for data in DATA:
            for rate in RATES:
                yield single(model, data, rate)
    for model in ("mlp", "vit-small"):
        for data in DATA:
            for rate in RATES[1:]:
                for batch in BATCHES:
                    yield batched(model, data, rate, batch)
    yield imagenet()


STUDY = Study(
    name="dia",
    title="Dropout against gradient inversion",
    paper="Scheliga et al. 2023 (DIA), Figures 2, 6 and 7",
    pieces=tuple(pieces()),
)
