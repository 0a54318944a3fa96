from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.regions.thumbnails import build_thumbnail, compute_region_means
from keyhole.errors import BadValue


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (25, 25), (112, 92)])
def test_the_shuffled_image_has_the_originals_thumbnail(hide, size) -> None:
    hidden = hide(3, *size)
    assert not torch.equal(hidden.shuffled, hidden.truth)
    assert torch.allclose(
        build_thumbnail(hidden.shuffled), build_thumbnail(hidden.truth), atol=1e-5
    )
    assert build_thumbnail(hidden.shuffled).shape == hidden.truth.shape


def test_region_means_are_those_of_the_regions() -> None:
    image = torch.rand(1, 1, 28, 28)
    means = compute_region_means(image)[0, 0]
    assert means.shape == (4, 4)
    assert means[1, 2] == pytest.approx(float(image[0, 0, 8:16, 16:24].mean()), abs=1e-6)
    assert means[3, 3] == pytest.approx(float(image[0, 0, 24:, 24:].mean()), abs=1e-6)


def test_takes_batches_only() -> None:
    with pytest.raises(BadValue, match="images"):
        build_thumbnail(torch.rand(3, 32, 32))
