"""Writes what pages of the site include: ``python tools/write_reference.py FOLDER``.

``commands.md`` has every command of ``keyhole`` with its arguments and options, as typer has them;
``plan.md`` the fields of a plan and ``stage.md`` those of its stages. The site's build runs it
(``docs/conf.py``), so that the pages say what this version takes.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from keyhole.auditing import Plan, Stage
from keyhole.cli import load_commands
from keyhole.settings import Settings


def escaped(text: str) -> str:
    """Text as Markdown shows it unchanged, outside code.

    >>> escaped("a [b] <c> *d* e_f | g")
    'a \\\\[b\\\\] \\\\<c\\\\> \\\\*d\\\\* e\\\\_f \\\\| g'
    """
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text)


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
    }
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
