"""The examples in plain PyTorch and with LoRA do what their pages say."""

from __future__ import annotations

import re

import pytest
import torch

from page_commands import commands
from scripts import ROOT, load_script


def test_the_guard_reads_every_client_of_plain_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    script = load_script("examples/pytorch/federation.py")
    script.main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == script.CLIENTS
    assert all("reads 1 of 1 images out of this update" in line for line in lines)


def test_under_noise_updates_leave_and_move_the_model() -> None:
    script = load_script("examples/pytorch/federation.py")
    start = torch.cat([p.flatten() for p in script.make_model().parameters()])
    model, words = script.run_round("gaussian(sigma=0.1)", withhold=True)
    assert all(text.startswith("not read by the attacks tried") for text in words)
    assert not torch.cat([p.flatten() for p in model.parameters()]).equal(start)
    model, _ = script.run_round("none", withhold=True)
    assert torch.cat([p.flatten() for p in model.parameters()]).equal(start)


def test_lora_sends_no_photo_that_a_closed_form_reads(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    load_script("examples/lora/fine_tune.py").main([])
    whole, lora = capsys.readouterr().out.splitlines()
    page = (ROOT / "examples/lora/README.md").read_text(encoding="utf-8")
    for line in (whole, lora):
        count = re.search(r"([\d,]+) values sent", line)
        assert count is not None
        assert count[1] in page
        assert "labels: 1 of 1 inferred" in line
    assert "patch-lstsq (naive) reads 1 of 1 images" in whole
    assert "nobody knows" in lora


def test_the_patch_for_flower_s_quickstart_has_the_lines_of_its_page() -> None:
    folder = ROOT / "examples" / "flower_quickstart"
    changed = [
        line
        for line in (folder / "keyhole.patch").read_text(encoding="utf-8").splitlines()
        if re.match(r"[+-](?![+-])", line)
    ]
    assert len(changed) == 3
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert all(line in page for line in changed)
    assert commands("examples/flower_quickstart/README.md")[0][0] == "audit"
