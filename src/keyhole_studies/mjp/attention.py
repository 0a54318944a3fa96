"""Figure 4: where the last self-attention of trained networks looks."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.device import find_device
from keyhole.seeds import generator
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.coverage import count_gap
from keyhole_studies.drawing import draw_comparison
from keyhole_studies.mjp.experiments import TrainingExperiment

SHOWN = 6
"""Images that the figure shows."""


@dataclass(frozen=True)
class AttentionExperiment(Experiment):
    """Maps of the class token's attention in the last block, and how spread they are.

    Args:
        trained: Names of the experiments that trained the networks.
        images: Test images over which the entropy is averaged.
    """

    trained: tuple[str, ...] = ()
    images: int = 1000

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device = find_device(context.device)
        data = load("cifar10", data_dir=context.data_dir, split="test")
        count = int(context.changes.get("victims") or self.images)
        chosen = torch.randperm(len(data), generator=generator(study.seed, "attention"))[:count]
        images = data.images(chosen.tolist())
        columns, rows = {"image": list(images[:SHOWN])}, {}
        for name in self.trained:
            context.progress.show(f"{self.name}: {name}")
            experiment = study.find(name)
            assert isinstance(experiment, TrainingExperiment)
            model = experiment.load_trained(experiment.choose_seed(study), context.runs).to(device)
            maps = torch.cat(
                [
                    attend(model, data.normalise(part.to(device))).cpu()
                    for part in torch.split(images, 100)
                ]
            )
            rows[name] = {"entropy": float(entropy(maps).mean())}
            columns[name] = paint(maps[:SHOWN], images.shape[-2:])
        sheet = draw_comparison(columns, context.runs / self.name / "attention.png")
        return {
            "piece": self.name,
            "images": count,
            "rows": rows,
            "seed": study.seed,
            "device": name_device(device),
            "drawn": base64.b64encode(sheet.read_bytes()).decode(),
        }

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Fewer images than asked for."""
        asked = int(context.changes.get("victims") or self.images)
        return count_gap(known["images"], asked, "images")

    def tell(self, known: dict[str, Any]) -> str:
        each = [f"{name} {row['entropy']:.2f} bits" for name, row in known["rows"].items()]
        return f"entropy of the attention: {', '.join(each)}"

    def describe(self) -> dict[str, Any]:
        return {"does": f"maps of the last self-attention of {', '.join(self.trained)}"}


@torch.no_grad()
def attend(model: nn.Module, inputs: Tensor) -> Tensor:
    """The class token's attention to the patches in the last block, ``[n, heads, patches]``.

    Args:
        model: A timm vision transformer; left in evaluation mode.
        inputs: Normalised images.
    """
    attention: Any = model.eval().get_submodule(f"blocks.{count_blocks(model) - 1}.attn")
    tokens: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda _, args: tokens.append(args[0]))
    model(inputs)
    hook.remove()
    n, count, width = tokens[0].shape
    heads = attention.num_heads
    both = attention.qkv(tokens[0]).view(n, count, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    query, key = attention.q_norm(both[0]), attention.k_norm(both[1])
    weights: Tensor = (attention.scale * query[:, :, :1] @ key.transpose(-2, -1)).softmax(-1)
    return weights[:, :, 0, 1:]


def count_blocks(model: nn.Module) -> int:
    return len(list(model.get_submodule("blocks").children()))


def entropy(maps: Tensor) -> Tensor:
    """Entropy in bits of each head's attention to the patches, ``[n, heads]``.

    >>> entropy(torch.tensor([[[0.1, 0.1, 0.1, 0.1]]])).item()
    2.0
    """
    shares = maps.double() / maps.double().sum(-1, keepdim=True)
    bits: Tensor = torch.special.entr(shares).sum(-1) / math.log(2)
    return bits


def paint(maps: Tensor, size: Sequence[int]) -> list[Tensor]:
    """The mean over heads as grey images ``[1, H, W]`` of the images' size, 1 where it is most."""
    side = round(maps.shape[-1] ** 0.5)
    grey = F.interpolate(maps.mean(1).view(-1, 1, side, side), size=tuple(size), mode="nearest")
    return list(grey / grey.amax((1, 2, 3), keepdim=True))
