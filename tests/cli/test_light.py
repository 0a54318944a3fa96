"""What needs no torch does not wait for it: help, versions, completion and most refusals."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from keyhole.cli.app import COMMANDS
from keyhole.cli.lazy_command import LazyCommand, read_summary

MEASURE = """
import atexit, json, os, resource, sys

def tell():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "modules": sorted(sys.modules),
        "megabytes": int(status["VmHWM"].split()[0]) / 1024,
        "seconds": used.ru_utime + used.ru_stime,
    }), file=open(os.environ["MEASURED"], "w"))

atexit.register(tell)
from keyhole.cli import main
sys.argv[0] = "keyhole"
main()
"""
MEGABYTES = 120
SECONDS = 3.0
"""Of CPU time; a quiet machine needs a tenth of it."""
FOR_HELP = {"click", "keyhole", "rich", "shellingham", "typer", "typing_extensions"}
FOR_PLANS = FOR_HELP | {"annotated_types", "pydantic", "pydantic_core", "typing_inspection"}
FOR_RUNS = FOR_HELP | {"safetensors"}
OF_KEYHOLE = {
    "cli",
    "errors",
    "interrupts",
    "lazy",
    "memory",
    "plugins",
    "spelling",
    "terminal",
    "untrusted",
    "version",
}
"""What ``keyhole --help`` loads of Keyhole itself."""
TAKES_PLAN = {"audit", "frontier", "train", "membership", "guard", "plan", "epsilon"}
"""Commands whose options are the fields of a plan."""
HEAVY = {"torch", "torchvision", "numpy", "scipy", "skimage", "sklearn", "matplotlib", "timm"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@dataclass(frozen=True)
class Call:
    """What a process did, and what it took."""

    code: int
    out: str
    err: str
    modules: set[str]
    megabytes: float
    seconds: float

    @property
    def packages(self) -> set[str]:
        """What was loaded besides Python's own library."""
        first = {name.partition(".")[0] for name in self.modules}
        named = {name for name in first if not name.startswith(("__", "_"))}
        return named - set(sys.stdlib_module_names) - AROUND


AROUND = {"a1_coverage", "coverage", "pytest_cov", "sitecustomize", "distutils-precedence"}
"""What an environment for tests may load before Keyhole."""


def measure(folder: Path, *arguments: str, **environment: str) -> Call:
    measured = folder / "measured.json"
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MEASURED": str(measured), **environment},
    )
    assert measured.exists(), done.stderr
    found = json.loads(measured.read_text())
    modules = set(found["modules"])
    return Call(
        done.returncode, done.stdout, done.stderr, modules, found["megabytes"], found["seconds"]
    )


def check_light(call: Call, packages: set[str]) -> None:
    assert not call.packages & HEAVY
    assert call.packages <= packages
    assert call.megabytes < MEGABYTES
    assert call.seconds < SECONDS
    assert "Traceback" not in call.err


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ()], ids=" ".join)
def test_the_front_door_loads_only_what_prints_it(tmp_path: Path, arguments: tuple[str]) -> None:
    call = measure(tmp_path, *arguments)
    check_light(call, FOR_HELP)
    parts = {name.split(".")[1] for name in call.modules if name.startswith("keyhole.")}
    assert parts <= OF_KEYHOLE
    assert "keyhole" in call.out + call.err
    assert not {name for name in call.modules if name.startswith("keyhole_studies")}


def test_shells_complete_without_torch(tmp_path: Path) -> None:
    words = {"_KEYHOLE_COMPLETE": "complete_bash", "COMP_WORDS": "keyhole mem", "COMP_CWORD": "1"}
    call = measure(tmp_path, **words)
    check_light(call, FOR_HELP)
    assert call.out.split() == ["membership"]
    words = {**words, "COMP_WORDS": "keyhole audit --vic", "COMP_CWORD": "2"}
    options = measure(tmp_path, **words)
    check_light(options, FOR_PLANS)
    assert options.out.split() == ["--victims", "--victims-at-once"]


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_the_help_of_a_command_needs_no_torch(tmp_path: Path, command: str) -> None:
    call = measure(tmp_path, command, "--help")
    check_light(call, FOR_PLANS if command in TAKES_PLAN else FOR_RUNS)
    assert call.code == 0


