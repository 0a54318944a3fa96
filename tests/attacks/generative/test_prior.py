"""Generators on disk, and the half of CIFAR-10 that no victim is in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from keyhole.attacks.generative import prior
from keyhole.attacks.generative.conditional import ConditionalGenerator
from keyhole.attacks.generative.prior import load_generator, public_half, save_generator
from keyhole.data import load
from keyhole.errors import BadUpdate, DataMissing, DoesNotFit
from keyhole.seeds import generator


@pytest.fixture
def saved(tmp_path: Path) -> tuple[ConditionalGenerator, Path]:
    network = ConditionalGenerator((3, 8, 8), latent=5, classes=3, features=(6, 4)).eval()
    network.stages[1].norm1.var.fill_(1e-7)  # type: ignore[union-attr, operator]
    save_generator(network, tmp_path / "drawn.safetensors", trained_on="nothing")
    return network, tmp_path / "drawn.safetensors"


def test_a_loaded_generator_draws_the_same(
    saved: tuple[ConditionalGenerator, Path], same_rng: Callable[[], bool]
) -> None:
    network, path = saved
    loaded = load_generator(path)
    codes, classes = network.sample_codes(4, generator(0)), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(loaded(codes, classes), network(codes, classes), rtol=0, atol=0.01)
    save_generator(loaded, path.with_name("again.safetensors"), trained_on="nothing")
    again = load_generator(path.with_name("again.safetensors"))
    assert torch.equal(again(codes, classes), loaded(codes, classes))
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    assert {t.dtype for t in loaded.state_dict().values()} == {torch.float32}
    assert same_rng()


def test_the_file_is_small_and_says_what_it_holds(saved: tuple[ConditionalGenerator, Path]) -> None:
    network, path = saved
    kinds = {name: tensor.dtype for name, tensor in load_file(path).items()}
    assert kinds["stages.0.linear.weight"] == torch.float16
    assert kinds["stages.1.norm1.var"] == torch.float32
    assert b'\\"trained_on\\": \\"nothing\\"' in path.read_bytes()
    made = load_generator(path)
    assert (made.shape, made.latent, made.classes) == ((3, 8, 8), 5, 3)
    assert made.features == network.features


def test_a_missing_file_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataMissing, match=r"train one .* generator='PATH'") as raised:
        load_generator(tmp_path / "none.safetensors")
    assert "\n" not in str(raised.value)
    package, _ = prior.GENERATORS.shipped
    gone = dataclasses.replace(prior.GENERATORS, shipped=(package, "nowhere.safetensors"))
    monkeypatch.setattr(prior, "GENERATORS", gone)
    with pytest.raises(DataMissing, match="nowhere"):
        load_generator()


def test_other_files_are_refused(saved: tuple[ConditionalGenerator, Path], tmp_path: Path) -> None:
    _, path = saved
    plain = tmp_path / "plain.safetensors"
    save_file(load_file(path), plain)
    with pytest.raises(BadUpdate, match="does not say what generator"):
        load_generator(plain)
    plain.write_bytes(b"no tensors")
    with pytest.raises(BadUpdate, match="not a safetensors file"):
        load_generator(plain)


def test_no_victim_of_dia_is_in_the_public_half(data_dir: Path) -> None:
    data = load("cifar10", data_dir=data_dir)
    public = public_half(data)
    victims = np.load(data_dir / "victims" / "cifar10_128.npz")["index"].tolist()
    assert len(victims) == 128
    assert not set(victims) & set(public)
    assert all(index % 2 for index in public)
    assert len(public) == len(set(public)) == 25_000 - sum(v % 2 for v in victims)
    assert {int(label) for label in data.labels[public]} == set(range(10))


def test_other_sets_have_no_public_half() -> None:
    with pytest.raises(DoesNotFit, match="not for 'digits'"):
        public_half(load("digits"))
