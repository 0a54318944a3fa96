"""Table 5: APRIL on gradients of plain and of shuffled images, in the paper's four settings.

a  a plain image, as at inference;  b  gamma = .9 of its patches covered and shuffled;
c  as b, but covered patches keep their slots' position embeddings;  d  b against the ORIGINAL.
In a to c the reconstruction is compared with the attack's own input, as the paper does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks import April
from keyhole.audit import find_device
from keyhole.data import ImageSet, load
from keyhole.data.image_set import denormalise
from keyhole.defenses.mjp import VARIANTS, Mjp
from keyhole.errors import BadValue
from keyhole.metrics import fft2d, lpips, mse, psnr, ssim
from keyhole.models import build
from keyhole.models.jigsaw import Jigsaw
from keyhole.models.puzzle import Puzzle, Rules, drawn, shuffled
from keyhole.models.weights import fill
from keyhole.seeds import derive, generator
from keyhole.studies.base import Piece, Setting, Study
from keyhole.studies.mjp.networks import network
from keyhole.threat import Knowledge, Server
from keyhole.update import Update, read_safetensors

GAMMA = 0.9
IMAGES = 16
DEIT_S = "timm:deit_small_patch16_224"
SETTINGS = ("a", "b", "c", "d")


@dataclass(frozen=True)
class AprilPiece(Piece):
    """Networks under the analytic attack: by random weights, or those that other pieces trained."""

    trained: tuple[str, ...] = ()
    images: int = IMAGES

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        device = find_device(setting.device)
        source = "cifar10" if self.trained else "imagenet-sample"
        split = {"split": "test"} if self.trained else {}
        data = load(source, data_dir=setting.data_dir, **split)  # type: ignore[arg-type]
        chosen = torch.randperm(len(data), generator=generator(study.seed, "april"))
        count = int(setting.changes.get("victims") or self.images)
        rows = {}
        networks = self.of_pieces(setting.runs) if self.trained else by_chance(study.seed)
        for name, model in networks:
            setting.progress.show(f"{self.name}: {name}")
            rows[name] = attacked(model.to(device), data, chosen[:count].tolist(), setting.data_dir)
        return {"piece": self.name, "images": count, "data": source, "rows": rows}

    def of_pieces(self, runs: Path) -> Iterator[tuple[str, nn.Module]]:
        for piece in self.trained:
            path = runs / piece / "weights.safetensors"
            if not path.is_file():
                raise BadValue(f"{path} does not exist: run the piece {piece} first")
            letter = piece.rpartition("-")[2]
            model = network("deit", 0)
            model = model if letter == "A" else VARIANTS[letter].prepared(model)
            tensors = read_safetensors(path)[0]
            fill(model, {k: v.to(model.state_dict()[k]) for k, v in tensors.items()}, str(path))
            yield piece, model

    def about(self) -> dict[str, Any]:
        return {"does": f"APRIL in four settings on {', '.join(self.trained) or DEIT_S}"}


def by_chance(seed: int) -> Iterator[tuple[str, nn.Module]]:
    """DeiT-S by random weights, its positions of deviation .02 (all arms alike) and 1 (authors)."""
    plain = build(DEIT_S, classes=1000, image_size=224, seed=seed)
    wide = build(DEIT_S, classes=1000, image_size=224, seed=seed)
    with torch.no_grad():
        table = wide.get_parameter("pos_embed")
        table.normal_(generator=generator(seed, "wide positions"))
    yield "DeiT-S", plain
    yield "DeiT-S, PE N(0,1)", wide
    yield "w/o PE", VARIANTS["B"].prepared(plain)
    yield "MJP", Mjp(dal="none").prepared(plain)
    yield "MJP, PE N(0,1)", Mjp(dal="none").prepared(wide)


def attacked(
    model: nn.Module, data: ImageSet, indices: list[int], data_dir: str | None
) -> dict[str, dict[str, float]]:
    """Mean scores in every setting that the network has: b without an unknown position is c."""
    attack = April(shrink=False, rcond=0)
    victim = attack.alter(model)
    found: dict[str, list[dict[str, float]]] = {s: [] for s in SETTINGS}
    for index in indices:
        image = data.images([index]).to(next(model.parameters()))
        inputs, label = data.normalise(image), data.labels[[index]].to(image.device)
        puzzle = puzzle_of(inputs, model, index)
        for setting in SETTINGS:
            shown = inputs if setting == "a" else shuffled(inputs, puzzle, rules_of(model))
            kept = None if setting in "ac" else puzzle.kept
            seen = reconstruction(attack, victim, shown, label, data, kept)
            truth = inputs if setting == "d" else shown
            pair = [denormalise(t, data.mean, data.std).clamp(0, 1).cpu() for t in (seen, truth)]
            found[setting].append(scores(pair[0], pair[1], data_dir))
    return {s: {k: mean([f[k] for f in each]) for k in each[0]} for s, each in found.items()}


def rules_of(model: nn.Module) -> Rules:
    tall, wide = model.get_parameter("patch_embed.proj.weight").shape[-2:]
    return Rules(GAMMA, (tall, wide))


def puzzle_of(inputs: Tensor, model: nn.Module, index: int) -> Puzzle:
    draw = torch.Generator(inputs.device).manual_seed(derive(0, "april puzzle", index))
    return drawn(inputs, rules_of(model), draw)


def reconstruction(
    attack: April,
    victim: nn.Module,
    inputs: Tensor,
    label: Tensor,
    data: ImageSet,
    kept: Tensor | None,
) -> Tensor:
    """What APRIL sees of one step on ``inputs [1, C, H, W]``; ``kept`` are the known positions."""
    model = victim.eval().requires_grad_(True)
    if isinstance(model, Jigsaw) and kept is not None:
        with model.given(Puzzle(kept)):
            logits = model(inputs)
    else:
        logits = model(inputs)
    weights = dict(model.named_parameters())
    found = torch.autograd.grad(
        F.cross_entropy(logits, label), list(weights.values()), materialize_grads=True
    )
    update = Update.from_gradient(dict(zip(weights, found, strict=True)), batch_size=1)
    knowledge = Knowledge(
        shape=data.shape,
        classes=len(data.classes),
        mean=data.mean,
        std=data.std,
        client_mode="eval",
    )
    images = attack(Server(model).receive(update, knowledge)).images
    assert images is not None
    return images.to(inputs)


def scores(seen: Tensor, truth: Tensor, data_dir: str | None) -> dict[str, float]:
    one = {"data_range": 1.0}
    found = {
        "mse": mse(seen, truth, **one),
        "fft2d": fft2d(seen, truth, **one),
        "psnr": psnr(seen, truth, **one),
        "ssim": ssim(seen, truth, **one),
        "lpips": lpips(seen, truth, data_dir=data_dir, **one),
    }
    return {name: float(value.mean()) for name, value in found.items()}


def mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 5)
