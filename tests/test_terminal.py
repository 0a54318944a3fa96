import ast
import io
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import keyhole as package
from keyhole import terminal

SOURCE = Path(package.__file__).parent
HOSTILE = [
    *("[/x]", "[bold]a[/bold]", "a\x1b[31mred", "a\x9b31m", "\r\bover", "x\ny"),
    *("\u202eabc", "\udcff"),
]


def shows_no_control(text: str) -> bool:
    return all(c == "\n" or unicodedata.category(c) not in {"Cc", "Cf", "Cs"} for c in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_printed_as_it_is_on_one_line(text):
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system=None)
    terminal.say("name ", text, console=console)
    assert out.getvalue() == f"name {terminal.escape_controls(text)}\n"
    assert shows_no_control(out.getvalue())


@given(st.text(st.characters(), max_size=30), st.integers(20, 200))
def test_no_text_breaks_a_table_or_a_line(text, width):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    table = terminal.TextTable(text, caption=text)
    table.add_column(text, fold=True)
    table.add_column("b")
    table.add_row(text, text)
    terminal.say_table(table, console)
    terminal.say(text, console=console, style="dim")
    terminal.say_unwrapped(text, console=console)
    assert shows_no_control(out.getvalue())
    assert terminal.escape_controls(text) in out.getvalue()


def test_spaces_and_letters_of_all_scripts_stay():
    text = "été 東京\u3000ابن 😀 a\u00a0b"
    assert terminal.escape_controls(text) == text


PRINTERS = {"print", "echo", "secho", "print_json", "add_row", "Text", "Table"}
ALLOWED = {
    "terminal.py": PRINTERS,
    "cli/progress.py": {"add_row"},
    "cli/listing.py": {"add_row"},
    "cli/plan.py": {"add_row"},
    "cli/train.py": {"add_row"},
    "report/frontier_console.py": {"add_row"},
    "report/sweep_view.py": {"add_row"},
    "report/membership_console.py": {"add_row"},
    "report/console.py": {"add_row"},
    "report/comparison_console.py": {"add_row"},
}
"""Where something is printed; tables elsewhere than in ``terminal`` are made of plain text."""


def printing_calls(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            names |= {name} & PRINTERS
    return names


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: f.name)
def test_everything_is_printed_by_one_module(file):
    found = printing_calls(ast.parse(file.read_text(encoding="utf-8")))
    assert found <= ALLOWED.get(file.relative_to(SOURCE).as_posix(), set())


def test_the_check_sees_every_way_to_print():
    code = "print(f'{x}')\nconsole.print(x)\ntyper.echo(x)\nt.add_row(x)\nText(x)\nTable(title=x)"
    assert printing_calls(ast.parse(code)) == {"print", "echo", "add_row", "Text", "Table"}


def test_what_other_code_prints_goes_to_standard_error(capsys):
    with terminal.reserved_stdout():
        print("a model prints")
        terminal.say_json({"a": 1})
        terminal.say("and words")
    print("afterwards")
    captured = capsys.readouterr()
    assert captured.out == '{"a": 1}\nand words\nafterwards\n'
    assert captured.err == "a model prints\n"


def test_children_and_libraries_do_not_reach_standard_output_either():
    code = f"""
import os, sys
sys.path.insert(0, {str(SOURCE)!r})  # the module alone: the package takes seconds to import
import terminal
print("before")
with terminal.reserved_stdout():
    os.system("echo a child")
    os.write(1, b"a library\\n")
    print("a model")
    terminal.say_json([1])
print("after")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "before\n[1]\nafter\n"
    assert set(done.stderr.splitlines()) == {"a child", "a library", "a model"}


def test_json_is_never_broken_by_text(capsys):
    terminal.say_json({"error": "\x1b[31m\udcff\n"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"error": "\x1b[31m\udcff\n"}
