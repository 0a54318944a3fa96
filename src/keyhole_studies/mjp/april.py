"""Table 5: APRIL on gradients of plain and of shuffled images, in the paper's four settings.

a  a plain image, as at inference;  b  gamma = .9 of its patches covered and shuffled;
c  as b, but covered patches keep their slots' position embeddings;  d  b against the ORIGINAL.
In a to c the reconstruction is compared with the attack's own input, as the paper does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks import April
from keyhole.data import ImageSet, denormalise, load
from keyhole.defenses import Mjp
from keyhole.device import find_device
from keyhole.metrics import fft2d, lpips, mse, psnr, ssim
from keyhole.models import (
    Jigsaw,
    Puzzle,
    PuzzleRules,
    apply_puzzle,
    build,
    draw_random_puzzle,
)
from keyhole.seeds import derive, generator
from keyhole.threat import Knowledge, Server
from keyhole.update import Update
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import count_gap
from keyhole_studies.mjp.experiments import TrainingExperiment
from keyhole_studies.resident_data import measure_accuracy

GAMMA = 0.9
DEIT_S = "timm:deit_small_patch16_224"
SETTINGS = ("a", "b", "c", "d")
SCORES = ("mse", "fft2d", "psnr", "ssim", "lpips")
"""The columns of the table."""
SAME = {"ViT-S": "DeiT-S"}
"""Networks of the paper that are others here: by random weights one architecture is one network."""


@dataclass(frozen=True)
class AprilExperiment(Experiment):
    """Networks under the analytic attack: with random weights, or those that were trained.

    Args:
        label: What the table calls the networks.
        trained: Names of the experiments that trained them; none: DeiT-S with random weights.
        images: How many images are attacked, one by one.
    """

    label: str = ""
    trained: tuple[str, ...] = ()
    images: int = 16

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device = find_device(context.device)
        source, split = ("cifar10", "test") if self.trained else ("imagenet-sample", "train")
        data = load(source, data_dir=context.data_dir, split=split)
        chosen = torch.randperm(len(data), generator=generator(study.seed, "april"))
        count = int(context.changes.get("victims") or self.images)
        rows, accuracy = {}, {}
        for name, model in self.load_networks(study, context.runs):
            context.progress.show(f"{self.name}: {name}")
            model.to(device)
            rows[name] = attack_images(model, data, chosen[:count].tolist(), context.data_dir)
            if self.trained:
                accuracy[name] = measure_accuracy(model, data, range(len(data)))
        return {
            "piece": self.name,
            "images": count,
            "data": source,
            "rows": rows,
            "accuracy": accuracy,
            "seed": study.seed,
            "device": name_device(device),
        }

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Fewer images than asked for."""
        return count_gap(
            known["images"], int(context.changes.get("victims") or self.images), "images"
        )

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """PSNR and SSIM of Table 5, where its networks are under attack."""
        for row, values in study.published["table-5"].items():
            setting, _, network = row.partition(" ")
            found = known["rows"].get(SAME.get(network, network), {}).get(setting)
            if found is not None:
                yield Comparison(row, "psnr", found["psnr"], values[SCORES.index("psnr")])
                yield Comparison(row, "ssim", found["ssim"], values[SCORES.index("ssim")])

    def tell(self, known: dict[str, Any]) -> str:
        """PSNR of the shuffled image's reconstruction."""
        each = {name: row["b"]["psnr"] for name, row in known["rows"].items()}
        return ", ".join(f"b {name} {psnr:.1f} dB" for name, psnr in each.items())

    def load_networks(self, study: Study, runs: Path) -> Iterator[tuple[str, nn.Module]]:
        """The networks under attack, by name."""
        if not self.trained:
            yield from build_random_networks(study.seed)
        for name in self.trained:
            experiment = study.find(name)
            assert isinstance(experiment, TrainingExperiment)
            yield name, experiment.load_trained(experiment.choose_seed(study), runs)

    def describe(self) -> dict[str, Any]:
        return {"does": f"APRIL in four settings on {', '.join(self.trained) or DEIT_S}"}


