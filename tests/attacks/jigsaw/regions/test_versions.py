from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.regions import combine_versions
from keyhole.defenses.csvar import Csvar
from keyhole.errors import BadValue
from keyhole.seeds import generator


@pytest.mark.parametrize("size", [(32, 32), (25, 25), (28, 28)])
def test_exact_versions_give_back_the_first(hide, size: tuple[int, int]) -> None:
    truth = hide(3, *size).truth
    versions = torch.stack([Csvar().shuffle(truth, torch.tensor([i, 9 * i])) for i in range(5)])
    assert not torch.equal(versions[0], versions[1])
    assert torch.equal(combine_versions(versions), versions[0])


def test_noise_goes_down_with_the_number_of_versions() -> None:
    draw = generator(0, "versions")
    truth = torch.rand(2, 3, 32, 32, generator=draw)
    exact = torch.stack([Csvar().shuffle(truth, torch.tensor([i, 9 * i])) for i in range(8)])
    noisy = exact + 0.05 * torch.randn(exact.shape, generator=draw)
    before = (noisy[0] - exact[0]).square().mean()
    after = (combine_versions(noisy) - exact[0]).square().mean()
    assert after < before / 4  # 8 where every block finds its match


def test_one_version_is_as_it_is() -> None:
    versions = torch.rand(1, 2, 3, 32, 32)
    assert torch.equal(combine_versions(versions), versions[0])


def test_takes_versions_only() -> None:
    with pytest.raises(BadValue, match="versions"):
        combine_versions(torch.rand(2, 3, 32, 32))
