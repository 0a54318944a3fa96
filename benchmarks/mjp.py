"""What MJP costs a training step: step times with it over step times without.

    python benchmarks/mjp.py                          # DeiT at 32 px, DeiT-S at 224 px
    python benchmarks/mjp.py --device cuda --batch 1024 --json
    python benchmarks/mjp.py --networks deit

Networks take turns, a few steps each, on the same images by the study's step (bfloat16 on a GPU,
clipping, AdamW), so that whatever else the machine does hits both alike. A ratio is the median of
MJP's steps over the median of the plain network's; 1.05 is 5% more.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import nn

from keyhole.defenses import Defense, Mjp, NoDefense
from keyhole.models import build
from keyhole_studies.mjp.experiments import make_penalty
from keyhole_studies.mjp.networks import build_network
from keyhole_studies.training import Penalty, TrainingSettings, make_optimiser, take_step

Runner = tuple[nn.Module, torch.optim.Optimizer, Penalty | None]

SETTINGS = TrainingSettings(epochs=1, lr=1e-3, weight_decay=0.05, smoothing=0.1, clip=5.0)

VARIANTS = {
    "jigsaw and unknown position": Mjp(dal="none"),
    "MJP (DAL by NLN)": Mjp(),
    "MJP, gamma 0.9": Mjp(gamma=0.9),
    "MJP (DAL by PCA)": Mjp(dal="pca"),
}


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "deit": lambda: build_network("deit", 0),
    "deit-s": lambda: build("timm:deit_small_patch16_224", classes=10, image_size=224),
}


def time_steps(runner: Runner, x: torch.Tensor, targets: torch.Tensor, steps: int) -> float:
    model, optimiser, penalty = runner
    began = time.perf_counter()
    for _ in range(steps):
        take_step(
            model,
            x,
            targets,
            optimiser,
            smoothing=SETTINGS.smoothing,
            clip=SETTINGS.clip,
            penalty=penalty,
        )
    if x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def compare_times(plain: nn.Module, x: torch.Tensor, turns: int, steps: int) -> dict[str, float]:
    """Each variant's median time over the plain network's."""
    targets = torch.arange(len(x), device=x.device) % 10
    defenses: dict[str, Defense] = {"plain": NoDefense(), **VARIANTS}
    runners: dict[str, Runner] = {}
    for name, defense in defenses.items():
        model = defense.prepare_model(plain).to(x.device).train()
        penalty = make_penalty(model, defense)
        runners[name] = model, make_optimiser(model, SETTINGS), penalty
        time_steps(runners[name], x, targets, 2)
    spent: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(turns):
        for name, runner in runners.items():
            spent[name].append(time_steps(runner, x, targets, steps))
    middle = {name: median(times) for name, times in spent.items()}
    return {name: middle[name] / middle["plain"] for name in VARIANTS}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, joined by commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, help="in one turn; 2, or 20 on a GPU")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(argv)
    device = torch.device(chosen.device)
    steps = chosen.steps or (20 if device.type == "cuda" else 2)
    torch.manual_seed(0)
    small = torch.randn(chosen.batch, 3, 32, 32, device=device)
    large = torch.randn(max(1, chosen.batch // 8), 3, 224, 224, device=device)
    inputs = {"deit": ("DeiT/4 at 32 px", small), "deit-s": ("DeiT-S at 224 px", large)}
    found = {}
    for name in chosen.networks.split(","):
        title, x = inputs[name]
        ratios = compare_times(NETWORKS[name](), x, chosen.turns, steps)
        found[f"{title}, batch {len(x)}"] = ratios
    if chosen.json:
        print(json.dumps({"device": str(device), "threads": torch.get_num_threads(), **found}))
        return
    for name, ratios in found.items():
        print(name)
        for variant, ratio in ratios.items():
            print(f"  {variant:<30} {ratio:5.2f} x a plain step")


if __name__ == "__main__":
    main()
