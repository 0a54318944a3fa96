"""The script that writes the command line and the plan's fields for the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.attacks import ATTACKS
from keyhole.auditing import Plan, Stage, result_schema
from keyhole.cli.app import COMMANDS
from keyhole.defenses import DEFENSES
from scripts import load_script

script = load_script("tools/write_reference.py")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "reference"
    script.main([str(folder)])
    return folder


def test_every_command_stands_there_with_all_that_it_takes(written: Path) -> None:
    text = (written / "commands.md").read_text()
    assert [f"keyhole {command.name}" for command in COMMANDS] == [
        line[3:] for line in text.splitlines() if line.startswith("## ") and "study" not in line
    ]
    for command in COMMANDS:
        section = text.split(f"## keyhole {command.name}\n")[1].split("\n## ")[0]
        for parameter in command.load().params:
            shown = parameter.opts[0] if parameter.param_type_name == "option" else "`"
            assert shown in section or getattr(parameter, "hidden", False), parameter.name


def test_what_is_said_of_an_option_is_what_its_help_says(written: Path) -> None:
    text = (written / "commands.md").read_text()
    assert "`RUN`\n: The folder of an audit or a membership run. \\[required\\]\n" in text
    assert "```text\nkeyhole audit [OPTIONS] [PLAN.toml]\n```" in text


def test_every_field_of_a_plan_stands_there_with_its_default(written: Path) -> None:
    for name, settings in {"plan": Plan, "stage": Stage}.items():
        rows = (written / f"{name}.md").read_text().splitlines()[2:]
        assert [row.split("`")[1] for row in rows] == list(settings.model_fields)
    assert '| `defenses` | `["none"]` |' in (written / "stage.md").read_text()
    assert "| `stage` | required |" in (written / "plan.md").read_text()


def test_every_attack_and_defense_that_ships_stands_there(written: Path) -> None:
    for kind, registry in {"attacks": ATTACKS, "defenses": DEFENSES}.items():
        rows = (written / f"{kind}.md").read_text().splitlines()[2:]
        assert sorted(row.split("`")[1] for row in rows) == sorted(registry.names())
    assert "`noise_model`" in (written / "defenses.md").read_text()


def test_every_key_of_the_result_stands_there_in_its_section(written: Path) -> None:
    text, schema = (written / "result.md").read_text(), result_schema()
    assert "| **`findings`** | list of [finding](#finding) |" in text
    for name, part in schema["$defs"].items():
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for key in part.get("properties", ()):
            bold = "**" if key in part.get("required", ()) else ""
            assert f"| {bold}`{key}`{bold} |" in section, (name, key)


def test_text_is_shown_as_it_is() -> None:
    assert script.escaped("a_b <c> [d]") == "a\\_b \\<c\\> \\[d\\]"
    assert [script.shown(x) for x in (None, (), "a", 0)] == ["none", "[]", '"a"', "0"]
