"""What the paper measures of a trained network: accuracy, consistency, position embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from keyhole.data import ImageSet, load
from keyhole.models import Jigsaw, Puzzle, PuzzleRules, apply_puzzle, draw_random_puzzle
from keyhole.seeds import derive
from keyhole_studies.corruptions import CORRUPTIONS
from keyhole_studies.mjp.consistency import consistency, difference_norm
from keyhole_studies.mjp.networks import PATCH
from keyhole_studies.mjp.positions import (
    accumulated_eigenvalues,
    explained_variance,
    position_regression,
)
from keyhole_studies.resident_data import iterate_batches
from keyhole_studies.robustness import (
    aupr_out,
    aurra,
    corruption_error,
    evaluate_corruptions,
    strangeness,
)

GAMMAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
CONSISTENCY_GAMMA = 0.5
"""The share of patches that are covered where consistency is measured."""
UNKNOWN_GAMMA = 0.9
"""The same where a network goes without its unknown position embedding."""
AT_ONCE = 2048


@torch.no_grad()
def evaluate_network(model: nn.Module, test: ImageSet, *, seed: int) -> dict[str, Any]:
    """Accuracy by the gamma at inference, consistency and difference of features.

    Args:
        model: Left in evaluation mode.
        test: The images.
        seed: Of the puzzles.
    """
    model.eval()
    device = next(model.parameters()).device
    labels = test.labels.to(device)
    draw = torch.Generator(device).manual_seed(derive(seed, "inference puzzles"))
    logits, features = run_network(model, test, None)
    right = {0.0: accuracy(logits, labels)}
    found: dict[str, Any] = {}
    for gamma in GAMMAS[1:]:
        puzzled, moved = run_network(model, test, PuzzleRules(gamma, (PATCH, PATCH)), draw)
        right[gamma] = accuracy(puzzled, labels)
        if gamma == CONSISTENCY_GAMMA:
            norms = difference_norm(features, moved)
            found["difference_norm"] = float(norms.mean())
            found["difference_norm_squared"] = float(norms.square().mean())
            found["feature_norm"] = float(features.norm(dim=1).mean())
            found["consistency"] = consistency(logits, puzzled)
    found["accuracy"] = right[0.0]
    found["accuracy_by_gamma"] = {str(gamma): value for gamma, value in right.items()}
    if isinstance(model, Jigsaw) and model.puzzle.positions == "unknown":
        rules = PuzzleRules(UNKNOWN_GAMMA, (PATCH, PATCH))
        bare = run_network(model, test, rules, draw, unknown=False)[0]
        found["accuracy_without_unknown"] = accuracy(bare, labels)
    return found


def run_network(
    model: nn.Module,
    test: ImageSet,
    rules: PuzzleRules | None,
    draw: torch.Generator | None = None,
    *,
    unknown: bool = True,
) -> tuple[Tensor, Tensor]:
    """Logits and features of all images, plain or as puzzles, a fresh puzzle for each image.

    Args:
        model: In evaluation mode.
        test: The images.
        rules: Of the puzzles; None: images stay plain.
        draw: Draws the puzzles.
        unknown: A network that has learnt unknown positions is told which ones they are. Without
            it, and for all other networks, images are shuffled and that is all.
    """
    logits, features = [], []
    for images, _ in iterate_batches(test, range(len(test)), next(model.parameters()), AT_ONCE):
        x = test.normalise(images)
        puzzle = None if rules is None else draw_random_puzzle(x, rules, draw)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            found = forward_puzzle(model, x, puzzle, rules, unknown=unknown)
        logits.append(found[0].float())
        features.append(found[1].float())
    return torch.cat(logits), torch.cat(features)


def forward_puzzle(
    model: Any, x: Tensor, puzzle: Puzzle | None, rules: PuzzleRules | None, *, unknown: bool
) -> tuple[Tensor, Tensor]:
    """Logits and the pooled, normalised features before the last layer."""
    knows = isinstance(model, Jigsaw) and model.puzzle.embedding is not None and unknown
    if puzzle is None or rules is None:
        features = pool_features(model, x)
    elif knows:
        with model.use_puzzle(puzzle):
            features = pool_features(model, x)
    else:
        features = pool_features(model, apply_puzzle(x, puzzle, rules))
    return classify_features(model, features), features


def pool_features(model: Any, x: Tensor) -> Tensor:
    """What goes into the last layer, ``[B, D]``."""
    if hasattr(model, "forward_head"):
        found: Tensor = model.forward_head(model.forward_features(x), pre_logits=True)
        return found
    inputs: list[Tensor] = []
    handle = model.fc.register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    model(x)
    handle.remove()
    return inputs[0]


def classify_features(model: Any, features: Tensor) -> Tensor:
    """The last layer's logits, ``[B, classes]``."""
    if hasattr(model, "forward_head"):
        last = model.head.fc if hasattr(model.head, "fc") else model.head
    else:
        last = model.fc
    logits: Tensor = last(features)
    return logits


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of images whose largest logit is that of their label."""
    return float((logits.argmax(1) == labels).float().mean())


def evaluate_positions(model: nn.Module, *, seed: int) -> dict[str, Any]:
    """Tables 7 and 8 and Figure 3 of one ViT's position embedding.

    Args:
        model: A ViT of timm's with a class token.
        seed: Of the folds by which positions are regressed.
    """
    table = read_positions(model)
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


def read_positions(model: Any) -> Tensor:
    """The patches' position embeddings of a ViT, ``[N, D]``."""
    rows: Tensor = model.pos_embed.detach()[0, 1:].float().cpu()
    return rows


@torch.no_grad()
def evaluate_robustness(
    model: nn.Module, test: ImageSet, images: int, data_dir: str | None = None
) -> dict[str, Any]:
    """Errors under corruptions; confidence on test images and on classes never seen (CIFAR-100).

    Args:
        model: Left in evaluation mode.
        test: Test images of the classes that the model knows.
        images: How many of them are corrupted.
        data_dir: The folder of CIFAR-100.
    """
    model.eval()
    device = next(model.parameters()).device

    def predict(x: Tensor) -> Tensor:
        inputs = test.normalise(x.to(device))
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
            logits: Tensor = model(inputs)
        return logits.float().cpu()

    clean, labels = test.images(range(len(test))).cpu(), test.labels.cpu()
    errors = evaluate_corruptions(
        predict, clean[:images], labels[:images], CORRUPTIONS.values(), torch.Generator()
    )
    logits = torch.cat([predict(part) for part in torch.split(clean, AT_ONCE)])
    unseen = load("cifar100", split="test", data_dir=data_dir)
    unseen_strangeness = strangeness(predict(unseen.images(range(len(unseen)))))
    return {
        "images": images,
        "errors": errors,
        "mce": corruption_error(errors),
        "aurra": aurra(logits.softmax(1).amax(1), logits.argmax(1) == labels),
        "aupr_out": aupr_out(strangeness(logits), unseen_strangeness),
        "unseen_images": len(unseen),
    }
