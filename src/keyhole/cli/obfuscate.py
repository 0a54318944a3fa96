"""``keyhole obfuscate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole.cli.progress import show_progress
from keyhole.cli.shared import Json
from keyhole.errors import BadValue
from keyhole.interrupts import INTERRUPTS
from keyhole.spelling import spell
from keyhole.terminal import log, say_json, say_unwrapped

if TYPE_CHECKING:
    from keyhole.defenses import Csvar
    from keyhole.obfuscation import ObfuscationResult

LISTED = 10
"""The most skipped images that are listed one by one."""


def obfuscate(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Images; folders are classes.")],
    out: Annotated[Path, typer.Argument(metavar="DST", help="Folder for the result.")],
    key_file: Annotated[
        Path, typer.Option(help="The secret key; created if it does not exist. Never share it.")
    ],
    epochs: Annotated[int | None, typer.Option(help="Versions of each image.")] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Undo: SRC is what this command has written.")
    ] = False,
    channels: Annotated[
        str | None, typer.Option(help="Colour planes: apart, mixed or together.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one per core.")] = None,
    as_json: Json = False,
) -> None:
    """Shuffle images (CSVAR) before they travel: N versions of each, for N epochs of training.

    Each version is a PNG file in DST/epoch-001/..., with folders and names kept (a.jpg becomes
    a.jpg.png); pixels only: what else a file says, such as place and time, stays behind. Images
    that cannot be kept exactly (broken, CMYK, 16-bit colour, animated) are named and left out, and
    the exit code is 1. The same command continues an interrupted one, and adds new images and
    epochs. `keyhole train --data DST` takes version e for epoch e. With --restore and the key: PNG
    files with exactly the originals' pixels; nothing is written over.
    """
    if restore and (epochs is not None or channels is not None):
        raise BadValue("--epochs and --channels cannot be used with --restore: leave them out")
    if not restore and epochs is None:
        raise BadValue("pass --epochs: how many versions of each image, one for each epoch")
    with INTERRUPTS.leaving_at_once():
        from keyhole import obfuscation
    with show_progress() as bar:
        if epochs is None:
            work = obfuscation.restore(source, out, key_file=key_file, jobs=jobs, progress=bar)
        else:
            work = obfuscation.obfuscate(
                source,
                out,
                epochs=epochs,
                key_file=key_file,
                defense=make_defense(channels),
                jobs=jobs,
                progress=bar,
            )
    print_work(work, key_file, restored=restore, as_json=as_json)
    raise typer.Exit(int(not work.succeeded))


def make_defense(channels: str | None) -> Csvar:
    """Makes the CSVAR defense, with its colour planes as the option says."""
    from keyhole.defenses import DEFENSES, Csvar

    defense = DEFENSES.parse(spell(Csvar.name, {"channels": channels}))
    assert isinstance(defense, Csvar)
    return defense


def print_work(work: ObfuscationResult, key_file: Path, *, restored: bool, as_json: bool) -> None:
    """Prints the result, for people or for machines."""
    from keyhole.obfuscation import printable_path

    if as_json:
        say_json(work.to_json())
        return
    for note in list_notes(work, key_file):
        log(note)
    speed = f", {work.done / work.seconds:.1f} per second" if work.done else ""
    there = f", {work.already_done:,} were there" if work.already_done else ""
    versions = f"{work.versions} version{'s' * (work.versions > 1)}"
    out, key = printable_path(work.out), printable_path(key_file)
    what = "restored" if restored else f"shuffled, {versions} each"
    say_unwrapped(
        f"{work.done:,} of {work.images:,} images {what}{there} "
        f"({work.seconds:.1f} s{speed}): {out}"
    )
    if not restored:
        say_unwrapped(f"Train on it: keyhole train --data {out}")
        say_unwrapped(f"Undo it:     keyhole obfuscate {out} BACK --restore --key-file {key}")


def list_notes(work: ObfuscationResult, key_file: Path) -> list[str]:
    """Lists what else the user should know, one line each."""
    found = []
    if work.key_created:
        found.append(f"note: a new key is in {key_file}: without it nobody restores the images")
    elif key_file.stat().st_mode & 0o077:
        found.append(f"note: others can read {key_file}: chmod 600 {key_file}")
    if work.other_files:
        found.append(
            f"note: {work.other_files:,} other files are left out: not named as images are"
        )
    if not work.complete:
        found.append(
            "keyhole: the versions were not all made: only images in the manifest are restored"
        )
    if not work.signed:
        found.append(
            "note: an older version made this folder: nobody could tell if lines were missing from "
            "its manifest; running the same `keyhole obfuscate` again signs it"
        )
    if work.changes:
        found.append(f"keyhole: the manifest was changed since it was written: {work.changes}")
    if work.skipped:
        found += [f"keyhole: left out {one.file!r}: {one.why}" for one in work.skipped[:LISTED]]
    if len(work.skipped) > LISTED:
        found.append(f"keyhole: left out {len(work.skipped) - LISTED:,} more: --json lists all")
    return found
