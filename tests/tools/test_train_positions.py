"""The script that trains the networks whose position embeddings ship with the study of MJP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from keyhole.data import ImageSet
from keyhole.update import read_safetensors
from keyhole_studies.mjp import experiments
from keyhole_studies.mjp.networks import build_deit
from keyhole_studies.mjp.positions import explained_variance
from keyhole_studies.resident_data import ResidentData
from keyhole_studies.result_files import SHIPPED, read_result
from scripts import load_script

script = load_script("tools/train_positions.py")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight images of noise, and networks of one block."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (8, 3, 32, 32), generator=draw, dtype=torch.uint8)
    data = ImageSet(
        name="noise",
        pixels=lambda indices: pixels[list(indices)],
        labels=torch.arange(8),
        classes=tuple("0123456789"),
        size=(32, 32),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )
    resident = ResidentData(data, list(range(8)), data, list(range(4)))

    def build(name: str, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build_deit(width=96, depth=1, heads=2)

    monkeypatch.setattr(experiments, "load_resident_data", lambda *args: resident)
    monkeypatch.setattr(experiments, "build_network", build)


@pytest.mark.usefixtures("small")
def test_a_command_trains_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, runs = tmp_path / "positions.safetensors", tmp_path / "runs"
    arguments = [str(out), "--epochs", "1", "--runs", str(runs)]
    script.main(arguments)
    names = [experiment.name for experiment in script.find_experiments(None)]
    assert f"{', '.join(names)}: {out}" in capsys.readouterr().out
    tables = read_safetensors(out)[0]
    assert set(tables) == set(names)
    assert all(table.shape == (64, 96) for table in tables.values())
    assert not torch.equal(tables["long-deit-A"], tables["long-deit-J"])
    written = (runs / "long-deit-A" / "weights.safetensors").stat().st_mtime_ns
    script.main(arguments)
    assert (runs / "long-deit-A" / "weights.safetensors").stat().st_mtime_ns == written


def test_the_shipped_file_is_of_the_networks_of_the_results() -> None:
    shipped = read_safetensors(SHIPPED / "mjp" / "positions.safetensors")[0]
    assert set(shipped) == {experiment.name for experiment in script.find_experiments(None)}
    for name, table in shipped.items():
        assert table.dtype == torch.float16
        result = read_result(SHIPPED / "mjp", name)
        assert result is not None
        known = result["positions"]["explained_variance"]["3"]
        assert explained_variance(table, 3) == pytest.approx(known, abs=1e-4)


def test_a_command_without_data_says_so(tmp_path: Path) -> None:
    out = str(tmp_path / "positions.safetensors")
    with pytest.raises(SystemExit, match="data set 'cifar10' is not in"):
        script.main([out, "--data-dir", str(tmp_path), "--runs", str(tmp_path / "runs")])
