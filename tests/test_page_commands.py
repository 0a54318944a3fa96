"""Every command that a page prints is understood; those of README and the how-tos run as printed.

The pages on gates, frontiers and clusters print commands of a size that a suite cannot run: these
run with fewer images, rounds and iterations.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyhole.attacks import ATTACKS
from keyhole.cli import load_commands
from keyhole.defenses import DEFENSES
from page_commands import PAGES, code_blocks, commands, own_files, run_example
from scripts import ROOT

Run = Callable[..., tuple[int, str, str]]

WHOLE = (
    "README.md",
    "docs/howto/annex.md",
    "docs/howto/captured_runs.md",
    "docs/howto/command_line.md",
)
"""Pages whose commands run as they are printed."""
ELSEWHERE = {
    "docs/start.md": "tests/test_site_pages.py",
    "docs/howto/my_model.md": "tests/test_site_pages.py",
    "docs/howto/my_attack.md": "tests/test_site_pages.py",
    "docs/howto/my_defense.md": "tests/test_site_pages.py",
    "docs/results.md": "tests/test_readme.py",
    "CONTRIBUTING.md": "tests/test_readme.py",
    "examples/flower/README.md": "tests/federation/flower/test_flower_pages.py",
    "examples/flower_quickstart/README.md": "tests/foreign_flower/test_foreign_app.py",
    "docs/malicious_flower.md": "tests/federation/flower/test_flower_pages.py",
}
"""Pages whose commands run in tests of their own."""
SMALLER = {
    "audit": ("--iterations", "2", "--victims", "1"),
    "train": ("--rounds", "1", "--clients", "2", "--images", "4", "--model", "lenet"),
    "membership": ("--members", "20", "--public", "20", "--epochs", "1", "--attack", "loss"),
    "frontier": (
        *("--model", "mlp", "--data", "digits", "--rounds", "1", "--clients", "2", "--seeds", "0"),
        *("--victims", "2", "--trials", "2", "--iterations", "2", "--defenses", "dropout"),
    ),
}
"""What is added to commands of the pages below; of an option's values the last counts."""
SHRUNK = (
    "docs/gate.md",
    "docs/frontier.md",
    "docs/leaderboard.md",
    "docs/cluster.md",
    "docs/clients.md",
    "docs/fine_tuning.md",
)
OTHER_MACHINES = {"--on", "--address"}
"""Options of commands that need Ray or Flower: ``make test-ray`` and ``make test-flower``."""
UNKNOWN_HERE = {"mine:Fog", "my_parts:MyDp"}
EXPECTED = {"guard": {0, 1}, "epsilon": {0}}
GATED = "--fail-on"
GUIDES = ("Start here", "How-to")
LISTED = re.compile(r"<(.+)>$", re.M)


def name_parts(arguments: list[str], option: str) -> Iterator[str]:
    """The names that an option of a command gives, without their parameters."""
    for before, value in itertools.pairwise(arguments):
        if before == option:
            bare = re.sub(r"\([^()]*\)", "", value)
            yield from (name.strip() for name in re.split(r"[,+]", bare) if name.strip())


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_is_understood(page: str) -> None:
    known = load_commands()
    for command, *arguments in commands(page):
        if not command.startswith("-"):
            known[command].make_context(command, list(arguments))
        for option, registry in {"--attack": ATTACKS, "--defense": DEFENSES}.items():
            if command == "membership" and option == "--attack":
                continue
            for name in name_parts(arguments, option):
                assert name in registry.names() or ":" in name, (command, name)


def guides() -> set[str]:
    """README, the examples' pages, and those under "Start here" and "How-to" in the site's menu."""
    menu = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    parts = re.findall(r"^:caption: (.+?)\n(.*?)^```$", menu, re.S | re.M)
    listed = [name for head, entries in parts if head in GUIDES for name in LISTED.findall(entries)]
    assert len(listed) > 15
    examples = (page for page in PAGES if page.startswith("examples/"))
    return {"README.md", *examples, *(f"docs/{name}.md" for name in listed)}


def test_the_commands_of_every_page_for_users_run_somewhere() -> None:
    with_commands = {page for page in PAGES if commands(page)}
    tested = {*WHOLE, *SHRUNK, *ELSEWHERE}
    assert guides() & with_commands <= tested <= with_commands
    for page, test in ELSEWHERE.items():
        assert Path(page).stem in (ROOT / test).read_text(encoding="utf-8"), page


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("audit --model mlp --data digits --no-such-option", 2),
        ("audit --model mlp --data digits --defense no-such-defense", 2),
        ("report runs/nowhere", 2),
    ],
)
def test_a_command_that_does_not_work_would_be_noticed(
    keyhole: Run, command: str, code: int
) -> None:
    with pytest.raises(AssertionError, match=f"ended with {code}"):
        check_runs(keyhole, *command.split())


def check_runs(keyhole: Run, command: str, *arguments: str) -> None:
    code, out, errors = keyhole(command, *arguments)
    expected = {0, 3} if GATED in arguments else EXPECTED.get(command, {0})
    line = f"keyhole {command} {' '.join(arguments)}"
    assert code in expected, f"{line}\nended with {code}\n{out}\n{errors}"


@pytest.mark.slow
@pytest.mark.parametrize("page", WHOLE)
def test_each_command_runs_as_it_is_printed(page: str, keyhole: Run, tmp_path: Path) -> None:
    known = commands("README.md") if page != "README.md" else []
    with own_files(tmp_path):
        for block in code_blocks(page, "python"):
            run_example(block)
        for command, *arguments in commands(page):
            if [command, *arguments] in known and "--capture" not in arguments:
                continue
            if command == "frontier" and page != "README.md":
                continue
            check_runs(keyhole, command, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("page", SHRUNK)
def test_each_long_command_runs_at_a_smaller_size(page: str, keyhole: Run, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    small = ("--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1")
    with own_files(tmp_path):
        (tmp_path / "plan.toml").write_text(
            next(iter(code_blocks(page, "toml")), (tmp_path / "plan.toml").read_text())
        )
        for run in ("runs/baseline", "runs/demo"):
            assert keyhole("audit", *small, "--out", run)[0] == 0
        assert keyhole("audit", *small, "--out", "runs/mine", "--json")[0] == 0
        (tmp_path / "theirs").mkdir()
        run_example(
            "import keyhole\n"
            "for path in ('mine.json', 'theirs/one.json'):\n"
            "    keyhole.load_result('runs/mine').save(path)\n"
        )
        for command, *arguments in commands(page):
            if OTHER_MACHINES & {*arguments} or UNKNOWN_HERE & {*arguments}:
                continue
            if command == "merge":  # of the shards in the order of the plan
                continue
            captures = "--capture" in arguments  # a later command of the page attacks it as it is
            smaller = () if captures else SMALLER.get(command, ())
            check_runs(keyhole, command, *arguments, *smaller)