FILES = ("--before", "gone.safetensors", "--after", "words.toml")
VICTIM = ("--model", "mlp", "--data", "digits")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("studdy",), "No such command 'studdy'"),
        (("audit", "--nope"), "No such option '--nope'"),
        (("audit", "missing.toml"), "missing.toml does not exist"),
        (("audit", "words.toml"), "words.toml cannot be read as TOML"),
        (("audit", "key.toml"), "unknown key in key.toml 'modell': did you mean model"),
        (("audit", "--victims", "0"), "victims: input should be greater than or equal to 1"),
        (("audit", "--model", ","), "--model: ',' names nothing"),
        (("audit", "--victims-at-once", "x"), "victims-at-once: give auto or a positive number"),
        (("audit", "--data", "digits", "--mean", "0.5"), "mean is given without std"),
        (("audit", "--client-mode", "x"), "client-mode: input should be 'train', 'eval'"),
        (("audit", "--model", "mpl"), "unknown model 'mpl': did you mean mlp"),
        (("audit", "--data", "digit"), "unknown data set 'digit': did you mean digits"),
        (("audit", "--data", "no/where"), "no/where is not a folder of images"),
        (("audit", "--data", "mnist"), "data set 'mnist' is read from files"),
        (("audit", "--attack", "linaer"), "unknown attack 'linaer': did you mean linear"),
        (("audit", "--attack", "ig(tv"), "cannot read 'ig(tv'"),
        (("audit", "--defense", "none,gausian(sigma=1)"), "unknown defense 'gausian': did you"),
        (("audit", "--metric", "pnsr"), "unknown metric 'pnsr': did you mean psnr"),
        (("audit", "--weights", "gone.safetensors"), "gone.safetensors does not exist"),
        (("audit", "--captured", "nowhere"), "nowhere is not a folder: name one"),
        (("audit", "names.toml"), "unknown attack 'nonesuch'"),
        (("train", "--rounds", "0"), "rounds: input should be greater"),
        (("train", "--model", "nonesuch"), "unknown model 'nonesuch'"),
        (("train", "--partition", "idd"), "unknown partition 'idd': did you mean iid"),
        (("train", "--defense", "nonesuch"), "unknown defense 'nonesuch'"),
        (("membership", "--at", "1,x"), "at: 'x' is no epoch"),
        (("membership", "--attack", "lossy"), "unknown membership attack 'lossy': did you mean"),
        (("obfuscate", "a", "b", "--key-file", "k"), "pass --epochs"),
        (("guard",), "Missing option '--before'"),
        (("guard", *FILES, *VICTIM), "gone.safetensors does not exist"),
        (("guard", *FILES, *VICTIM, "--threshold", "2"), "threshold: an SSIM between 0 and 1"),
        (("list", "attcks"), "unknown part of the list 'attcks': did you mean attacks"),
        (("list", "gaussian"), "'gaussian' is one of the defenses"),
        (("list", "defenses", "gausian"), "unknown defense 'gausian': did you mean gaussian"),
        (("report", "nowhere"), "nowhere is not the folder of an audit: it has no plan.json"),
        (("compare", "here", "there"), "here is not the folder of an audit: it has no plan.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_that_need_no_torch_come_without_it(
    tmp_path: Path, arguments: tuple[str], words: str
) -> None:
    (tmp_path / "words.toml").write_text("not a plan")
    (tmp_path / "key.toml").write_text('[[stage]]\nmodell = "mlp"\n')
    (tmp_path / "names.toml").write_text('[[stage]]\nattacks = ["nonesuch"]\n')
    call = measure(tmp_path, *arguments, KEYHOLE_DATA="")
    check_light(call, FOR_PLANS | FOR_RUNS)
    assert (call.code, call.out) == (2, "")
    assert words in call.err


def test_the_package_is_imported_without_torch_and_gives_its_names_on_demand() -> None:
    code = (
        f"import sys, {', '.join(LAZY)}\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'audit' in dir(keyhole) and set(keyhole.__all__) <= set(dir(keyhole))\n"
        "assert keyhole.audit is keyhole.auditing.audit and callable(keyhole.audit)\n"
        "assert 'torch' in sys.modules\n"
        "from keyhole import *\n"
        "assert all(getattr(keyhole, name) is not None for name in keyhole.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_summary_is_the_first_paragraph_of_what_its_function_says(command: LazyCommand) -> None:
    module, _, function = command.function.partition(":")
    assert command.summary == read_summary(module, function)
    told = inspect.getdoc(command.load().callback)
    assert told is not None
    assert " ".join(told.split("\n\n")[0].split()) == command.summary


LAZY = [
    "keyhole",
    *("keyhole.attacks", "keyhole.attacks.membership", "keyhole.auditing", "keyhole.data"),
    *("keyhole.defenses", "keyhole.federation", "keyhole.metrics", "keyhole.models"),
    "keyhole.report",
]


@pytest.mark.parametrize("package", LAZY)
def test_lazy_names_are_the_public_ones(package: str) -> None:
    module = __import__(package, fromlist=["__all__"])
    tree = ast.parse(inspect.getsource(module))
    lines = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    named = {alias.name for line in lines for alias in line.names}
    targets = [n.target for n in tree.body if isinstance(n, ast.AnnAssign)]
    assigned = {target.id for target in targets if isinstance(target, ast.Name)}
    assert set(module.__all__) <= named | assigned
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


PLUGIN = '''
"""A package that takes for ever to import."""
import torch

def shout() -> None:
    """Shout
    at everybody.

    And more.
    """

def whisper() -> None: ...

raise RuntimeError("broken")
'''


def test_a_plugin_is_listed_without_being_imported_and_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "loud").mkdir()
    (tmp_path / "loud" / "__init__.py").write_text("raise RuntimeError")
    (tmp_path / "loud" / "commands.py").write_text(PLUGIN)
    about = tmp_path / "loud-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(
        "[keyhole.commands]\nshout = loud.commands:shout\nwhisper = loud.commands:whisper\n"
        "gone = nowhere:gone\naudit = loud.commands:shout\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    call = measure(tmp_path, "--help", PYTHONPATH=path)
    check_light(call, FOR_HELP)
    text = " ".join(call.out.split())
    assert "shout Shout at everybody. " in text
    assert "whisper From loud 1.2." in text
    assert "gone From loud 1.2." in text
    assert "audit Attack clients" in text
    refused = measure(tmp_path, "shout", PYTHONPATH=path)
    assert refused.code == 2
    assert refused.err == (
        "keyhole: command 'shout' of the package loud 1.2 cannot be loaded (RuntimeError: "
        "RuntimeError): repair that package, or remove it\n"
    )
