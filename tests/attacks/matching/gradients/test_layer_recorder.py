from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder, normalise_per_victim


def names_of(model: nn.Module) -> dict[int, str]:
    return {id(p): name for name, p in model.named_parameters()}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 7)])
def test_each_victims_batch_is_normalised_by_itself(batch: int, shape: tuple[int, ...]) -> None:
    x = torch.randn(2 * batch, *shape, dtype=torch.double)
    found = normalise_per_victim(x, 2, 1e-5)
    norm = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    layer = norm(4, affine=False, dtype=torch.double)
    expected = torch.cat([layer(x[:batch]), layer(x[batch:])])
    torch.testing.assert_close(found, expected)


def test_running_statistics_are_never_changed() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.BatchNorm2d(3))
    before = [b.clone() for b in model.buffers() if b.is_floating_point()]
    with LayerRecorder(2):
        model.train()(torch.randn(4, 1, 8, 8))
    after = [b for b in model.buffers() if b.is_floating_point()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_a_model_runs_as_it_would_without_the_tape() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.LayerNorm(64),
        nn.Linear(64, 10),
    )
    x = torch.randn(3, 1, 8, 8)
    with LayerRecorder(1, names=names_of(model)) as recorder:
        found = model(x)
    torch.testing.assert_close(found, model(x))
    assert [call.kind for call in recorder.calls] == [
        *("conv", "batch_norm", "conv", "group_norm", "layer_norm", "linear")
    ]
    assert [call.weight for call in recorder.calls] == [f"{i}.weight" for i in (0, 1, 3, 4, 6, 7)]


def test_layers_that_are_not_the_models_own_are_not_noted() -> None:
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)
    with LayerRecorder(1, names=names_of(model)) as recorder:
        other(model(torch.randn(2, 3)))
    assert [call.weight for call in recorder.calls] == ["weight"]


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y += x
        return self.last(y.tanh())


def test_an_output_that_the_model_overwrites_is_noticed_and_can_be_kept() -> None:
    model, x = Writes(), torch.randn(2, 4)
    with LayerRecorder(1, names=names_of(model)) as recorder:
        expected = model(x)
    assert [call.overwritten for call in recorder.calls] == [True, False]
    with LayerRecorder(1, names=names_of(model), cloned_calls=frozenset([0])) as recorder:
        found = model(x)
    assert torch.equal(found, expected)
    assert not any(call.overwritten for call in recorder.calls)
    assert torch.equal(recorder.calls[0].output, model.first(x))


def test_statistics_are_watched_where_that_is_asked_for() -> None:
    model = nn.BatchNorm2d(3).eval()
    x = torch.randn(4, 3, 5, 5)
    with LayerRecorder(2) as recorder:
        model(x)
    assert recorder.statistics == []
    with LayerRecorder(2, statistics=True) as recorder:
        model(x)
    (seen,) = recorder.statistics
    torch.testing.assert_close(
        seen.mean, torch.stack([x[:2].mean((0, 2, 3)), x[2:].mean((0, 2, 3))])
    )
    torch.testing.assert_close(seen.var[1], x[2:].var((0, 2, 3), correction=0))
