"""Loads and runs scripts that lie outside the packages: tools/ and benchmarks/."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]


def load_script(path: str) -> ModuleType:
    """The module of a script, by its path below the repository's root.

    What the script puts into the environment for its own process is taken out again.
    """
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    before = dict(os.environ)
    try:
        spec.loader.exec_module(module)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return module


def run_json(path: str, arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a script prints with ``--json``, run in this process."""
    threads = torch.get_num_threads()
    try:
        load_script(path).main([*arguments.split(), "--json"])
    finally:
        torch.set_num_threads(threads)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found
