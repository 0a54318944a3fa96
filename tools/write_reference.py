"""Writes what pages of the site include: ``python tools/write_reference.py FOLDER``.

``commands.md`` has every command of ``keyhole`` with its arguments and options, as typer has them;
``plan.md`` the fields of a plan and ``stage.md`` those of its stages; ``attacks.md`` and
``defenses.md`` every part by name; ``result.md`` the keys of the JSON Schema of results. The site's
build runs it (``docs/conf.py``), so that the pages say what this version takes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from keyhole.auditing import Plan, Stage, result_schema
from keyhole.cli import load_commands
from keyhole.report import describe_entry, list_entries
from keyhole.settings import Settings

PART_COLUMNS = {
    "attacks": {"needs": "needs", "is_given": "is told", "paper": "paper"},
    "defenses": {"paper": "paper", "declares": "one who knows it may assume"},
}
"""What the tables of parts show besides name and summary: keys of entries and their headings."""


def escaped(text: str) -> str:
    """Text as Markdown shows it unchanged, outside code.

    >>> escaped("a [b] <c> *d* e_f | g")
    'a \\\\[b\\\\] \\\\<c\\\\> \\\\*d\\\\* e\\\\_f \\\\| g'
    """
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text)


def escaped_prose(text: str) -> str:
    """Text that may hold code between backticks, which stays as it is.

    >>> escaped_prose("`a_b` is b_a")
    '`a_b` is b\\\\_a'
    """
    parts = text.split("`")
    return "`".join(part if i % 2 else escaped(part) for i, part in enumerate(parts))


def describe_parameter(parameter: click.Parameter, context: click.Context) -> Iterator[str]:
    """The term and the text of one argument or option; nothing of a hidden one."""
    record = parameter.get_help_record(context)
    if record is None:
        return
    term, text = (" ".join(part.replace("\\[", "[").split()) for part in record)
    yield f"`{term}`"
    yield f": {escaped(text) or 'See above.'}"
    yield ""


def describe_command(name: str, command: click.Command) -> Iterator[str]:
    """The section of one command: what it does, how it is called, what it takes."""
    context = click.Context(command, info_name=f"keyhole {name}")
    yield f"## keyhole {name}"
    yield ""
    for paragraph in textwrap.dedent(command.help or "").split("\n\n"):
        yield escaped(" ".join(paragraph.split()))
        yield ""
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"keyhole {name} {usage}", "```", "")
    for parameter in command.get_params(context):
        yield from describe_parameter(parameter, context)


def describe_commands() -> str:
    """The sections of all commands, those of installed packages too."""
    commands = load_commands().items()
    return "\n".join(line for each in commands for line in describe_command(*each))


def describe_fields(settings: type[Settings]) -> str:
    """A table of the fields of some settings: name, default, what it says."""
    lines = ["| field | default | |", "|---|---|---|"]
    for name, field in settings.model_fields.items():
        default = "required" if field.is_required() else f"`{shown(field.default)}`"
        text = " ".join(inspect.cleandoc(field.description or "").split())
        lines.append(f"| `{name}` | {default} | {escaped(text)} |")
    return "\n".join(lines) + "\n"


def shown(default: object) -> str:
    """A default as TOML would have it; ``none`` where the field may be left out.

    >>> shown(("none",)), shown("mlp"), shown(1), shown(None)
    ('["none"]', '"mlp"', '1', 'none')
    """
    if default is None:
        return "none"
    if isinstance(default, tuple):
        return f"[{', '.join(map(shown, default))}]"
    return f'"{default}"' if isinstance(default, str) else str(default)


def describe_parts(kind: str) -> str:
    """A table of the attacks or defenses that come with Keyhole."""
    columns = PART_COLUMNS[kind]
    lines = [f"| name | | {' | '.join(columns.values())} |", "|---" * (2 + len(columns)) + "|"]
    for name in [entry["name"] for entry in list_entries(kind) if "from" not in entry]:
        entry = describe_entry(kind, name)
        cells = [write_value(entry.get(key)) for key in columns]
        lines.append(f"| `{name}` | {escaped(entry['summary'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_value(value: object) -> str:
    """What a cell says of a fact: a text, the items of a list, or nothing.

    >>> write_value(["a_b", "c"]), write_value("x|y"), write_value(None)
    ('`a_b`, `c`', 'x\\\\|y', '')
    """
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value)
    return escaped(str(value)) if value else ""


def describe_schema(schema: Mapping[str, Any]) -> str:
    """The sections of a JSON Schema: the result itself, then each object that it is made of."""
    parts = {"The result": schema} | dict(sorted(schema.get("$defs", {}).items()))
    return "\n".join(line for each in parts.items() for line in describe_object(*each))


def describe_object(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The section of one object: a table of its keys."""
    yield f"## {name}"
    yield ""
    yield escaped_prose(schema.get("description", ""))
    yield ""
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not properties:
        yield from (f"{name_type(schema)}.", "")
        return
    yield from ("| key | type | |", "|---|---|---|")
    for key, value in properties.items():
        shown_key = f"**`{key}`**" if key in schema.get("required", ()) else f"`{key}`"
        text = escaped_prose(value.get("description", ""))
        yield f"| {shown_key} | {name_type(value)} | {text} |"
    yield ""


def name_type(schema: Mapping[str, Any]) -> str:
    """What may stand at a place of the schema, in words; objects by the name of their section.

    >>> name_type({"type": ["string", "null"]}), name_type({"enum": ["a", None]})
    ('string or null', '`"a"` or `null`')
    >>> name_type({"type": "array", "items": {"$ref": "#/$defs/finding"}})
    'list of [finding](#finding)'
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.replace('_', '-')})"
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(v)}`" for v in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(map(name_type, schema[key]))
    types = schema.get("type", "any value")
    named = [types] if isinstance(types, str) else list(types)
    if "array" in named and isinstance(schema.get("items"), dict):
        named[named.index("array")] = f"list of {name_type(schema['items'])}"
    if "object" in named and isinstance(schema.get("additionalProperties"), dict):
        inner = name_type(schema["additionalProperties"])
        named[named.index("object")] = f"object with values: {inner}"
    return " or ".join(named)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("folder", type=Path, help="the folder of the Markdown files")
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "commands": describe_commands(),
        "plan": describe_fields(Plan),
        "stage": describe_fields(Stage),
        **{kind: describe_parts(kind) for kind in PART_COLUMNS},
        "result": describe_schema(result_schema()),
    }
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
