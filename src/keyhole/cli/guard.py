"""``keyhole guard``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from keyhole.audit.guard import Guard, weights_change
from keyhole.cli.shared import DataDir, ImageSize, Json
from keyhole.data import load
from keyhole.defenses import DEFENSES
from keyhole.errors import BadValue
from keyhole.models import build
from keyhole.update import Update, read_safetensors


def guard(
    before: Annotated[Path, typer.Option(help="The global weights the server sent, safetensors.")],
    after: Annotated[
        Path, typer.Option(help="The weights after local training: what would be uploaded.")
    ],
    model: Annotated[str, typer.Option(help="The model, by name.")],
    data: Annotated[str, typer.Option(help="The client's images: a folder, or a data set.")],
    images: Annotated[
        str | None, typer.Option(help="Which of them it trained on: 3,5; default: all.")
    ] = None,
    image_size: ImageSize = None,
    lr: Annotated[float, typer.Option(help="Local learning rate.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Local steps.")] = 1,
    defense: Annotated[str, typer.Option(help="The defense it went through.")] = "none",
    threshold: Annotated[
        float, typer.Option(help="SSIM from which an image is leaked.", min=0, max=1)
    ] = 0.5,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Check a client's own update before it is uploaded; exits with 1 if it would leak."""
    found = load(data, image_size=image_size, data_dir=data_dir)
    chosen = chosen_images(images, len(found))
    network = build(
        model,
        classes=len(found.classes),
        channels=found.shape[0],
        image_size=found.size,
        weights=before,
    )
    own = {name for name, _ in network.named_parameters()}
    change = weights_change(read_safetensors(before)[0], read_safetensors(after)[0])
    update = Update(
        {name: tensor for name, tensor in change.items() if name in own},
        steps=steps,
        lr=lr,
        batch_size=len(chosen),
        examples=len(chosen),
    ).check()
    check = Guard(model=network, data=found, threshold=threshold, defense=DEFENSES.parse(defense))(
        update, found.images(chosen), found.labels[chosen]
    )
    if as_json:
        typer.echo(json.dumps(check.to_json()))
    else:
        typer.echo(("LEAKS: " if check.leaks else "") + check.words)
    raise typer.Exit(int(check.leaks))


def chosen_images(text: str | None, count: int) -> list[int]:
    """Indices from ``3,5``; all without."""
    if text is None:
        return list(range(count))
    parts = [part.strip() for part in text.split(",")]
    bad = [part for part in parts if not part.isdecimal() or int(part) >= count]
    if bad:
        raise BadValue(f"images: there is no image {bad[0]!r} among {count}: write 3,5")
    return [int(part) for part in parts]
