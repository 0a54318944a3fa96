"""The paper's figures: of built-in photos, and from results."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from keyhole.attacks.undoing import UNDOING
from keyhole.data import load
from keyhole.defenses import ClientSide, Csvar, Defense, ImageNoise
from keyhole.report.drawing import COLOURS, DASHES, GREY, as_png, comparison, show
from keyhole.report.shuffle_pictures import shuffle_explained
from keyhole.seeds import generator
from keyhole.studies.csvar import paper
from keyhole.studies.csvar.pieces import generated

BLOCKS = (8, 4, 2)
"""Sides that Figure 3 compares, at 224 px with regions of 16."""


def draw(results: Path, out: Path) -> list[Path]:
    """All figures of which the material is at hand."""
    made = [
        shuffle_explained(photos(224)[0], out / "figure-4-how-it-works.png"),
        block_sizes(out / "figure-3-block-sizes.png"),
        *(seen(side, out / f"figure-5-{side}px.png") for side in (224, 32)),
    ]
    if drawings := list(by_generators(results)):
        made.append(drawn(drawings, out / "figure-6-drawn-by-a-gan.png"))
    for name, curve in (("overfitting", by_epoch), ("membership", by_defense)):
        lines = list(curve(results))
        if lines:
            made.append(roc_curves(lines, out / f"figure-{name}.png"))
    return made


def by_generators(results: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Figure 6: under which defense, and what was drawn in spite of it."""
    for piece in generated():
        file = results / f"{piece.name}.json"
        if file.is_file():
            found = json.loads(file.read_text(encoding="utf-8"))
            drawing = io.BytesIO(base64.b64decode(found["drawn"]))
            with Image.open(drawing, formats=["PNG"]) as picture:
                words = paper.DATA[found["data"]], paper.WORDS[found["defense"]]
                known = ", known" if found["attacker"] == "adaptive" else ""
                yield f"{', '.join(words)}{known}", np.array(picture.convert("RGB"))


def drawn(rows: Sequence[tuple[str, np.ndarray[Any, Any]]], path: Path) -> Path:
    """Rows of pixels ``[H, W, 3]`` below each other, with their names."""
    heights = [6 * pixels.shape[0] / pixels.shape[1] for _, pixels in rows]

    def on(figure: Any) -> None:
        panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (words, pixels) in zip(panels, rows, strict=True):
            show(axes, torch.from_numpy(pixels).permute(2, 0, 1) / 255)
            axes.set_ylabel(words, rotation=0, ha="right", va="center")
            axes.set_anchor("E")

    return as_png(on, path, size=(8.2, sum(heights) + 0.06 * len(rows)))


def photos(side: int) -> Tensor:
    """Four built-in photos, ``[4, 3, side, side]``: an astronaut, a cat, coffee, ..."""
    return load("photos", image_size=side).images(range(4))


def block_sizes(path: Path) -> Path:
    """Figure 3: smaller blocks, and planes apart, hide more from the eye."""
    image = photos(224)[:1]
    columns: dict[str, list[Tensor]] = {"image": [image[0], image[0]]}
    for block in BLOCKS:
        rules = [Csvar(channels=rule, block=block) for rule in ("together", "apart")]
        columns[f"blocks of {block} px"] = [shown(rule, image)[0] for rule in rules]
    columns["CSVAR"] = [shown(Csvar(channels=rule), image)[0] for rule in ("together", "apart")]
    return comparison(columns, path)


def seen(side: int, path: Path) -> Path:
    """Figure 5, and what an attacker who knows the defense makes of it, of one version and five."""
    images = photos(side)
    columns: dict[str, list[Tensor]] = {"image": list(images)}
    for defense, words in ((ImageNoise(), "noise"), (Csvar(), "CSVAR")):
        side_ = ClientSide(generator(0, "figure"))
        versions = [defense.on_images(images, side_) for _ in range(5)]
        undo = UNDOING[defense.name]
        columns[words] = list(versions[-1])
        columns[f"{words}, undone"] = list(undo(versions[-1:], defense.spec, True).images)
        if defense.name == "image-noise":  # shuffled versions show the same blocks again
            columns["five versions"] = list(undo(versions, defense.spec, True).images)
    return comparison(columns, path)


def shown(defense: Defense, images: Tensor) -> Tensor:
    return defense.on_images(images, ClientSide(generator(0, "figure")))


Line = tuple[str, list[tuple[float, float]]]


def by_epoch(results: Path) -> Iterator[Line]:
    """Figure 1: a line an epoch."""
    for trial in trials(results / "overfitting.json"):
        one = trial["inferences"][0]
        yield f"{trial['epochs']} epochs, AUC {one['auc']:.2f}", one["roc"]


def by_defense(results: Path) -> Iterator[Line]:
    """Figure 7: the loss as in the paper, and the worst attacker, a line each."""
    for defense in paper.DEFENSES:
        for trial in trials(results / f"membership-{defense}.json"):
            by_loss = trial["inferences"][0]
            worst = max(trial["inferences"], key=lambda one: float(one["auc"]))
            for one in (by_loss, worst):
                words = f"{paper.WORDS[defense]}, {one['attack']} ({one['attacker']})"
                yield f"{words}, AUC {one['auc']:.2f}", one["roc"]


def trials(path: Path) -> list[Mapping[str, Any]]:
    if not path.is_file():
        return []
    found: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["trials"]
    return found


def roc_curves(lines: list[Line], path: Path) -> Path:
    """True- over false-positive rates, as they are and with logarithmic axes."""

    def on(figure: Any) -> None:
        plain, low = figure.subplots(1, 2)
        for number, (words, points) in enumerate(lines):
            style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.5}
            style["linestyle"] = DASHES[number // len(COLOURS) % len(DASHES)]
            rates = torch.tensor(points, dtype=torch.double)
            for axes in (plain, low):
                axes.plot(rates[:, 0], rates[:, 1], label=words, **style)
        finish(plain, lambda axes: axes.legend(frameon=False, fontsize=6.5, loc="lower right"))
        finish(low, lambda axes: (axes.set_xscale("log"), axes.set_yscale("log")))
        low.set_xlim(1e-3, 1)
        low.set_ylim(1e-3, 1)

    return as_png(on, path, size=(9, 4.2))


def finish(axes: Any, more: Callable[[Any], object]) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axes.set_xlabel("non-members taken for members")
    axes.set_ylabel("members found")
    axes.spines[["top", "right"]].set_visible(False)
    more(axes)
