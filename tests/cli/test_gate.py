"""``--fail-on``, ``--junit`` and ``--sarif``, and the steps of examples/ci in a shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from keyhole.auditing import result_schema
from scripts import ROOT

Keyhole = Callable[..., tuple[int, str, str]]
EXAMPLES = ROOT / "examples" / "ci"
SMALL = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1")


def test_a_gate_that_fails_exits_with_3_and_the_run_is_whole(keyhole: Keyhole) -> None:
    code, out, err = keyhole(*SMALL, "--out", "run", "--fail-on", "broken", "--sarif", "a.sarif")
    assert (code, err) == (3, "")
    *_, line, summary = out.splitlines()
    assert line.startswith("Gate:     mlp on digits, none, honest server: linear (naive) read 100")
    assert summary == "Gate:     failed in 1 of 1 setting: broken"
    assert Path("run/report.html").is_file()
    assert len(json.loads(Path("a.sarif").read_text())["runs"][0]["results"]) == 1


def test_a_gate_that_passes_exits_with_0(keyhole: Keyhole) -> None:
    hidden = (*SMALL, "--defense", "gaussian(sigma=10)", "--out", "run")
    code, out, _ = keyhole(*hidden, "--fail-on", "broken", "--fail-on", "read>0.5")
    assert code == 0
    assert out.endswith("Gate:     passed in 1 setting: broken, read>0.5\n")


def test_a_finished_run_meets_a_gate_and_json_says_what_it_decided(keyhole: Keyhole) -> None:
    assert keyhole(*SMALL, "--out", "run")[0] == 0
    code, out, err = keyhole("report", "run", "--fail-on", "read>0.5", "--json")
    assert (code, err) == (3, "")
    found = json.loads(out)
    jsonschema.validate(found, result_schema())
    assert [f["condition"] for f in found["gate"]["failures"]] == ["read>0.5"]
    assert "gate" not in json.loads(Path("run/summary.json").read_text())


def test_a_later_run_is_compared_with_a_baseline(keyhole: Keyhole) -> None:
    assert keyhole(*SMALL, "--out", "before")[0] == 0
    assert keyhole(*SMALL, "--out", "now", "--fail-on", "worse-than:before")[0] == 0
    more = (*SMALL, "--defense", "none,dropout", "--out", "more")
    code, out, _ = keyhole(*more, "--fail-on", "worse-than:before", "--junit", "j.xml")
    assert code == 3
    assert "the baseline does not have it" in out
    assert 'failures="1"' in Path("j.xml").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fail-on", "brokn"), "fail-on: cannot read 'brokn'"),
        (("--fail-on", "worse-than:nowhere"), "nowhere is not the folder of an audit"),
        (("--fail-on", "worse-than:run"), "run is this run itself"),
        (("--fail-on", "worse-than:member"), "member is a membership run"),
        (("--junit", "x.xml"), "--junit writes what a gate decided: add --fail-on broken"),
        (("--fail-on", "broken", "--sarif", "member"), "member is a folder: name a file"),
        (("--fail-on", "broken", "--junit", "member/plan.json/j.xml"), "takes no new files"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(
    keyhole: Keyhole, options: tuple[str, ...], words: str
) -> None:
    Path("member").mkdir()
    Path("member/plan.json").write_text('{"members": 3}')
    code, out, err = keyhole(*SMALL, "--out", "run", *options)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
    assert not Path("run").exists()


def steps() -> dict[str, str]:
    """The gate's shell command of each example."""
    action = yaml.safe_load((EXAMPLES / "action.yml").read_text(encoding="utf-8"))
    (gate,) = [step for step in action["runs"]["steps"] if step["name"] == "Gate"]
    job = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))["privacy"]
    assert set(gate["env"]) == {"PLAN", "FAIL_ON"} <= set(job["variables"])
    return {"github": gate["run"], "gitlab": "\n".join(job["script"])}


@pytest.mark.parametrize("host", ["github", pytest.param("gitlab", marks=pytest.mark.slow)])
def test_the_steps_of_the_examples_end_as_documented(host: str, tmp_path: Path) -> None:
    """0: passed, 3: failed, 2: the plan is missing; the report's files are there but for 2."""
    shim = tmp_path / "bin" / "keyhole"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m keyhole "$@"\n')
    shim.chmod(0o755)
    shutil.copy(EXAMPLES / "plan.toml", tmp_path / "private.toml")
    open_plan = (EXAMPLES / "plan.toml").read_text(encoding="utf-8")
    (tmp_path / "leaking.toml").write_text(open_plan.replace("gaussian(sigma=10)", "none"))
    path = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
    conditions = "broken\nread>0.5\n" if host == "github" else "broken"
    for plan, code in (("private.toml", 0), ("leaking.toml", 3), ("missing.toml", 2)):
        place = tmp_path / plan.removesuffix(".toml")
        place.mkdir()
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", steps()[host]],
            cwd=place,
            env={**os.environ, "PATH": path, "PLAN": f"../{plan}", "FAIL_ON": conditions},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert (place / "keyhole-junit.xml").exists() == (code != 2)
        assert (place / "keyhole-run" / "report.html").exists() == (code != 2)


def test_the_workflow_uses_the_action_with_inputs_that_it_has() -> None:
    workflow = yaml.safe_load((EXAMPLES / "workflow.yml").read_text(encoding="utf-8"))
    action = yaml.safe_load((EXAMPLES / "action.yml").read_text(encoding="utf-8"))
    used = workflow["jobs"]["gate"]["steps"][-1]["with"]
    needed = {name for name, about in action["inputs"].items() if about.get("required")}
    assert needed <= set(used) <= set(action["inputs"])
