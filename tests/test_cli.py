import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

SMALL = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "2")


def test_json_is_one_object_and_nothing_else(keyhole):
    code, out, err = keyhole(*SMALL, "--defense", "none,gaussian(sigma=10)", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"findings", "verdicts", "run"} <= set(found)
    assert [v["status"] for v in found["verdicts"]] == ["broken", "not broken"]
    assert found["verdicts"][0]["by"] == "linear (naive)"
    assert found["findings"][0]["defense"] == {"name": "none", "parameters": {}}


def test_an_attack_that_does_not_fit_is_listed_and_the_others_run(keyhole):
    command = ("audit", "--model", "lenet", "--data", "digits", "--victims", "1")
    code, out, _ = keyhole(*command, "--attack", "linear,labels")
    assert code == 0
    text = " ".join(out.split())
    assert "not tried: linear on lenet: it needs a first layer fully connected" in text
    assert "labels inferred: 100%" in text
    code, _, err = keyhole(*command, "--attack", "linear,patch-lstsq")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "none of the attacks applies to 'lenet': linear: " in err


def test_the_run_folder_holds_the_page_and_can_be_shown_again(keyhole, tmp_path):
    code, out, _ = keyhole(*SMALL, "--out", "runs/demo")
    assert code == 0
    assert "broken by linear (naive): 2 of 2 images read" in out
    page = tmp_path / "runs" / "demo" / "report.html"
    assert str(page.relative_to(tmp_path)) in out
    page.unlink()
    code, out, _ = keyhole("report", "runs/demo")
    assert code == 0
    assert "broken by linear (naive)" in out
    assert page.exists()
    code, out, _ = keyhole("report", "runs/demo", "--json")
    assert len(json.loads(out)["findings"]) == 1


def test_the_same_command_continues_in_the_same_folder(keyhole):
    first = json.loads(keyhole(*SMALL, "--json")[1])
    second = json.loads(keyhole(*SMALL, "--json")[1])
    assert first == second


def test_a_plan_file_and_options_go_together(keyhole, tmp_path):
    (tmp_path / "plan.toml").write_text('[[stage]]\ndata = "digits"\nattacks = ["linear"]\n')
    found = json.loads(keyhole("audit", "plan.toml", "--victims", "1", "--json")[1])
    assert [(f["data"], f["victims"]) for f in found["findings"]] == [("digits", 1)]


def test_every_model_meets_every_data_set(keyhole):
    found = json.loads(
        keyhole(
            *("audit", "--model", "mlp,lenet", "--data", "digits,faces", "--attack", "labels"),
            *("--victims", "1", "--json"),
        )[1]
    )
    pairs = [(f["model"], f["data"]) for f in found["findings"]]
    assert pairs == [("mlp", "digits"), ("mlp", "faces"), ("lenet", "digits"), ("lenet", "faces")]


def test_list_names_everything(keyhole):
    rooms = json.loads(keyhole("list", "--json")[1])
    assert set(rooms) == {"attacks", "membership", "defenses", "models", "data", "metrics"}
    assert {"loss", "shadow", "lira"} == {a["name"] for a in rooms["membership"]}
    assert {"linear", "april", "patch-lstsq", "labels"} <= {a["name"] for a in rooms["attacks"]}
    assert all(a["paper"] and a["needs"] and a["summary"] for a in rooms["attacks"])
    out = keyhole("list")[1]
    for entries in rooms.values():
        assert all(entry["name"] in out for entry in entries)


def test_list_says_what_each_attack_is_given(keyhole):
    rooms = json.loads(keyhole("list", "--json")[1])
    given = {a["name"]: a["is_given"] for a in rooms["attacks"]}
    assert [name for name, what in given.items() if "masks" in what] == ["wiig"]
    assert given["ig"] == given["dia"] == ["labels"]
    assert given["linear"] == given["dlg"] == given["idlg"] == given["gradvit"] == []
    assert {"mmd", "mask"} <= {m["name"] for m in rooms["metrics"]}


ITERATIVE = ("audit", "--model", "mlp", "--data", "digits", "--victims", "2", "--iterations", "50")


def test_how_many_victims_share_the_device_is_no_part_of_the_plan(keyhole):
    def ssim(together):
        command = (*ITERATIVE, "--attack", "ig", "--victims-at-once", together)
        found = json.loads(keyhole(*command, "--out", together, "--json")[1])
        return found["findings"][0]["key"], found["findings"][0]["metrics"]["ssim"]["per_image"]

    first, second, third = ssim("auto"), ssim("1"), ssim("2")
    assert first[0] == second[0] == third[0]
    assert second[1] == pytest.approx(first[1], abs=1e-2)
    assert third[1] == pytest.approx(first[1], abs=1e-2)


