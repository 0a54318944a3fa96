"""The conditional generator: any size, told what to draw, entered at any stage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from keyhole.attacks.generative.conditional import ConditionalBatchNorm, ConditionalGenerator
from keyhole.seeds import generator

SHAPES = [(3, 32, 32), (1, 28, 28), (3, 16, 16), (1, 25, 30)]


def tiny(shape: tuple[int, int, int] = (3, 16, 16)) -> ConditionalGenerator:
    """One that draws classes differently: an untrained one has not learnt to yet."""
    made = ConditionalGenerator(shape, latent=6, classes=4, features=(8, 6, 4))
    for norm in made.modules():
        if isinstance(norm, ConditionalBatchNorm):
            nn.init.normal_(norm.scale)
            nn.init.normal_(norm.shift)
    return made.eval()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_size_is_drawn_whole_and_within_the_range(shape: tuple[int, int, int]) -> None:
    network = tiny(shape).train()
    images = network(network.sample_codes(16, generator(0)), torch.arange(16) % 4)
    assert images.shape == (16, *shape)
    assert images.min() >= 0
    assert images.max() <= 1
    assert (images.std(0) > 0).all()


@pytest.mark.parametrize("number", range(4))
def test_every_stage_can_be_entered(number: int) -> None:
    network = tiny()
    classes = torch.tensor([0, 3])
    features = codes = network.sample_codes(2, generator(0))
    for stage in range(number):
        features = network.run_stage(stage, features, classes)
    assert features.shape[1:] == network.stage_shapes[number]
    assert torch.equal(network.run_from_stage(number, features, classes), network(codes, classes))


def test_an_image_depends_on_its_own_code_and_class_alone() -> None:
    network = tiny()
    codes, classes = network.sample_codes(5, generator(0)), torch.tensor([0, 1, 2, 3, 0])
    together = network(codes, classes)
    alone = torch.cat([network(codes[i : i + 1], classes[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert torch.equal(network(codes, classes), together)
    assert all(torch.equal(before[n], t) for n, t in network.state_dict().items())


def test_classes_are_drawn_differently_and_shares_are_mixtures() -> None:
    network = tiny()
    code = network.sample_codes(1, generator(0)).expand(4, -1)
    images = network(code, torch.arange(4))
    assert (images[0] - images[1]).abs().mean() > 1e-3
    assert torch.equal(network(code, torch.eye(4)), images)
    mixed = network(code[:1], torch.full((1, 4), 0.25))
    assert ((mixed - images).abs().flatten(1).mean(1) > 1e-4).all()


def test_second_derivatives_are_right() -> None:
    network = tiny((1, 6, 6)).double()
    classes = torch.eye(4, dtype=torch.double)[[1]]

    def drawn(code: torch.Tensor) -> torch.Tensor:
        return network(code, classes).sum((2, 3))

    code = network.sample_codes(1, generator(1)).double().requires_grad_()
    assert torch.autograd.gradgradcheck(drawn, code)


def test_the_usual_generator_is_small_enough_to_be_shipped() -> None:
    weights = sum(p.numel() for p in ConditionalGenerator().parameters())
    assert 2 * weights < 6_000_000
