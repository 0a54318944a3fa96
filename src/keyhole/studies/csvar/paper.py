"""The figures of Chen et al. 2025 (CSVAR) that ours stand beside."""

from __future__ import annotations

DEFENSES = ("none", "image-noise", "csvar")
WORDS = {"none": "vanilla", "image-noise": "noise (DP)", "csvar": "CSVAR"}
NETWORKS = {"resnet": "ResNet-50", "shufflenet": "ShuffleNet", "mobilenet": "MobileNet"}
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "orl-faces": "faces"}

TABLE_1: dict[tuple[str, str, str], float] = {
    ("mnist", "resnet", "none"): 97.42,
    ("mnist", "resnet", "image-noise"): 97.09,
    ("mnist", "resnet", "csvar"): 97.39,
    ("mnist", "shufflenet", "none"): 96.88,
    ("mnist", "shufflenet", "image-noise"): 95.44,
    ("mnist", "shufflenet", "csvar"): 95.67,
    ("mnist", "mobilenet", "none"): 97.08,
    ("mnist", "mobilenet", "image-noise"): 96.92,
    ("mnist", "mobilenet", "csvar"): 97.03,
    ("cifar10", "resnet", "none"): 84.24,
    ("cifar10", "resnet", "image-noise"): 80.49,
    ("cifar10", "resnet", "csvar"): 84.17,
    ("cifar10", "shufflenet", "none"): 85.09,
    ("cifar10", "shufflenet", "image-noise"): 82.33,
    ("cifar10", "shufflenet", "csvar"): 83.71,
    ("cifar10", "mobilenet", "none"): 85.18,
    ("cifar10", "mobilenet", "image-noise"): 80.03,
    ("cifar10", "mobilenet", "csvar"): 84.67,
    ("orl-faces", "resnet", "none"): 89.75,
    ("orl-faces", "resnet", "image-noise"): 65.50,
    ("orl-faces", "resnet", "csvar"): 85.25,
    ("orl-faces", "shufflenet", "none"): 85.50,
    ("orl-faces", "shufflenet", "image-noise"): 77.25,
    ("orl-faces", "shufflenet", "csvar"): 82.74,
    ("orl-faces", "mobilenet", "none"): 86.75,
    ("orl-faces", "mobilenet", "image-noise"): 78.75,
    ("orl-faces", "mobilenet", "csvar"): 82.75,
}
"""Accuracy in percent by data, network and defense."""

AUC = {"none": 0.70, "image-noise": 0.66, "csvar": 0.60}
"""Of membership inference, Figure 7; Figure 1: about .5 moderately trained, .70 overfitted."""