def build_random_networks(seed: int) -> Iterator[tuple[str, nn.Module]]:
    """DeiT-S with random weights; its positions of deviation .02 (all arms alike) and 1 (authors).

    Args:
        seed: Of the weights.
    """
    plain = build(DEIT_S, classes=1000, image_size=224, seed=seed)
    wide = build(DEIT_S, classes=1000, image_size=224, seed=seed)
    with torch.no_grad():
        table = wide.get_parameter("pos_embed")
        table.normal_(generator=generator(seed, "wide positions"))
    yield "DeiT-S", plain
    yield "DeiT-S, PE N(0,1)", wide
    yield "w/o PE", Mjp(gamma=0, positions="none", dal="none").prepare_model(plain)
    yield "MJP", Mjp(dal="none").prepare_model(plain)
    yield "MJP, PE N(0,1)", Mjp(dal="none").prepare_model(wide)


def attack_images(
    model: nn.Module, data: ImageSet, indices: Sequence[int], data_dir: str | None
) -> dict[str, dict[str, float]]:
    """Mean scores over images, by setting. Without unknown positions, b is the same as c."""
    attack = April(shrink=False, rcond=0)
    victim = attack.alter(model)
    found: dict[str, list[dict[str, float]]] = {setting: [] for setting in SETTINGS}
    for index in indices:
        image = data.images([index]).to(next(model.parameters()))
        inputs, label = data.normalise(image), data.labels[[index]].to(image.device)
        puzzle = draw_puzzle(inputs, model, index)
        for setting in SETTINGS:
            shown = inputs if setting == "a" else apply_puzzle(inputs, puzzle, make_rules(model))
            known = None if setting in "ac" else puzzle.kept
            seen = reconstruct(attack, victim, shown, label, data, known)
            truth = inputs if setting == "d" else shown
            pair = [denormalise(t, data.mean, data.std).clamp(0, 1).cpu() for t in (seen, truth)]
            found[setting].append(score_image(pair[0], pair[1], data_dir))
    return {s: {k: mean([f[k] for f in each]) for k in each[0]} for s, each in found.items()}


def make_rules(model: nn.Module) -> PuzzleRules:
    """Puzzles of the model's own patches."""
    height, width = model.get_parameter("patch_embed.proj.weight").shape[-2:]
    return PuzzleRules(GAMMA, (height, width))


def draw_puzzle(inputs: Tensor, model: nn.Module, index: int) -> Puzzle:
    """The puzzle of the image at ``index``: the same one in all settings."""
    draw = torch.Generator(inputs.device).manual_seed(derive(0, "april puzzle", index))
    return draw_random_puzzle(inputs, make_rules(model), draw)


def reconstruct(
    attack: April,
    victim: nn.Module,
    inputs: Tensor,
    label: Tensor,
    data: ImageSet,
    known: Tensor | None,
) -> Tensor:
    """What APRIL sees of one step on ``inputs [1, C, H, W]``.

    Args:
        attack: APRIL.
        victim: The network, altered for the attack.
        inputs: One image, as the network is fed.
        label: Its label, ``[1]``.
        data: The data set that the image is from.
        known: Which patches' positions the network is told, ``[1, N]``; None: all of them.
    """
    model = victim.eval().requires_grad_(True)
    if isinstance(model, Jigsaw) and known is not None:
        with model.use_puzzle(Puzzle(known)):
            logits = model(inputs)
    else:
        logits = model(inputs)
    weights = dict(model.named_parameters())
    gradients = torch.autograd.grad(
        F.cross_entropy(logits, label), list(weights.values()), materialize_grads=True
    )
    update = Update.from_gradient(dict(zip(weights, gradients, strict=True)), batch_size=1)
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


def score_image(seen: Tensor, truth: Tensor, data_dir: str | None) -> dict[str, float]:
    """The paper's five metrics of one image in [0, 1]."""
    one = {"data_range": 1.0}
    found = {
        "mse": mse(seen, truth, **one),
        "fft2d": fft2d(seen, truth, **one),
        "psnr": psnr(seen, truth, **one),
        "ssim": ssim(seen, truth, **one),
        "lpips": lpips(seen, truth, data_dir=data_dir, **one),
    }
    return {name: float(value.mean()) for name, value in found.items()}


def mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 5)
