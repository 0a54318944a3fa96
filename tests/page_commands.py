"""The commands and Python examples that pages print, and the folder in which a reader runs them."""

from __future__ import annotations

import re
import shlex
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torchvision.utils import save_image

import keyhole
from scripts import ROOT

PAGES = sorted(
    file.relative_to(ROOT).as_posix()
    for file in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if "_build" not in file.parts
)
"""Every page of the repository, by its path."""
BLOCK = re.compile(r"^( *)```(\S*).*?\n(.*?)^ *```$", re.S | re.M)


def code_blocks(page: str, language: str = "") -> list[str]:
    """The blocks of one language on a page, by its path; ``""`` are those that name none."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        re.sub(rf"^{indent}", "", code, flags=re.M)
        for indent, of, code in BLOCK.findall(text)
        if of == language
    ]


def commands(page: str) -> list[list[str]]:
    """What follows ``keyhole`` in each command of a page, as a shell splits it; not where to."""
    joined = "\n".join(code_blocks(page)).replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    split = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("keyhole ")]
    return [words[: words.index(">")] if ">" in words else words for words in split]


def run_example(code: str, name: str = "example") -> dict[str, Any]:
    """The names that an example defines, run by itself as a module would be."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(code, name, "exec"), vars(module))
    finally:
        del sys.modules[name]
    return vars(module)


@contextmanager
def own_files(folder: Path) -> Iterator[None]:
    """What the pages say a reader has: parts and weights, images, a plan, an update."""
    names = ("my_model", "my_attack", "my_defense")
    for name in names:
        (folder / f"{name}.py").write_text(code_blocks(f"docs/howto/{name}.md", "python")[0])
    (folder / "plan.toml").write_text(code_blocks("docs/reference/plan.md", "toml")[0])
    (folder / "keyhole.toml").write_text((ROOT / "examples/ci/plan.toml").read_text())
    save_images(folder)
    torch.manual_seed(0)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 2))
    save_file(linear.state_dict(), folder / "my.safetensors")
    save_update(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)


def save_images(folder: Path) -> None:
    """Two classes of six photos each in ``path/to/images``, one digit in ``my/images``."""
    photos = keyhole.data.load("photos", image_size=64)
    for number, photo in enumerate(photos.images(range(12))):
        place = folder / "path" / "to" / "images" / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        save_image(photo, place / f"{number}.png")
    for number in range(10):  # one image of each class: the network tells ten apart
        (folder / "my" / "images" / str(number)).mkdir(parents=True)
    digits = keyhole.data.load("digits")
    for index in {int(label): i for i, label in enumerate(digits.labels)}.values():
        label = int(digits.labels[index])
        save_image(digits.images([index])[0, 0], folder / "my" / "images" / str(label) / "a.png")


def save_update(folder: Path) -> None:
    """The weights that a server sent, and those after a client's step on one of its images."""
    images = keyhole.data.load(str(folder / "my" / "images"))
    channels = images.shape[0]
    height, width = images.shape[1:]
    model = keyhole.models.build(
        "vit-small", classes=10, channels=channels, image_size=(height, width)
    )
    save_file(model.state_dict(), folder / "global.safetensors")
    loss = torch.nn.functional.cross_entropy(
        model(images.normalise(images.images([3]))), images.labels[[3]]
    )
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    save_file(model.state_dict(), folder / "mine.safetensors")
