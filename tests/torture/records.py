"""Shuffled folders whose record, versions or key somebody has changed."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from keyhole.data import load
from keyhole.data.versions import MANIFEST
from keyhole.obfuscation import obfuscate, restore
from keyhole.obfuscation.raster import read_raster
from torture.fuzzing import BrokenPromise, Fuzzer
from torture.mutations import spoil_bytes, spoil_json, spoil_path


class Records(Fuzzer):
    name: ClassVar[str] = "records of shuffled images"

    def prepare(self) -> None:
        self.photos = self.root / "photos"
        self.photos.mkdir()
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (18, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(self.photos / f"{number}.png")
        self.key = self.root / "site.key"
        obfuscate(self.photos, self.root / "out", epochs=2, key_file=self.key, jobs=1)

    def run(self, draw: random.Random, folder: Path) -> None:
        out = folder / "out"
        shutil.copytree(self.root / "out", out)
        spoil(draw, out)
        match draw.randrange(6):
            case 0:
                load(f"{out}/").images([0])
            case 1:
                obfuscate(self.photos, out, epochs=draw.choice([1, 3]), key_file=self.key, jobs=1)
                self.check(out, folder / "back")
            case _:
                self.check(out, folder / "back")

    def check(self, out: Path, back: Path) -> None:
        """Restores; what comes back are the originals, and all of them where nothing is said."""
        work = restore(out, back, key_file=self.key, jobs=1)
        found = sorted(file.name for file in back.rglob("*.png"))
        for name in found:
            one, two = read_raster(self.photos / name), read_raster(back / name)
            if one.content() != two.content():
                raise BrokenPromise(f"{name} came back with other pixels")
        if work.succeeded and len(found) < 4:
            raise BrokenPromise(f"{len(found)} of 4 images were restored without a word")


def spoil(draw: random.Random, out: Path) -> None:
    record = out / MANIFEST
    lines = record.read_text().splitlines()
    match draw.randrange(8):
        case 0:
            record.write_bytes(spoil_bytes(draw, record.read_bytes()))
            return
        case 1:
            versions = sorted(out.rglob("*.png"))
            version = draw.choice(versions)
            version.write_bytes(spoil_bytes(draw, version.read_bytes()))
            return
        case 2:
            spoil_path(draw, draw.choice(sorted(p for p in out.rglob("*") if p.is_file())))
            return
        case 3:
            del lines[draw.randrange(len(lines))]
        case 4:
            lines.insert(draw.randrange(len(lines)), draw.choice(lines))
        case 5:
            draw.shuffle(lines)
        case _:
            place = draw.randrange(len(lines))
            lines[place] = json.dumps(spoil_json(draw, json.loads(lines[place])))
    record.write_text("".join(f"{line}\n" for line in lines))
