"""The paper's figures: of built-in photos, and from results."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from keyhole.attacks import UndoneInterception
from keyhole.data import load
from keyhole.defenses import ClientSide, Csvar, Defense, ImageNoise
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Server
from keyhole.update import Update
from keyhole_studies.base import Study
from keyhole_studies.csvar.experiments import MembershipExperiment
from keyhole_studies.csvar.generation import GanExperiment
from keyhole_studies.csvar.shuffle_pictures import draw_shuffle
from keyhole_studies.drawing import COLOURS, DASHES, GREY, draw_comparison, save_png, show_image
from keyhole_studies.result_files import read_result

BLOCKS = (8, 4, 2)
"""Sides that Figure 3 compares, at 224 px with regions of 16."""
VERSIONS = 5

Line = tuple[str, list[tuple[float, float]]]
"""A label, and points of false- and true-positive rates."""
Drawing = tuple[str, np.ndarray[Any, Any]]
"""A label, and pixels ``[H, W, 3]``."""


def draw_figures(study: Study, results: Path, folder: Path) -> list[Path]:
    """Draws all figures of which the material is at hand; returns their paths."""
    paths = [
        draw_shuffle(load_photos(224)[0], folder / "figure-4-how-it-works.png"),
        draw_block_sizes(folder / "figure-3-block-sizes.png"),
        *(draw_seen(side, folder / f"figure-5-{side}px.png") for side in (224, 32)),
    ]
    if drawings := list(read_drawings(study, results)):
        paths.append(draw_drawings(drawings, folder / "figure-6-drawn-by-a-gan.png"))
    for name, read in (("overfitting", read_lines_by_epoch), ("membership", read_lines_by_defense)):
        lines = list(read(study, results))
        if lines:
            paths.append(draw_roc(lines, folder / f"figure-{name}.png"))
    return paths


def read_drawings(study: Study, results: Path) -> Iterator[Drawing]:
    """Figure 6: under which defense, and what was drawn in spite of it."""
    for experiment in study.experiments:
        if not isinstance(experiment, GanExperiment):
            continue
        found = read_result(results, experiment.name)
        if found is not None:
            png = io.BytesIO(base64.b64decode(found["drawn"]))
            with Image.open(png, formats=["PNG"]) as picture:
                words = experiment.setup.data_name, study.labels["defense"][experiment.defense]
                known = ", known" if experiment.adaptive else ""
                yield f"{', '.join(words)}{known}", np.array(picture.convert("RGB"))


def draw_drawings(rows: Sequence[Drawing], path: Path) -> Path:
    """Draws rows of images below each other, with their labels. Returns ``path``, a PNG."""
    heights = [6 * pixels.shape[0] / pixels.shape[1] for _, pixels in rows]

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (words, pixels) in zip(panels, rows, strict=True):
            show_image(axes, torch.from_numpy(pixels).permute(2, 0, 1) / 255)
            axes.set_ylabel(words, rotation=0, ha="right", va="center")
            axes.set_anchor("E")

    return save_png(draw, path, size=(8.2, sum(heights) + 0.06 * len(rows)))


def load_photos(side: int) -> Tensor:
    """Four built-in photos, ``[4, 3, side, side]``: an astronaut, a cat, coffee, ..."""
    return load("photos", image_size=side).images(range(4))


def draw_block_sizes(path: Path) -> Path:
    """Draws Figure 3: smaller blocks, and planes apart, hide more from the eye."""
    image = load_photos(224)[:1]
    columns: dict[str, list[Tensor]] = {"image": [image[0], image[0]]}
    for block in BLOCKS:
        rules = [Csvar(channels=rule, block=block) for rule in ("together", "apart")]
        columns[f"blocks of {block} px"] = [defend(rule, image)[0] for rule in rules]
    columns["CSVAR"] = [defend(Csvar(channels=rule), image)[0] for rule in ("together", "apart")]
    return draw_comparison(columns, path)


def draw_seen(side: int, path: Path) -> Path:
    """Draws Figure 5, and what an attacker who knows the defense makes of one version and five."""
    images = load_photos(side)
    columns: dict[str, list[Tensor]] = {"image": list(images)}
    defenses: tuple[ImageNoise | Csvar, ...] = (ImageNoise(), Csvar())
    for defense, words in zip(defenses, ("noise", "CSVAR"), strict=True):
        client = ClientSide(generator(0, "figure"))
        versions = [defense.on_images(images, client) for _ in range(VERSIONS)]
        columns[words] = list(versions[-1])
        columns[f"{words}, undone"] = list(undo_defense(defense, versions[-1:]))
        if isinstance(defense, ImageNoise):  # shuffled versions show the same blocks again
            columns["five versions"] = list(undo_defense(defense, versions))
    return draw_comparison(columns, path)


def undo_defense(defense: Defense, versions: Sequence[Tensor]) -> Tensor:
    """What an attacker who knows the defense makes of versions of images seen on their way."""
    channels, height, width = versions[0].shape[1:]
    knowledge = Knowledge(
        shape=(channels, height, width),
        classes=1,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        intercepted=tuple(versions),
        defense=defense,
    )
    observation = Server(nn.Identity()).receive(Update({}), knowledge)
    images = UndoneInterception()(observation).images
    assert images is not None
    return images


def defend(defense: Defense, images: Tensor) -> Tensor:
    """Images as the defense shows them."""
    return defense.on_images(images, ClientSide(generator(0, "figure")))


def read_lines_by_epoch(study: Study, results: Path) -> Iterator[Line]:
    """Figure 1: one line per epoch."""
    for experiment in study.experiments:
        found = read_result(results, experiment.name) if experiment.group == "figure-1" else None
        for trial in (found or {}).get("trials", ()):
            one = trial["inferences"][0]
            yield f"{trial['epochs']} epochs, AUC {one['auc']:.2f}", one["roc"]


def read_lines_by_defense(study: Study, results: Path) -> Iterator[Line]:
    """Figure 7: for each defense the loss as in the paper, and the worst attacker."""
    for experiment in study.experiments:
        if not isinstance(experiment, MembershipExperiment) or experiment.group != "figure-7":
            continue
        words = study.labels["defense"][experiment.plan.defenses[0]]
        for trial in (read_result(results, experiment.name) or {}).get("trials", ()):
            by_loss = trial["inferences"][0]
            worst = max(trial["inferences"], key=lambda one: float(one["auc"]))
            for one in (by_loss, worst):
                who = f"{words}, {one['attack']} ({one['attacker']})"
                yield f"{who}, AUC {one['auc']:.2f}", one["roc"]


def draw_roc(lines: list[Line], path: Path) -> Path:
    """Draws true- over false-positive rates, as they are and with logarithmic axes.

    Returns ``path``, a PNG.
    """

    def draw(figure: Any) -> None:
        plain, low = figure.subplots(1, 2)
        for number, (words, points) in enumerate(lines):
            style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.5}
            style["linestyle"] = DASHES[number // len(COLOURS) % len(DASHES)]
            rates = torch.tensor(points, dtype=torch.double)
            for axes in (plain, low):
                axes.plot(rates[:, 0], rates[:, 1], label=words, **style)
        label_axes(plain)
        label_axes(low)
        plain.legend(frameon=False, fontsize=6.5, loc="lower right")
        low.set_xscale("log")
        low.set_yscale("log")
        low.set_xlim(1e-3, 1)
        low.set_ylim(1e-3, 1)

    return save_png(draw, path, size=(9, 4.2))


def label_axes(axes: Any) -> None:
    """Names the axes and draws the line of guessing."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
    axes.set_xlabel("non-members taken for members")
    axes.set_ylabel("members found")
    axes.spines[["top", "right"]].set_visible(False)
