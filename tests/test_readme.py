import json
import re
import shlex
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import keyhole

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
IN_PYTHON = (ROOT / "docs" / "howto" / "python.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    """The Python examples of a page, in lists too."""
    found = re.findall(r"^( *)```python\n(.*?)^ *```", text, re.S | re.M)
    return [textwrap.dedent(code) for _, code in found]


def ran(code: str) -> dict[str, Any]:
    """The names that an example defines, run by itself as a module would be."""
    module = types.ModuleType("example")
    sys.modules["example"] = module
    try:
        exec(code, vars(module))
    finally:
        del sys.modules["example"]
    return vars(module)


def test_the_readme_is_one_screen_with_the_two_commands_that_start_everything():
    assert len(README.splitlines()) <= 120
    assert re.search(r"^make audit .*\n^make test ", README, re.M)
    assert README.count("![") <= 2


def test_the_three_lines_of_the_readme_audit(capsys):
    (audit,) = blocks(README)
    ran(audit)
    out = capsys.readouterr().out
    assert "none: broken by linear (naive): 4 of 4 images read" in out
    assert "pruning: broken by linear (naive): 4 of 4 images read" in out


def test_each_python_example_for_newcomers_runs_by_itself(capsys):
    audit, own_gradient, own_loop, parts = blocks(IN_PYTHON)
    ran(audit)
    assert "none broken by linear (naive): 4 of 4 images read" in capsys.readouterr().out
    names = ran(own_gradient)
    assert names["result"].attack == "linear"
    assert names["result"].pixels.float().allclose(names["secret"], atol=1e-3)
    names = ran(own_loop)
    assert names["weights"].keys() == names["model"].state_dict().keys()
    assert "noise_norm" in names["client"].telemetry
    capsys.readouterr()
    ran(parts)
    assert float(re.search(r"tensor\(\[([\d.]+)\]", capsys.readouterr().out).group(1)) > 40


def test_the_page_on_results_runs_from_top_to_bottom(keyhole, tmp_path, capsys):
    pytest.importorskip("pandas")
    pytest.importorskip("jsonschema")
    commands = re.findall(r"^keyhole (.*?)(?: +#.*)?$", RESULTS, re.M)
    assert len(commands) == 12
    for command in commands:
        code, _, _ = keyhole(*shlex.split(command))
        assert code == 0, command
    load, validate, compare = blocks(RESULTS)
    ran(load)
    assert "psnr_worst" in capsys.readouterr().out
    assert (tmp_path / "one.tex").read_text().startswith("% Needs")
    ran(validate)
    ran(compare)
    shown = capsys.readouterr().out
    rows = re.findall(r"\| ([-+][\d.]+) (\[.*?\]) \| (\w+)", RESULTS)
    assert len(rows) == 3
    printed = re.findall(r"([-+][\d.]+) dB (\[.*?\]), leak: (\w+)", shown)
    assert [leak for *_, leak in printed] == [leak for *_, leak in rows]
    for (difference, interval, _), (told, within, _) in zip(printed, rows, strict=True):
        found = [float(difference), *json.loads(interval.replace("+", ""))]
        said = [float(told), *json.loads(within.replace("+", ""))]
        assert found == pytest.approx(said, abs=0.15, rel=0.05)  # 150 dB is rounding: CPUs differ


@pytest.fixture(scope="module")
def examples() -> list[dict[str, Any]]:
    """The attack, the defense, the metric and the model of CONTRIBUTING, each run by itself."""
    return [ran(code) for code in blocks(CONTRIBUTING)]


def test_the_attack_of_contributing_reads_an_image(examples, observe):
    attack = examples[0]["MyAttack"]()
    data = keyhole.data.load("digits")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    victim = observe(model, data, [3])
    assert victim.decibels(attack(victim.observation)) > 60
    lenet = keyhole.models.build("lenet", classes=10, channels=1, image_size=8)
    with pytest.raises(keyhole.KeyholeError, match="not linear with a bias"):
        attack(observe(lenet, data, [3]).observation)


def test_the_defense_of_contributing_defends(examples, observe):
    defense = examples[1]["MyDefense"]
    update = keyhole.Update({"w": torch.ones(4)})
    assert defense(share=0.25).on_update(update).change["w"].tolist() == [0.75] * 4
    assert defense(share=0).on_update(update).change["w"].equal(update.change["w"])
    model = keyhole.models.build("mlp", classes=10, channels=1, image_size=8)
    data = keyhole.data.load("digits")
    plain, shrunk = (observe(model, data, [0], d).observation.update for d in (None, defense()))
    assert shrunk.norm() == pytest.approx(plain.norm() / 2)


def test_the_metric_of_contributing_measures(examples):
    measure, about = examples[2]["largest_error"], examples[2]["METRIC"]
    truth = torch.zeros(2, 1, 2, 2)
    found = truth.clone()
    found[1, 0, 0, 1] = 0.5
    assert measure(found, truth, data_range=1.0).tolist() == [0, 0.5]
    assert about.arrow == "↓"


def test_the_parts_of_contributing_are_found_by_the_command_it_shows(keyhole, tmp_path):
    (tmp_path / "my_parts.py").write_text("\n\n".join(blocks(CONTRIBUTING)))
    (command,) = re.findall(
        r"^ *keyhole (audit --model my_parts.*?)^ *```", CONTRIBUTING, re.S | re.M
    )
    code, out, _ = keyhole(*shlex.split(command.replace("\\\n", " ")), "--out", "run")
    sys.modules.pop("my_parts")
    assert code == 0
    assert "none: broken by my-attack (naive): 2 of 2 images read" in out
    assert "my-defense(share=0.3): broken by my-attack (naive): 2 of 2 images read" in out
    assert "Largest ↓" in out


@pytest.mark.parametrize("file", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]))
def test_links_lead_somewhere(file):
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (file.parent / target).exists(), target
