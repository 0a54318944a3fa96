"""Flower's quickstart, as somebody else wrote it: two lines changed on either side to a verdict."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.utils import save_image

from flower_processes import Flower, settings
from keyhole.data import load
from keyhole.errors import DataMissing
from keyhole.federation import Capture

pytest.importorskip("flwr")

HERE = Path(__file__).resolve().parent
README = HERE.parents[1] / "examples" / "flower" / "README.md"
CLIENTS = 3
SERVER, CLIENT = (f"quickstart_pytorch/{side}_app.py" for side in ("server", "client"))
NORMALISED = ("--mean", "0.5", "--std", "0.5")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A copy of the app, as it is."""
    copy = tmp_path / "app"
    shutil.copytree(HERE / "app", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """CIFAR-10 where it is there, else digits, as a folder of 32x32 images: two for each client."""
    try:
        data = load("cifar10")
        pixels = data.images(range(2 * CLIENTS))
    except DataMissing:
        pixels = load("digits", image_size=32).images(range(2 * CLIENTS)).expand(-1, 3, -1, -1)
    folder = tmp_path / "images"
    for number in range(10):  # the network has ten outputs
        (folder / f"class-{number}").mkdir(parents=True)
        save_image(torch.rand(3, 32, 32), folder / f"class-{number}" / "z-public.png")
    for number, picture in enumerate(pixels):
        save_image(picture, folder / "class-0" / f"{number}.png")
    return folder


def change(file: Path, *, old: str, new: str, imports: str) -> None:
    """Changes one line of a file and adds another; checks that these are all."""
    before = file.read_text()
    assert before.count(old) == 1
    first = before.index("import torch\n")
    after = before[:first] + f"{imports}\n" + before[first:].replace(old, new)
    file.write_text(after)
    changed = [
        line
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line.startswith("+ ")
    ]
    assert len(changed) == 2, changed


def make_curious(app: Path, capture: Path) -> None:
    change(
        app / SERVER,
        old="FedAvg(fraction_train=fraction_train)",
        new=f'curious(FedAvg)(capture="{capture}", fraction_train=fraction_train)',
        imports="from keyhole.federation.flower import curious",
    )


def run(flower: Flower, app: Path, images: Path, capture: Path) -> Capture:
    """Simulates the app; checks that no client failed and that every round has replies."""
    nodes = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
    chosen = settings(images=str(images), batch_size=1)
    told = flower.run(app, "local", "--run-config", chosen, "--federation-config", nodes)
    found = Capture.open(capture)
    assert not found.problems
    assert [seen.number for seen in found.rounds] == [1, 2]
    for seen in found.rounds:
        assert not seen.lost, told
        assert len(seen.clients) >= 2
    assert "0 failures" in told
    assert not re.search(r"and [1-9]\d* failures", told), told
    return found


def task_of(app: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("task", app / "quickstart_pytorch" / "task.py")
    assert spec is not None
    assert spec.loader is not None
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    return task


def note_truth(app: Path, images: Path, found: Capture) -> None:
    """Flower's node ids are random: whose images are whose is told by training once more."""
    task, seen = task_of(app), found.rounds[0]
    owners: dict[str, list[int]] = {}
    for partition in range(CLIENTS):
        model = task.Net()
        model.load_state_dict(seen.read_weights())
        loader, _ = task.load_data(str(images), partition, CLIENTS, 1)
        task.train(model, loader, 1, 0.1, torch.device("cpu"))
        learnt = model.fc3.weight.detach() - seen.read_weights()["fc3.weight"]

        def distance(client: dict[str, Any], learnt: Tensor = learnt) -> float:
            return float((seen.read_change(client)["fc3.weight"] - learnt).norm())

        owners[str(min(seen.clients, key=distance)["node"])] = list(loader.dataset.indices)
    (found.root / "truth.json").write_text(json.dumps({"clients": owners}))


def audit(
    keyhole: Callable[..., tuple[int, str, str]], capture: Path, images: Path, *options: str
) -> Any:
    code, out, errors = keyhole(
        *("audit", "--captured", str(capture), "--model", "quickstart_pytorch.task:Net"),
        *("--data", str(images), "--attack", "ig", "--iterations", "20", "--json"),
        *NORMALISED,
        *options,
    )
    assert code == 0, errors
    return json.loads(out)


@pytest.mark.flower
def test_from_curious_to_a_verdict(
    flower: Flower,
    app: Path,
    images: Path,
    tmp_path: Path,
    keyhole: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = tmp_path / "captured"
    make_curious(app, capture)
    note_truth(app, images, run(flower, app, images, capture))
    monkeypatch.syspath_prepend(app)
    found = audit(keyhole, capture, images)
    (verdict,) = found["verdicts"]
    assert verdict["defense"]["name"] == "none"
    assert verdict["status"] in ("broken", "not broken")
    assert verdict["model"] == "quickstart_pytorch.task:Net"


@pytest.mark.flower
def test_from_a_mod_to_a_defended_verdict(
    flower: Flower,
    app: Path,
    images: Path,
    tmp_path: Path,
    keyhole: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = tmp_path / "captured"
    make_curious(app, capture)
    change(
        app / CLIENT,
        old="ClientApp()",
        new='ClientApp(mods=[as_mod("gaussian(sigma=0.001)")])',
        imports="from keyhole.federation.flower import as_mod",
    )
    note_truth(app, images, run(flower, app, images, capture))
    monkeypatch.syspath_prepend(app)
    found = audit(keyhole, capture, images)
    (verdict,) = found["verdicts"]
    assert verdict["defense"] == {"name": "gaussian", "parameters": {"sigma": 0.001, "clip": None}}
    assert {finding["attacker"] for finding in found["findings"]} == {"naive", "adaptive"}
    assert "as its clients claim" in json.dumps(found)


@pytest.mark.flower
def test_the_readme_s_own_lines_lose_no_client(
    flower: Flower, app: Path, images: Path, tmp_path: Path
) -> None:
    """``flwr run`` succeeds even where every client fails."""
    lines = README.read_text().partition("## Your own app")[2].partition("```python\n")[2]
    block = lines.partition("```")[0]
    (imports, made), (mods,) = (
        [line for line in block.splitlines() if word in line] for word in ("import", "ClientApp(")
    )
    capture = tmp_path / "captured"
    make_curious(app, capture)
    client = app / CLIENT
    text = client.read_text().replace("import torch\n", f"{imports}\n{made}\nimport torch\n", 1)
    client.write_text(text.replace("app = ClientApp()", mods))
    assert "as_mod(Gaussian(sigma=1e-3))" in client.read_text()
    run(flower, app, images, capture)


@pytest.mark.flower
def test_the_patch_of_the_examples_makes_it_curious(
    flower: Flower, app: Path, images: Path, tmp_path: Path
) -> None:
    patch = (README.parents[1] / "flower_quickstart" / "keyhole.patch").read_text()
    captured = tmp_path / "captured"
    told = subprocess.run(
        ["patch", "-p1"],
        input=patch.replace("/tmp/captured", str(captured)),
        cwd=app,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout
    run(flower, app, images, captured)
