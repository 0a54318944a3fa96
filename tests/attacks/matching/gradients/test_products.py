"""Products of matrices: values, both derivatives, and the order that derivatives lie in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks.matching.gradients import layer_recorder
from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder
from keyhole.attacks.matching.gradients.products import (
    GramProduct,
    are_stacks,
    multiply_as,
    multiply_twice_differentiably,
)


def draw(number: int, *shape: int, layout: str = "plain") -> Tensor:
    draws = torch.Generator().manual_seed(number)
    x = torch.randn(*shape, dtype=torch.double, generator=draws)
    return (x.mT.contiguous().mT if layout == "transposed" else x).requires_grad_()


@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_gram_products_are_the_norm_of_the_product(layout: str) -> None:
    outputs, inputs = draw(0, 2, 3, 4, layout=layout), draw(1, 2, 3, 5, layout=layout)
    built = outputs.mT @ inputs
    found = GramProduct.apply(outputs, inputs)
    torch.testing.assert_close(found, built.square().flatten(1).sum(1))
    assert torch.autograd.gradcheck(GramProduct.apply, (outputs, inputs))
    for x, derivative in zip(
        (outputs, inputs), torch.autograd.grad(found.sum(), [outputs, inputs]), strict=True
    ):
        assert derivative.stride() == x.stride()


@pytest.mark.parametrize("left", ["plain", "transposed"])
@pytest.mark.parametrize("right", ["plain", "transposed"])
def test_products_are_differentiated_twice_in_their_own_order(left: str, right: str) -> None:
    a, b = draw(0, 2, 3, 4, layout=left), draw(1, 2, 4, 5, layout=right)
    torch.testing.assert_close(multiply_twice_differentiably(a, b), a @ b)
    assert torch.autograd.gradcheck(multiply_twice_differentiably, (a, b))
    assert torch.autograd.gradgradcheck(multiply_twice_differentiably, (a, b))
    product = multiply_twice_differentiably(a, b)
    first = torch.autograd.grad(product.square().sum(), [a, b], create_graph=True)
    assert [d.stride() for d in first] == [a.stride(), b.stride()]
    second = torch.autograd.grad(sum(d.square().sum() for d in first), [a, b])
    assert [d.stride() for d in second] == [a.stride(), b.stride()]


def test_a_product_lies_as_the_matrix_it_is_to_be_like() -> None:
    left, right = draw(0, 2, 3, 4), draw(1, 2, 4, 5)
    transposed = multiply_as(left, right, draw(2, 2, 3, 5, layout="transposed"))
    assert transposed.mT.is_contiguous()
    assert multiply_as(left, right, draw(2, 2, 3, 5)).is_contiguous()
    torch.testing.assert_close(transposed, left @ right)


def test_only_stacks_of_float32_are_taken() -> None:
    stack = torch.zeros(2, 3, 3)
    assert are_stacks(stack, stack)
    assert not are_stacks(stack, stack[0])
    assert not are_stacks(stack[0], stack[0])
    assert not are_stacks(stack, stack.double())
    assert not are_stacks(stack, 2.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert not are_stacks(stack, stack)


def test_the_recorder_takes_the_products_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 4)
    taken: list[Tensor] = []

    def take(a: Tensor, b: Tensor) -> Tensor:
        taken.append(a)
        return a @ b

    monkeypatch.setattr(layer_recorder, "multiply_twice_differentiably", take)
    names = {id(p): name for name, p in model.named_parameters()}
    with LayerRecorder(2, names=names):
        x = model(torch.randn(2, 3, 4))
        found = [x @ x.mT, torch.matmul(x, x.mT), x.bmm(x.mT)]
        assert (x @ x[0].mT).shape == (2, 3, 3)
    assert len(taken) == 3
    assert all(torch.equal(one, found[0]) for one in found)