def test_the_settings_of_the_papers_reach_the_attack(keyhole):
    def settings(*options):
        found = json.loads(keyhole(*ITERATIVE, "--attack", "ig", *options, "--json")[1])
        return found["findings"][0]["attack_parameters"]

    usual, published = settings(), settings("--parity", "paper")
    changed = {k: v for k, v in published.items() if usual[k] != v}
    assert changed == {"patience": 800, "drops": None, "give_up": 4000, "stop_below": 1e-5}


def test_the_terminal_names_only_parameters_that_are_not_the_usual_ones(keyhole, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    command = (*ITERATIVE, "--attack", "ig(tv=0.5),wiig", "--defense", "dropout")
    out = keyhole(*command)[1]
    assert "ig(iterations=50, tv=0.5)" in out
    assert "wiig(iterations=50)" in out
    assert "mask_weight" not in out


@pytest.fixture
def bad_files(tmp_path):
    for folder in ("broken", "mixed"):
        (tmp_path / folder).mkdir()
    picture = Image.fromarray(np.zeros((32, 32, 3), np.uint8))
    picture.save(tmp_path / "broken" / "good.png")
    (tmp_path / "broken" / "bad.png").write_bytes(b"\x89PNG nonsense")
    picture.save(tmp_path / "mixed" / "a.png")
    picture.resize((40, 30)).save(tmp_path / "mixed" / "b.png")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle.pt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("not a folder")


@pytest.mark.usefixtures("bad_files")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "mpl"], "did you mean mlp"),
        (["--defense", "gausian"], "did you mean gaussian"),
        (["--defense", "gaussian(sgma=1)"], "did you mean sigma"),
        (["--defense", "gaussian(sigma=-1)"], "greater than or equal to 0"),
        (["--defense", "gaussian(sigma=x"], "name(parameter=value"),
        (["--defense", "pruning(ratio='much')"], "ratio"),
        (["--attack", "liner"], "did you mean linear"),
        (["--model", ","], "--model: ',' names nothing"),
        (["--model", ""], "--model: '' names nothing"),
        (["--data", ","], "--data: ',' names nothing"),
        (["--data", " "], "--data: ' ' names nothing"),
        (["--defense", ","], "--defense: ',' names nothing"),
        (["--defense", ""], "--defense: '' names nothing"),
        (["--attack", " , "], "--attack: ' , ' names nothing"),
        (["--attack", ""], "--attack: '' names nothing"),
        (["--data", "digts"], "did you mean digits"),
        (["--data", "mnist"], "--data-dir or KEYHOLE_DATA"),
        (["--data", "mnist", "--data-dir", "nowhere"], "does not exist"),
        (["--data", "mnist", "--data-dir", "."], "train-images-idx3-ubyte"),
        (["--data", "broken"], "bad.png"),
        (["--data", "mixed"], "pass --image-size"),
        (["--data", "./nowhere"], "not a folder"),
        (["--model", "lenet", "--attack", "linear"], "convolution whose windows overlap"),
        (["--model", "lenet", "--attack", "patch-lstsq"], "position embeddings"),
        (["--model", "vit-small"], "pass --image-size 24x24"),
        (["--model", "timm:vit_tny_patch16_224"], "did you mean vit_tiny_patch16_224"),
        (["--model", "torchvision:resnet18"], "3 channels"),
        (["--model", "nowhere.mod:build"], "must be importable"),
        (["--weights", "other.safetensors"], "another model's weights"),
        (["--weights", "pickle.pt"], "not a safetensors file"),
        (["--weights", "nothing.safetensors"], "does not exist"),
        (["--out", "file/run"], "choose another --out"),
        (["--out", "folder"], "holds other files"),
        (["--victims", "0"], "victims"),
        (["--victims", "900"], "has 200 images"),
        (["--steps", "2"], "pass --lr"),
        (["--image-size", "3xx"], "image size"),
        (["--image-size", "5"], "too small"),
        (["--client-mode", "sleep"], "client-mode"),
        (["--iterations", "0"], "iterations: input should be greater than or equal to 1"),
        (["--parity", "exact"], "parity: input should be 'paper'"),
        (["--victims-at-once", "0"], "victims-at-once: give auto or a positive number"),
        (["--victims-at-once", "x"], "victims-at-once: give auto or a positive number"),
        (["--victims-at-once", "-1"], "victims-at-once: give auto or a positive number"),
        (["--victims-at-once", "²"], "victims-at-once: give auto or a positive number"),
        (["--attack", "ig(iterations=0)"], "iterations"),
        (["--attack", "ig(mask='given')"], "did you mean masks"),
        (["--attack", "wiig"], "no masks to be given"),
        (["--device", "abacus"], "unknown device"),
        (["missing.toml"], "does not exist"),
    ],
)
def test_bad_input_gets_one_clear_line_and_leaves_nothing(keyhole, tmp_path, arguments, words):
    before = sorted(tmp_path.rglob("*"))
    code, out, err = keyhole(
        "audit", *(arguments if "missing" in arguments[0] else model(arguments))
    )
    assert code == 2
    assert out == ""
    assert words in err
    assert err.startswith("keyhole: ")
    assert err.count("\n") == 1
    assert [p for p in sorted(tmp_path.rglob("*")) if p.name != "runs"] == before


