import json
import re

import pytest

COMMANDS = ("audit", "train", "guard", "obfuscate", "membership", "report", "list", "study")


def test_the_version_is_told(keyhole):
    from keyhole import __version__

    assert keyhole("--version") == (0, f"keyhole {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(keyhole, monkeypatch, shell):
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    code, out, _ = keyhole("--show-completion")
    assert code == 0
    assert "_KEYHOLE_COMPLETE" in out
    monkeypatch.setenv("_KEYHOLE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "keyhole mem")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert keyhole()[1].strip() == "membership"


@pytest.mark.parametrize("columns", ["80", "100"])
def test_summaries_are_told_whole(keyhole, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = keyhole("--help")
    assert code == 0
    assert "..." not in out.partition("Commands:")[2]
    assert max(len(line) for line in out.splitlines()) <= int(columns)
    assert "one experiment after another, and run none that has a result." in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_reads_as_it_is_written(keyhole, command):
    code, out, _ = keyhole(command, "--help")
    assert code == 0
    assert "\\[" not in out
    assert "--json" in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("audit", "[PLAN.toml] A plan with [[stage]] tables."),
        ("report", "RUN The folder of an audit or a membership run. [required]"),
        ("list", "[PART] One of: attacks, membership, defenses"),
        ("obfuscate", "SRC Images; folders are classes."),
    ],
)
def test_help_tells_what_arguments_are_and_only_once(keyhole, command, words):
    assert " ".join(keyhole(command, "--help")[1].split()).count(words) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit", "--model", "mpl"), "did you mean mlp"),
        (("audit", "--nope"), "No such option '--nope'"),
        (("audit", "--victims", "x"), "'x' is not a valid int"),
        (("train", "--data", "digts"), "did you mean digits"),
        (("membership", "--data", "digts"), "did you mean digits"),
        (("guard",), "Missing option '--before'"),
        (("guard", "--before", "a", "--after", "b", "--model", "mlp", "--data", "digts"), "digits"),
        (("obfuscate", "a", "b", "--key-file", "k"), "pass --epochs"),
        (("report", "nowhere"), "not the folder of an audit"),
        (("list", "attcks"), "did you mean attacks"),
        (("study", "dai"), "did you mean dia"),
        (("studdy",), "No such command 'studdy'"),
    ],
)
def test_with_json_an_error_is_an_object(keyhole, arguments, words):
    plain = keyhole(*arguments)
    assert plain[:2] == (2, "")
    code, out, err = keyhole(*arguments, "--json")
    assert (code, err) == (plain[0], plain[2])
    assert set(json.loads(out)) == {"error"}
    assert words in json.loads(out)["error"]
    assert out.count("\n") == 1


def test_with_json_a_defect_is_told_and_keeps_its_traceback(monkeypatch, capsys):
    from keyhole.cli.command import run

    def fails(**_):
        raise ZeroDivisionError("by nought")

    with pytest.raises(ZeroDivisionError):
        run(fails, ["--json"])
    assert json.loads(capsys.readouterr().out) == {"error": "ZeroDivisionError: by nought"}


@pytest.mark.parametrize(
    "arguments", [("audit", "--data", "x/\x1b[31m[/x]"), ("audit", "--\x1b[31m"), ("\x1b[31m[/x]",)]
)
def test_errors_show_control_characters_as_text(keyhole, arguments):
    code, _, err = keyhole(*arguments)
    assert code == 2
    assert "\x1b" not in err
    assert "\\x1b[31m" in err


MODEL = """
import os
print("imported")
from torch import nn

class Loud(nn.Sequential):
    def forward(self, x):
        print("forward")
        return super().forward(x)

def build(classes, channels, image_size):
    print("built")
    return Loud(nn.Flatten(), nn.Linear(channels * image_size[0] * image_size[1], classes))
"""


def test_a_model_that_prints_does_not_break_json(keyhole, tmp_path):
    (tmp_path / "loud_model.py").write_text(MODEL)
    code, out, err = keyhole(
        *("audit", "--model", "loud_model:build", "--data", "digits", "--attack", "linear"),
        *("--victims", "1", "--json"),
    )
    assert code == 0
    assert json.loads(out)["verdicts"][0]["status"] == "broken"
    assert {"imported", "built", "forward"} <= set(err.splitlines())


def test_train_says_at_its_start_what_it_trains(keyhole):
    options = ("--clients", "2", "--rounds", "1", "--steps", "1")
    code, _, err = keyhole("train", *options, "--out", "a")
    assert code == 0
    assert err.startswith("training mlp on digits (clients: 2, rounds: 1, defense: none)\n")
    assert keyhole("train", *options, "--out", "b", "--json")[2] == ""


NAME = "byo [x] [/y] \x1b[31m"


def test_a_run_folder_is_called_what_it_is_called(keyhole, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear")
    code, out, _ = keyhole(*command, "--victims", "1", "--out", NAME)
    assert code == 0
    assert (tmp_path / NAME).is_dir()
    assert f"Findings: {NAME}\n".replace("\x1b", "\\x1b") in out
    assert "\x1b" not in out
    assert re.search(r"Report: +byo \[x\] \[/y\] \\x1b\[31m/report.html\n", out)


def test_a_data_folder_is_called_what_it_is_called(keyhole, tmp_path):
    import numpy as np
    from PIL import Image

    folder = tmp_path / "dat[/x]\x1b[31m" / "[bold]a"
    folder.mkdir(parents=True)
    for number in range(8):
        pixels = np.full((8, 8, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    command = ("audit", "--model", "mlp", "--data", "./dat[/x]\x1b[31m", "--attack", "linear")
    code, out, err = keyhole(*command, "--victims", "1")
    assert (code, err) == (0, "")
    assert "mlp on ./dat[/x]\\x1b[31m" in out
    assert "\x1b" not in out
