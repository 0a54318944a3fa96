"""The figures of Wang and Su 2025 (TIP) that ours stand beside."""

from __future__ import annotations

DEFENSES = ("none", "dp", "agp", "tip")
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet"}
ATTACKS = ("ig", "gifd")

PSNR: dict[tuple[str, str], tuple[float, ...]] = {
    ("cifar10", "ig"): (14.58, 9.18, 9.54, 9.85),
    ("cifar100", "ig"): (14.10, 8.20, 7.93, 8.73),
    ("tiny-imagenet", "ig"): (12.20, 6.73, 6.77, 6.96),
    ("cifar10", "gifd"): (20.4, 10.33, 10.3, 11.15),
    ("cifar100", "gifd"): (21.39, 9.40, 10.3, 10.70),
    ("tiny-imagenet", "gifd"): (14.31, 8.67, 8.63, 9.09),
}
SSIM: dict[tuple[str, str], tuple[float, ...]] = {
    ("cifar10", "ig"): (0.37, 0.02, 0.03, 0.01),
    ("cifar100", "ig"): (0.30, 0.005, 0.001, 0.01),
    ("tiny-imagenet", "ig"): (0.17, 0.002, 0.005, 0.009),
    ("cifar10", "gifd"): (0.57, 0.05, 0.04, 0.04),
    ("cifar100", "gifd"): (0.47, 0.02, 0.04, 0.04),
    ("tiny-imagenet", "gifd"): (0.24, 0.02, 0.02, 0.02),
}
"""Table 1, by data and attack, for each of the defenses in their order."""


def table_1(data: str, defense: str) -> dict[str, dict[str, float]]:
    """What Table 1 says of each attack: ``{attack: {metric: value}}``."""
    at = DEFENSES.index(defense)
    return {
        attack: {"psnr": PSNR[data, attack][at], "ssim": SSIM[data, attack][at]}
        for attack in ATTACKS
    }
