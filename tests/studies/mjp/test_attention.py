"""Figure 4: the last block's attention is what timm's own block computes, and is drawn."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from keyhole.atomic import write_tensors
from keyhole.data import load
from keyhole.progress import NullProgress
from keyhole_studies import load_study
from keyhole_studies.base import StudyContext
from keyhole_studies.mjp import attention
from keyhole_studies.mjp.attention import attend, entropy, paint
from keyhole_studies.mjp.experiments import TrainingExperiment
from keyhole_studies.mjp.figures import draw_figures
from keyhole_studies.mjp.networks import build_deit


def test_the_maps_are_the_weights_of_the_last_block() -> None:
    model = build_deit(width=32, depth=2, heads=2).eval()
    inputs = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = attend(model, inputs)
    assert maps.shape == (3, 2, 64)
    kept: list[torch.Tensor] = []
    last = model.blocks[-1].attn
    last.fused_attn = False  # then the weights pass through a dropout, where they can be seen
    last.attn_drop.register_forward_hook(lambda _, args, out: kept.append(args[0]))
    with torch.no_grad():
        model(inputs)
    torch.testing.assert_close(maps, kept[0][:, :, 0, 1:], rtol=1e-4, atol=1e-6)


def test_entropy_is_that_of_even_and_of_single_attention() -> None:
    even, single = torch.full((1, 1, 64), 0.01), torch.zeros(1, 1, 64)
    single[..., 5] = 0.3
    assert entropy(torch.cat([even, single])).flatten().tolist() == pytest.approx([6.0, 0.0])
    (image,) = paint(single, (32, 32))
    assert image.shape == (1, 32, 32)
    assert image[0, 0:4, 20:24].min() == 1
    assert image.sum() == 16


def test_maps_of_trained_networks_are_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = load("digits", image_size=32)
    digits = dataclasses.replace(
        digits,
        pixels=lambda indices, grey=digits.pixels: grey(indices).expand(-1, 3, -1, -1),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    monkeypatch.setattr(attention, "load", lambda *args, **options: digits)
    study = load_study("mjp")
    for name in ("full-deit-A-s0", "full-deit-J-s0"):
        trained = study.find(name)
        assert isinstance(trained, TrainingExperiment)
        state = trained.build_model(0).state_dict()
        write_tensors(
            trained.weights_file(tmp_path), {n: value.contiguous() for n, value in state.items()}
        )
    context = StudyContext(tmp_path, None, "cpu", NullProgress(), changes={"victims": 8})
    experiment = study.find("attention")
    found = experiment.measure(study, context)
    assert found["images"] == 8
    assert experiment.find_gap(found, context) == ""
    assert set(found["rows"]) == {"full-deit-A-s0", "full-deit-J-s0"}
    assert all(3 < row["entropy"] < 6 for row in found["rows"].values())
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "attention.json").write_text(json.dumps(found))
    (drawn,) = draw_figures(study, tmp_path / "results", tmp_path / "figures")
    assert drawn.read_bytes() == base64.b64decode(found["drawn"])
    with Image.open(drawn) as picture:
        assert min(picture.size) > 100
