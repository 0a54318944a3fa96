"""What generated images show of a class.

A generator draws nobody's image in particular: each drawing is compared with all true images of the
class and with their mean, and shown to a classifier that had no part in the attack. Noise and
images of other classes are judged the same way: only what beats them was leaked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.metrics import noise_images, psnr, ssim

Classifier = Callable[[Tensor], Tensor]
"""Images ``[n, C, H, W]`` in [0, 1] to logits ``[n, classes]``; trained on clean images, apart."""


@dataclass(frozen=True)
class Likeness:
    """One value for each of n images, ``[n]``."""

    nearest_ssim: Tensor
    """SSIM to the true image that is nearest by SSIM."""
    nearest_psnr: Tensor
    """PSNR in dB to the true image that is nearest by PSNR."""
    mean_ssim: Tensor
    """SSIM to the mean of the true images."""
    recognised: Tensor | None = None
    """1 where the independent classifier sees the target class, else 0."""

    def means(self) -> dict[str, float]:
        """The mean of each over the images."""
        named = {
            "nearest_ssim": self.nearest_ssim,
            "nearest_psnr": self.nearest_psnr,
            "mean_ssim": self.mean_ssim,
            "recognised": self.recognised,
        }
        return {name: float(values.mean()) for name, values in named.items() if values is not None}


def measure_likeness(
    found: Tensor, truth: Tensor, *, target: int, classifier: Classifier | None = None
) -> Likeness:
    """How much images are like a class.

    Args:
        found: Images ``[n, C, H, W]`` in [0, 1].
        truth: The class's true images ``[m, C, H, W]`` in [0, 1].
        target: The class.
        classifier: Judges whether it sees the class; None: nobody does.

    >>> truth = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> round(measure_likeness(truth[:1], truth, target=0).means()["nearest_ssim"], 6)
    1.0
    """
    if not len(found) or not len(truth):
        raise DoesNotFit(
            f"cannot compare {len(found)} images with {len(truth)}: give at least one of each"
        )
    pairs = [(image.expand_as(truth), truth) for image in found]
    centre = truth.mean(0, keepdim=True).expand_as(found)
    return Likeness(
        nearest_ssim=torch.stack([ssim(*pair, data_range=1.0).max() for pair in pairs]),
        nearest_psnr=torch.stack([psnr(*pair, data_range=1.0).max() for pair in pairs]),
        mean_ssim=ssim(found, centre, data_range=1.0),
        recognised=None if classifier is None else classify_as(target, found, classifier),
    )


@torch.no_grad()
def classify_as(target: int, images: Tensor, classifier: Classifier) -> Tensor:
    """1 where the classifier's first choice is ``target``, else 0."""
    return (classifier(images).argmax(1) == target).double()


@dataclass(frozen=True)
class Judgement:
    """Generated images beside what an attacker would score who learnt nothing of the class."""

    generated: Likeness
    noise: Likeness
    others: Likeness
    """Real images of other classes: what any image of this kind scores."""

    def means(self) -> dict[str, dict[str, float]]:
        return {
            "generated": self.generated.means(),
            "noise": self.noise.means(),
            "others": self.others.means(),
        }


def judge_generated(
    found: Tensor,
    truth: Tensor,
    others: Tensor,
    *,
    target: int,
    generator: torch.Generator,
    classifier: Classifier | None = None,
) -> Judgement:
    """Scores generated images beside as much uniform noise and as many images of other classes.

    Args:
        found: Generated images ``[n, C, H, W]`` in [0, 1].
        truth: The victim's images ``[m, C, H, W]`` of the class.
        others: Images ``[k, C, H, W]`` of other classes.
        target: The class.
        generator: Draws noise, and some of the others.
        classifier: Judges whether it sees the class; None: nobody does.
    """
    shape = (found.shape[1], found.shape[2], found.shape[3])
    blank = noise_images(shape, len(found), generator).to(found)
    drawn = torch.randperm(len(others), generator=generator)[: len(found)]
    null = others[drawn.to(others.device)]
    by_name = {
        name: measure_likeness(images, truth, target=target, classifier=classifier)
        for name, images in (("generated", found), ("noise", blank), ("others", null))
    }
    return Judgement(by_name["generated"], by_name["noise"], by_name["others"])
