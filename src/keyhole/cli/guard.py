"""``keyhole guard``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole.auditing.plan import Stage
from keyhole.auditing.self_check import check_seconds, check_threshold
from keyhole.cli.early_checks import check_defenses, check_incoming_names, check_victim
from keyhole.cli.incoming import IncomingFiles, OwnImages, guard_incoming, read_indices
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.shared import DataDir, Json
from keyhole.errors import BadValue
from keyhole.interrupts import INTERRUPTS
from keyhole.mean_and_std import check_mean_and_std, parse_deviations, parse_means
from keyhole.settings import parse_mode
from keyhole.terminal import say_json, say_unwrapped
from keyhole.untrusted import check_tensor_file

if TYPE_CHECKING:
    from keyhole.auditing.self_check import SelfCheck

EXIT_CODES = {False: 0, True: 1, None: 4}
"""By whether the update leaks; None means that nothing could be tested."""
OTHERS = 256
"""The most other images of the data set that the client's images are compared with."""


@takes_fields_of(Stage, only=("image_size", "mean", "std", "client_mode"))
def guard(
    before: Annotated[
        Path | None, typer.Option(help="The global weights the server sent, safetensors.")
    ] = None,
    after: Annotated[
        Path | None, typer.Option(help="The weights after local training: what would be uploaded.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model, by name.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The client's images: a folder, or a data set.")
    ] = None,
    incoming: Annotated[
        Path | None,
        typer.Option(help="Check this model that the server sent, instead of an update."),
    ] = None,
    previous: Annotated[
        Path | None, typer.Option(help="The model of the round before, beside --incoming.")
    ] = None,
    expected_hash: Annotated[
        str | None, typer.Option(help="The hash that other clients got, beside --incoming.")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Which of them it trained on: 3,5; default: all.")
    ] = None,
    *,
    given: Given,
    lr: Annotated[float, typer.Option(help="Local learning rate.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Local steps.")] = 1,
    defense: Annotated[str, typer.Option(help="The defense it went through.")] = "none",
    threshold: Annotated[
        float, typer.Option(help="SSIM, 0 to 1, from which an image is leaked.")
    ] = 0.5,
    seconds: Annotated[
        float, typer.Option(help="Seconds for iterative attacks; 0: closed forms only.")
    ] = 30.0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Check a client's own update before it is uploaded.

    Exit codes: 0 no attack tried reads an image; 1 an image was read: it leaks; 2 the input cannot
    be used; 4 no attack on images could be tried, so nobody knows.

    With --incoming, check the model that the server sent before training on it: 0 no alarm;
    1 alarm: do not train on it; 2 the input cannot be used. --model, --data, --previous and
    --expected-hash each allow more checks.
    """
    mode = parse_mode(given.get("client_mode", "train"))
    check_mean_and_std(given.get("mean"), given.get("std"))
    mean = parse_means(given["mean"]) if "mean" in given else None
    std = parse_deviations(given["std"]) if "std" in given else None
    check_threshold(threshold)
    check_seconds(seconds)
    check_defenses([defense])
    if incoming is not None:
        if before is not None or after is not None:
            raise BadValue("give --incoming, or --before and --after: they check different things")
        check_incoming_names((incoming, previous), model, data, data_dir)
        files = IncomingFiles(incoming, previous, expected_hash, model, defense)
        client = OwnImages(data, images, given.get("image_size"), mean, std, data_dir)
        raise typer.Exit(guard_incoming(files, client, as_json=as_json))
    if previous is not None or expected_hash is not None:
        raise BadValue("--previous and --expected-hash belong to --incoming FILE: give that too")
    if before is None or after is None or model is None or data is None:
        needed = {"--before": before, "--after": after, "--model": model, "--data": data}
        absent = ", ".join(repr(name) for name, value in needed.items() if value is None)
        raise BadValue(f"Missing option {absent}: give it, or --incoming FILE for a server's model")
    check_victim(data, model, data_dir, weights=before)
    check_tensor_file(after)
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.guard import Guard, subtract_weights
        from keyhole.data import load
        from keyhole.defenses import DEFENSES
        from keyhole.models import build
        from keyhole.update import Update, read_safetensors
    checked_defense = DEFENSES.parse(defense)
    found = load(
        data,
        image_size=given.get("image_size"),
        data_dir=data_dir,
        mean=mean,
        std=std,
    )
    chosen = read_indices(images, len(found))
    network = build(
        model,
        classes=len(found.classes),
        channels=found.shape[0],
        image_size=found.size,
        weights=before,
    )
    trained = {name for name, _ in network.named_parameters()}
    change = subtract_weights(read_safetensors(before)[0], read_safetensors(after)[0])
    update = Update(
        {name: tensor for name, tensor in change.items() if name in trained},
        steps=steps,
        lr=lr,
        batch_size=len(chosen),
        examples=len(chosen),
    ).check()
    check = Guard(
        model=network,
        data=found,
        threshold=threshold,
        defense=checked_defense,
        mode=mode,
        seconds=seconds,
        assumed_normalisation=mean is None,
    )
    rest = sorted(set(range(len(found))) - set(chosen))[:OTHERS]
    others = (found.images(rest), found.labels[rest]) if rest else None
    result = check(update, found.images(chosen), found.labels[chosen], others)
    if as_json:
        say_json(result.to_json())
    else:
        for line in verdict_lines(result):
            say_unwrapped(line)
    raise typer.Exit(EXIT_CODES[result.leaks])


def verdict_lines(result: SelfCheck) -> list[str]:
    """Returns the verdict, and then one line for each other thing that the update reveals."""
    first = {True: "LEAKS: ", False: "", None: "NOT TESTED: "}[result.leaks] + result.words
    more = [each for each in (result.labels, result.membership) if each is not None]
    return [first, *map(str, more), *(f"note: {note}" for note in result.notes)]
