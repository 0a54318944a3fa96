from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Keyhole = Callable[..., tuple[int, str, str]]

SMALL = (
    *("membership", "--model", "mlp", "--members", "60", "--epochs", "5", "--batch-size", "30"),
    *("--lr", "0.002", "--public", "150"),
)


def test_json_is_one_object_and_nothing_else(keyhole: Keyhole) -> None:
    defenses = "none,gaussian(sigma=0.001)"
    options = ("--defense", defenses, "--attack", "loss,lira", "--shadows", "4", "--json")
    code, out, err = keyhole(*SMALL, *options)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["plan"]["defenses"] == ["none", "gaussian(sigma=0.001)"]
    rows = [[(i["attack"], i["attacker"]) for i in t["inferences"]] for t in found["trials"]]
    naive = [("loss", "naive"), ("lira(shadows=4)", "naive")]
    assert rows == [naive, [*naive, ("lira(shadows=4)", "adaptive")]]


def test_a_run_folder_holds_the_result_and_a_page_and_the_same_command_shows_them_again(
    keyhole: Keyhole, tmp_path: Path
) -> None:
    command = (*SMALL, "--attack", "loss")
    code, out, _ = keyhole(*command, "--out", "mine")
    assert code == 0
    assert out.endswith(f"Findings: mine\nReport:   {Path('mine') / 'report.html'}\n")
    page = (tmp_path / "mine" / "report.html").read_text()
    assert "Membership: mlp on digits" in page
    found = json.loads((tmp_path / "mine" / "result.json").read_text())
    again = json.loads(keyhole(*command, "--out", "mine", "--json")[1])
    assert again == found
    assert again["run"] == "mine"
    (tmp_path / "mine" / "report.html").unlink()
    assert json.loads(keyhole("report", "mine", "--json")[1]) == found
    assert keyhole("report", "mine")[1] == out
    assert (tmp_path / "mine" / "report.html").is_file()
    code, _, err = keyhole(*command, "--seed", "1", "--out", "mine")
    assert (code, "holds another membership run" in err) == (2, True)
    assert keyhole(*command, "--seed", "1", "--out", "mine", "--fresh")[0] == 0
    keyhole(*command)
    (default,) = (tmp_path / "runs").iterdir()
    assert default.name.startswith("membership-")


def test_people_get_a_table_and_a_line_for_each_model(
    keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = keyhole(*SMALL, "--attack", "loss,shadow", "--shadows", "2", "--at", "2")
    assert code == 0
    assert "mlp on digits" in out
    assert "TPR@0.1%" in out
    assert "best acc." in out
    assert "one client trained on 60 images; 60 others asked about; 150 public images" in out
    assert "none, 2 epochs: " in out
    assert "none, 5 epochs: " in out
    assert "right on its own images" in out
    assert "60 non-members cannot show a false-positive rate below 1.67%" in out


def test_a_narrow_terminal_gets_what_matters_most(
    keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = keyhole(*SMALL, "--attack", "loss", "--epochs", "1")[1]
    assert "AUC" in out
    assert "best acc." not in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_the_options_reach_the_plan(keyhole: Keyhole) -> None:
    options = ("--clients", "3", "--local-epochs", "2", "--optimiser", "sgd", "--momentum", "0.5")
    more = ("--augment", "--clip", "1", "--views", "2", "--seed", "4", "--client-mode", "eval")
    out = keyhole(*SMALL, "--epochs", "2", "--attack", "loss", *options, *more, "--json")[1]
    found = json.loads(out)["plan"]
    assert (found["clients"], found["local_epochs"], found["momentum"]) == (3, 2, 0.5)
    assert (found["augment"], found["clip"], found["views"], found["seed"]) == (True, 1, 2, 4)
    assert (found["optimiser"], found["client_mode"], found["public"]) == ("sgd", "eval", 150)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--attack", "lirra"), "unknown membership attack 'lirra': did you mean lira?"),
        (("--defense", "gausian"), "unknown defense 'gausian'"),
        (("--members", "5000"), "pass fewer --members"),
        (("--members", "0"), "members: "),
        (("--at", "1,x"), "at: 'x' is no epoch"),
        (("--shadows", "3", "--attack", "lira"), "lira: shadows: "),
        (("--data", "cifar10"), "--data-dir or KEYHOLE_DATA"),
        (("--lr", "-1"), "lr: "),
    ],
)
def test_mistakes_are_told_in_one_line(
    keyhole: Keyhole, options: tuple[str, ...], words: str
) -> None:
    code, out, err = keyhole(*SMALL, *options)
    assert (code, out) == (2, "")
    assert err.startswith("keyhole: ")
    assert words in err
    assert err.count("\n") == 1
