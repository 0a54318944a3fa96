"""Workflows, templates, hooks and the change log say what is so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from keyhole.version import __version__
from scripts import ROOT

yaml = pytest.importorskip("yaml", reason="pyyaml is missing: pip install 'keyhole[dev]'")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", MAKEFILE, re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PAGES = ("CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md")


def read_yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in read_yaml(file)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda f: f.stem)
def test_a_workflow_calls_targets_that_there_are(file: Path) -> None:
    called = [t for s in steps(file) for t in re.findall(r"^make ([\w -]+)$", s.get("run", ""))]
    assert {name for targets in called for name in targets.split()} <= TARGETS
    for step in steps(file):
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/checkout@v4"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda f: f.stem)
def test_a_workflow_reads_only_and_ends(file: Path) -> None:
    workflow = read_yaml(file)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 180 for job in workflow["jobs"].values())


def test_the_suite_runs_on_every_version_that_is_promised() -> None:
    checks = read_yaml(ROOT / ".github" / "workflows" / "checks.yml")
    named = [c.split(" :: ")[-1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert checks["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert set(checks["jobs"]) == {"lint", "test", "docs", "wheel"}


def test_long_checks_are_started_by_hand_alone() -> None:
    by_hand = read_yaml(ROOT / ".github" / "workflows" / "by_hand.yml")
    triggers = by_hand[True]  # YAML 1.1 reads `on` as true
    assert set(triggers) == {"workflow_dispatch"}
    options = set(triggers["workflow_dispatch"]["inputs"]["target"]["options"])
    assert options == {"test-slow", "test-flower", "test-ray", "torture", "test-gpu"}
    assert options <= TARGETS


def test_every_target_that_makes_no_file_of_its_name_is_phony() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert set(phony.split()) == TARGETS


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda f: f.stem
)
def test_a_template_is_a_form_with_named_fields(file: Path) -> None:
    form = read_yaml(file)
    if file.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in form["body"])


def test_hooks_run_the_ruff_of_the_environment() -> None:
    (local,) = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert [hook["entry"].split()[:2] for hook in local["hooks"]] == [
        ["ruff", "check"],
        ["ruff", "format"],
    ]
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_the_change_log_has_this_version() -> None:
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", CHANGES, re.M)
    assert released[0] == __version__
    assert released == sorted(released, key=lambda v: [*map(int, v.split("."))], reverse=True)
    kinds = set(re.findall(r"^### (.+)$", CHANGES, re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_what_the_change_log_names_is_there() -> None:
    """Attacks, defenses and commands; what it gives in code without blanks or signs."""
    from keyhole.attacks import ATTACKS
    from keyhole.cli.app import load_commands
    from keyhole.defenses import DEFENSES

    parts = {*ATTACKS.names(), *DEFENSES.names()}
    kinds = r"^\* \**(?:Attacks|Defenses|Closed forms)\b.*?(?=^\*|^$)"
    paragraphs = re.findall(kinds, CHANGES, re.S | re.M)
    assert len(paragraphs) == 4
    for paragraph in paragraphs:
        assert set(re.findall(r"`([a-z0-9-]+)`", paragraph)) <= parts
    commands = set(re.findall(r"`keyhole ([a-z]+)", CHANGES))
    assert commands <= set(load_commands())


@pytest.mark.parametrize("name", PAGES)
def test_links_of_the_pages_at_the_top_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        assert target.startswith("http") or (ROOT / target).exists(), target