def model(arguments: list[str]) -> list[str]:
    """The options with a model, so that no case falls back to the tour."""
    return arguments if "--model" in arguments else ["--model", "mlp", *arguments]


def test_weights_that_are_not_finite_are_refused(keyhole, tmp_path):
    from keyhole.models import build

    weights = build("mlp", classes=10, channels=1, image_size=8).state_dict()
    weights["1.weight"][0, 0] = float("nan")
    save_file(weights, tmp_path / "nan.safetensors")
    code, _, err = keyhole(*SMALL, "--weights", "nan.safetensors")
    assert code == 2
    assert "NaN" in err


def test_report_of_something_else_is_refused(keyhole):
    code, _, err = keyhole("report", "nowhere")
    assert code == 2
    assert "not the folder of an audit" in err


def test_python_dash_m_works():
    found = subprocess.run(
        [sys.executable, "-m", "keyhole", "--help"], capture_output=True, text=True, check=True
    )
    assert "audit" in found.stdout


def test_an_audit_killed_for_good_is_continued(tmp_path):
    command = [sys.executable, "-m", "keyhole", "audit", "--model", "mlp", "--data", "digits"]
    command += ["--attack", "linear", "--victims", "96", "--out", str(tmp_path / "run"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    chunks = tmp_path / "run" / "chunks"
    deadline = time.monotonic() + 300
    while not (chunks.is_dir() and any(chunks.glob("*.json"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(chunks.glob("*.json"))
    assert not list((tmp_path / "run" / "findings").glob("*.json"))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    (finding,) = json.loads(done.stdout)["findings"]
    assert len(finding["metrics"]["psnr"]["per_image"]) == 96
    assert finding["metrics"]["read"]["mean"] == 1.0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        MemoryError("Unable to allocate 8.00 EiB"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        SystemError("error return without exception set"),
        ImportError("_image.so: failed to map segment from shared object"),
    ],
    ids=repr,
)
def test_a_want_of_memory_is_told_in_words(
    keyhole: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def starved(*_: object) -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("keyhole.auditing.run"), "observe_client", starved)
    code, out, err = keyhole("audit", "--data", "digits", "--attack", "linear", "--json")
    assert code == 2
    assert err.startswith("keyhole: memory ran out: ")
    assert "memory ran out" in json.loads(out)["error"]


def test_a_disk_that_cannot_be_used_is_told_in_words(
    keyhole: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "run/states/x")

    store = importlib.import_module("keyhole.auditing.store")
    monkeypatch.setattr(store.Store, "remove_unfinished", read_only)
    code, _, err = keyhole("audit", "--data", "digits", "--attack", "linear", "--victims", "1")
    assert code == 2
    assert err.endswith(
        "keyhole: cannot use run/states/x (Read-only file system): choose another place, or make "
        "room there\n"
    )


def test_a_study_whose_results_cannot_be_written_does_not_begin(
    keyhole: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "results").touch()
    code, _, err = keyhole("study", "tip-theorem", "--results", "results", "e1-none")
    assert code == 2
    assert "cannot write to results" in err
    code, _, err = keyhole("study", "tip-theorem", "--show", "--figures", "results")
    assert (code, "cannot write to results" in err or "no figures" in err) == (2, True)
