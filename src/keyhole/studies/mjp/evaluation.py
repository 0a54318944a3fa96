"""What the paper measures of a trained network: accuracy, consistency, position embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from keyhole.data import load
from keyhole.metrics.consistency import consistency, difference_norm
from keyhole.metrics.corruptions import CORRUPTIONS
from keyhole.metrics.positions import (
    accumulated_eigenvalues,
    explained_variance,
    position_regression,
)
from keyhole.metrics.robustness import (
    aupr_out,
    aurra,
    corruption_error,
    evaluate_corruptions,
    strangeness,
)
from keyhole.models.jigsaw import Jigsaw
from keyhole.models.puzzle import Puzzle, Rules, drawn, shuffled
from keyhole.seeds import derive
from keyhole.studies.mjp.networks import PATCH
from keyhole.studies.mjp.training import Pictures

GAMMAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
SHUFFLED = 0.5
"""The share of patches that are covered where consistency is measured."""


@torch.no_grad()
def evaluate(model: nn.Module, test: Pictures, *, seed: int) -> dict[str, Any]:
    """Accuracy against the inference gamma, consistency and difference of features."""
    model.eval()
    draw = torch.Generator(test.images.device).manual_seed(derive(seed, "inference puzzles"))
    logits, features = run(model, test, None)
    right = {0.0: share(logits, test.labels)}
    found: dict[str, Any] = {}
    for gamma in GAMMAS[1:]:
        puzzled, moved = run(model, test, Rules(gamma, (PATCH, PATCH)), draw)
        right[gamma] = share(puzzled, test.labels)
        if gamma == SHUFFLED:
            norms = difference_norm(features, moved)
            found["difference_norm"] = float(norms.mean())
            found["difference_norm_squared"] = float(norms.square().mean())
            found["feature_norm"] = float(features.norm(dim=1).mean())
            found["consistency"] = consistency(logits, puzzled)
    found["accuracy"] = right[0.0]
    found["accuracy_by_gamma"] = {str(gamma): value for gamma, value in right.items()}
    if isinstance(model, Jigsaw) and model.puzzle.positions == "unknown":
        bare = run(model, test, Rules(0.9, (PATCH, PATCH)), draw, unknown=False)[0]
        found["accuracy_without_unknown"] = share(bare, test.labels)
    return found


def run(
    model: nn.Module,
    test: Pictures,
    rules: Rules | None,
    draw: torch.Generator | None = None,
    *,
    unknown: bool = True,
) -> tuple[Tensor, Tensor]:
    """Logits and features of all test images, plain or as puzzles, a fresh one for each.

    Covered positions are unknown to a network that has learnt such; others see shuffled images.
    """
    logits, features = [], []
    for x, _ in test.batches(2048):
        puzzle = None
        if rules is not None:
            puzzle = drawn(x, rules, draw)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            found = forward(model, x, puzzle, rules, unknown=unknown)
        logits.append(found[0].float())
        features.append(found[1].float())
    return torch.cat(logits), torch.cat(features)


def forward(
    model: Any, x: Tensor, puzzle: Puzzle | None, rules: Rules | None, *, unknown: bool
) -> tuple[Tensor, Tensor]:
    """Logits and the pooled, normalised features before the head."""
    told = isinstance(model, Jigsaw) and model.puzzle.embedding is not None and unknown
    if puzzle is None or rules is None:
        features = pooled(model, x)
    elif told:
        with model.given(puzzle):
            features = pooled(model, x)
    else:
        features = pooled(model, shuffled(x, puzzle, rules))
    return head(model, features), features


def pooled(model: Any, x: Tensor) -> Tensor:
    """What goes into the last layer, ``[B, D]``."""
    if hasattr(model, "forward_head"):
        found: Tensor = model.forward_head(model.forward_features(x), pre_logits=True)
        return found
    kept: list[Tensor] = []
    handle = model.fc.register_forward_pre_hook(lambda m, args: kept.append(args[0]))
    model(x)
    handle.remove()
    return kept[0]


def head(model: Any, features: Tensor) -> Tensor:
    if hasattr(model, "forward_head"):
        last = model.head.fc if hasattr(model.head, "fc") else model.head
    else:
        last = model.fc
    logits: Tensor = last(features)
    return logits


def share(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).float().mean())


def positions(model: nn.Module, *, seed: int) -> dict[str, Any]:
    """Tables 7 and 8 and Figure 3 of one ViT's position embedding."""
    table = position_rows(model)
    side = round(len(table) ** 0.5)
    error = position_regression(table, (side, side), seed=seed)
    return {
        "explained_variance": {str(n): explained_variance(table, n) for n in range(3, 8)},
        "explained_variance_uncentred": {
            str(n): explained_variance(table, n, centred=False) for n in range(3, 8)
        },
        "accumulated": [round(float(v), 5) for v in accumulated_eigenvalues(table)],
        "regression_1d": error.one_dimensional,
        "regression_2d": error.two_dimensional,
    }


def position_rows(model: Any) -> Tensor:
    """The patches' position embeddings of a trained ViT, ``[N, D]``."""
    rows: Tensor = model.pos_embed.detach()[0, 1:].float().cpu()
    return rows


@torch.no_grad()
def robustness(
    model: nn.Module, test: Pictures, images: int, data_dir: str | None = None
) -> dict[str, Any]:
    """Errors under corruptions; confidence on test images and on classes never seen (CIFAR-100)."""
    model.eval()

    def predict(x: Tensor) -> Tensor:
        inputs = test.inputs(x.to(test.images.device) * 255)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
            logits: Tensor = model(inputs)
        return logits.float().cpu()

    clean = test.images.float().cpu() / 255
    labels = test.labels.cpu()
    errors = evaluate_corruptions(
        predict, clean[:images], labels[:images], CORRUPTIONS.values(), torch.Generator()
    )
    logits = torch.cat([predict(part) for part in torch.split(clean, 2048)])
    found: dict[str, Any] = {
        "images": images,
        "errors": errors,
        "mce": corruption_error(errors),
        "aurra": aurra(logits.softmax(1).amax(1), logits.argmax(1) == labels),
    }
    odd = load("cifar100", split="test", data_dir=data_dir)
    strange = strangeness(predict(odd.images(range(len(odd)))))
    found["aupr_out"] = aupr_out(strangeness(logits), strange)
    found["unseen_images"] = len(odd)
    return found
