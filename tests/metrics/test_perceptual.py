from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from keyhole.errors import DataMissing, DoesNotFit
from keyhole.metrics import lpips
from keyhole.metrics.perceptual import WEIGHTS, why_unavailable


def shown(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        pixels = np.array(image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))


@pytest.mark.parametrize(("name", "value"), [("ex_p0", 0.722), ("ex_p1", 0.138)])
def test_the_published_distances_are_met(data_dir: Path, name: str, value: float) -> None:
    reference, other = (shown(data_dir / "lpips" / f"{n}.png") for n in ("ex_ref", name))
    found = lpips(other, reference, data_range=1.0, data_dir=data_dir)
    assert found.item() == pytest.approx(value, abs=5e-4)
    scaled = lpips(other * 255, reference * 255, data_range=255.0, data_dir=data_dir)
    assert scaled.item() == pytest.approx(value, abs=5e-4)


def test_the_environment_names_the_weights_too(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYHOLE_DATA", str(data_dir))
    image = torch.rand(1, 3, 40, 40)
    assert lpips(image, image, data_range=1.0).item() == pytest.approx(0, abs=1e-6)


def test_each_image_is_scored_alone(data_dir: Path) -> None:
    found, truth = torch.rand(40, 3, 31, 31), torch.rand(40, 3, 31, 31)
    together = lpips(found, truth, data_range=1.0, data_dir=data_dir)
    assert together.shape == (40,)
    last = lpips(found[-1:], truth[-1:], data_range=1.0, data_dir=data_dir)
    assert together[-1].item() == pytest.approx(last.item(), abs=1e-5)


def test_grey_images_are_shown_in_three_equal_channels(data_dir: Path) -> None:
    found, truth = torch.rand(2, 1, 40, 40), torch.rand(2, 1, 40, 40)
    grey = lpips(found, truth, data_range=1.0, data_dir=data_dir)
    colour = lpips(
        found.expand(-1, 3, -1, -1), truth.expand(-1, 3, -1, -1), data_range=1.0, data_dir=data_dir
    )
    assert torch.allclose(grey, colour)


def test_images_that_cannot_be_compared_are_refused(data_dir: Path) -> None:
    with pytest.raises(DoesNotFit, match="cannot compare images of shapes"):
        lpips(torch.rand(1, 3, 40, 40), torch.rand(2, 3, 40, 40), data_range=1.0, data_dir=data_dir)


@pytest.mark.usefixtures("no_data_dir", "no_hub")
def test_without_weights_it_says_what_to_put_where() -> None:
    image = torch.rand(1, 3, 40, 40)
    with pytest.raises(DataMissing, match=r"LPIPS is not available: no weights: put lpips/"):
        lpips(image, image, data_range=1.0)
    assert "alexnet-owt-7be5be79.pth" in why_unavailable(40)


def test_small_images_are_told_to_be_too_small(data_dir: Path) -> None:
    image = torch.rand(1, 3, 30, 40)
    with pytest.raises(DataMissing, match=r"images of 30 px are too small for AlexNet.* 31"):
        lpips(image, image, data_range=1.0, data_dir=data_dir)
    assert why_unavailable(31, data_dir) == ""


def test_spoilt_weights_are_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / WEIGHTS
    file.parent.mkdir()
    file.write_text("these are no weights")
    image = torch.rand(1, 3, 40, 40)
    with pytest.raises(DataMissing, match="is not a safetensors file") as raised:
        lpips(image, image, data_range=1.0, data_dir=tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("no_data_dir")
def test_the_hub_cache_serves_where_there_is_no_data_folder(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    weights = load_file(data_dir / WEIGHTS)
    file = tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth"
    file.parent.mkdir()
    torch.save({k: v for k, v in weights.items() if k.startswith("features.")}, file)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    found, truth = torch.rand(2, 1, 3, 40, 40)
    through_hub = lpips(found, truth, data_range=1.0)
    assert torch.allclose(
        through_hub, lpips(found, truth, data_range=1.0, data_dir=data_dir), atol=1e-5
    )
