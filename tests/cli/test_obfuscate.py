"""``keyhole obfuscate``: the commands as written, bad input, and a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keyhole.data.versions import MANIFEST
from keyhole.obfuscation import obfuscate, restore

Command = Callable[..., tuple[int, str, str]]
MANY, EPOCHS = 60, 3


def picture(seed: int, side: int = 32) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    )


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat/a.png", "cat/b.png", "dog/c.jpg", "dog/d e.webp"]):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


@pytest.mark.usefixtures("photos")
def test_shuffled_and_restored_by_the_commands_as_written(keyhole: Command, tmp_path: Path) -> None:
    code, out, err = keyhole(
        "obfuscate", "photos/", "shuffled/", "--epochs", "3", "--key-file", "site.key"
    )
    assert code == 0
    assert out.startswith("4 of 4 images shuffled, 3 versions each (")
    assert "keyhole train --data shuffled" in out
    assert err == "note: a new key is in site.key: without it nobody restores the images\n"
    assert sorted(os.listdir(tmp_path / "shuffled")) == [
        *("epoch-001", "epoch-002", "epoch-003"),
        MANIFEST,
    ]
    code, out, err = keyhole(
        "obfuscate", "shuffled/", "back/", "--restore", "--key-file", "site.key"
    )
    assert (code, err) == (0, "")
    assert out.startswith("4 of 4 images restored (")
    for name in ("cat/a.png", "cat/b.png", "dog/c.jpg", "dog/d e.webp"):
        original = np.asarray(Image.open(tmp_path / "photos" / name))
        back = tmp_path / "back" / (name if name.endswith("png") else f"{name}.png")
        assert np.array_equal(np.asarray(Image.open(back)), original)


@pytest.mark.usefixtures("photos")
def test_json_is_one_object_and_nothing_else(keyhole: Command, tmp_path: Path) -> None:
    (tmp_path / "photos" / "notes.txt").write_text("mine")
    command = ("obfuscate", "photos", "out", "--epochs", "2", "--key-file", "key", "--json")
    code, out, err = keyhole(*command, "--channels", "mixed", "--jobs", "1")
    assert (code, err) == (0, "")
    found = json.loads(out)
    seconds = found.pop("seconds")
    assert 0 < seconds < 60
    assert found == {
        "out": "out",
        "pictures": 4,
        "versions": 2,
        "done": 4,
        "were_there": 0,
        "left_out": [],
        "other_files": 1,
        "key_made": True,
        "complete": True,
        "marked": True,
        "changes": "",
    }


@pytest.mark.usefixtures("photos")
def test_a_line_that_is_missing_from_the_record_is_counted(
    keyhole: Command, tmp_path: Path
) -> None:
    keyhole("obfuscate", "photos", "out", "--epochs", "1", "--key-file", "key", "--jobs", "1")
    record = tmp_path / "out" / MANIFEST
    lines = record.read_text().splitlines()
    record.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    code, out, err = keyhole("obfuscate", "out", "back", "--restore", "--key-file", "key")
    assert code == 1
    assert out.startswith("3 of 4 images restored (")
    assert "keyhole: the manifest was changed since it was written: 1 line missing\n" in err


def test_what_cannot_be_used_is_named_and_the_rest_is_done(
    keyhole: Command, photos: Path, tmp_path: Path
) -> None:
    Image.new("CMYK", (8, 8)).save(photos / "cat" / "print.jpg")
    for number in range(11):
        (photos / f"bad{number:02}\n.png").write_bytes(b"nonsense")
    command = ("obfuscate", "photos", "out", "--epochs", "1", "--key-file", "key", "--jobs", "1")
    code, out, err = keyhole(*command)
    assert code == 1
    assert out.startswith("4 of 16 images shuffled, 1 version each (")
    lines = err.splitlines()
    assert lines[1].startswith(r"keyhole: left out 'bad00\n.png': it cannot be read as an image (")
    assert lines[-1] == "keyhole: left out 2 more: --json lists all"
    assert len(lines) == 12
    code, out, _ = keyhole(*command, "--json")
    found = json.loads(out)
    assert (code, found["done"], found["were_there"], len(found["left_out"])) == (1, 0, 4, 12)
    assert "it is CMYK, which PNG cannot hold" in found["left_out"][-1]["why"]


def test_a_key_that_others_can_read_is_remarked_on(keyhole: Command, photos: Path) -> None:
    (photos.parent / "key").write_text(bytes(range(32)).hex())
    (photos.parent / "key").chmod(0o644)
    command = ("obfuscate", "photos", "out", "--epochs", "1", "--key-file", "key", "--jobs", "1")
    assert keyhole(*command)[2] == "note: others can read key: chmod 600 key\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["photos", "out", "--key-file", "key"], "pass --epochs"),
        (["photos", "out", "--key-file", "key", "--epochs", "0"], "epochs: every image"),
        (["photos", "out", "--key-file", "key", "--epochs", "1", "--jobs", "0"], "jobs"),
        (["photos", "out", "--key-file", "key", "--epochs", "1", "--channels", "up"], "channels"),
        (["nowhere", "out", "--key-file", "key", "--epochs", "1"], "not a folder of images"),
        (["photos", "photos", "--key-file", "key", "--epochs", "1"], "must be separate folders"),
        (
            ["photos", "photos/out", "--key-file", "key", "--epochs", "1"],
            "must be separate folders",
        ),
        (
            ["photos/cat", "photos", "--key-file", "key", "--epochs", "1"],
            "must be separate folders",
        ),
        (["photos", "out", "--key-file", "photos/key", "--epochs", "1"], "travel with them"),
        (["photos", "out", "--key-file", "out/key", "--epochs", "1"], "travel with them"),
        (["photos", "out", "--key-file", "empty", "--epochs", "1"], "holds no key"),
        (["photos", "out", "--key-file", "no/key", "--epochs", "1"], "cannot make the key file"),
        (["photos", "mine", "--key-file", "key", "--epochs", "1"], "holds other files"),
        (["photos", "empty", "--key-file", "key", "--epochs", "1"], "is not a folder"),
        (["nothing", "out", "--key-file", "key", "--epochs", "1"], "no images under"),
        (["photos", "back", "--key-file", "key", "--restore"], "holds no shuffled versions"),
        (["photos", "back", "--key-file", "key", "--restore", "--epochs", "1"], "cannot be used"),
    ],
)
@pytest.mark.usefixtures("photos")
def test_bad_input_gets_one_clear_line_and_leaves_nothing(
    keyhole: Command, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = keyhole("obfuscate", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("keyhole: ")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("photos")
def test_another_keys_work_stays_as_it_is(keyhole: Command, tmp_path: Path) -> None:
    command = ("obfuscate", "photos", "out", "--epochs", "1", "--jobs", "1", "--key-file")
    keyhole(*command, "one.key")
    (tmp_path / "two.key").write_text(bytes(range(32)).hex())
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    for arguments in (command, ("obfuscate", "out", "back", "--restore", "--key-file")):
        code, _, err = keyhole(*arguments, "two.key")
        assert code == 2
        assert "out was made with another key than two.key" in err
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


def test_training_takes_the_folder(keyhole: Command, photos: Path) -> None:
    for number in range(8):
        picture(10 + number).save(photos / ("cat" if number % 2 else "dog") / f"{number}.png")
    keyhole("obfuscate", "photos", "out", "--epochs", "2", "--key-file", "key", "--jobs", "1")
    command = ("train", "--data", "out", "--model", "mlp", "--clients", "2", "--rounds", "1")
    code, out, _ = keyhole(*command, "--together", "no", "--json")
    assert code == 0
    assert len(json.loads(out)["rounds"]) == 1


def alive(pids: list[int]) -> list[int]:
    """Those that still run: neither gone nor waiting for somebody to take note of it."""
    found = []
    for pid in pids:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            found += [pid] if state != "Z" else []
    return found


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes in /proc")
def test_killed_for_good_it_goes_on_and_restores_every_pixel(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(MANY):
        picture(number, 224).save(tmp_path / "photos" / f"{number}.png", compress_level=0)
    command = [sys.executable, "-m", "keyhole", "obfuscate", "photos", "out", "--json"]
    command += ["--epochs", str(EPOCHS), "--key-file", "key", "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path)
    record, deadline = tmp_path / "out" / MANIFEST, time.monotonic() + 300
    while time.monotonic() < deadline:
        if record.is_file() and record.read_text().count("\n") > 3:
            break
        time.sleep(0.005)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(workers) == 2
    written = record.read_text().count("\n") - 1
    assert 3 <= written < MANY
    assert '"complete": false' in record.read_text()
    while alive(workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alive(workers) == []
    key, out = tmp_path / "key", tmp_path / "out"
    work = obfuscate(tmp_path / "photos", out, epochs=EPOCHS, key_file=key, jobs=2)
    assert (work.done + work.already_done, work.key_created) == (MANY, False)
    assert work.already_done == written
    work = restore(out, tmp_path / "back", key_file=key, jobs=1)
    assert (work.done, work.skipped) == (MANY, ())
    for file in (tmp_path / "photos").iterdir():
        original, back = np.asarray(Image.open(file)), Image.open(tmp_path / "back" / file.name)
        assert np.array_equal(np.asarray(back), original)
