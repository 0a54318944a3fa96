"""The figures of Ren et al. 2023 that ours stand beside (ImageNet-1K, 300 epochs)."""

from __future__ import annotations

GAMMAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)

TABLE_1: dict[str, tuple[float | None, ...]] = {
    "long-deit-A": (79.8, 16.21, 64.3),
    "long-deit-J": (80.5, 8.96, 82.9),
    "resnet-plain": (79.3, 11.77, 51.5),
    "resnet-jp": (79.4, 7.11, 69.3),
    "swin-plain": (81.3, 15.49, 41.5),
    "swin-jp": (81.3, 12.36, 66.9),
}
"""Top-1, difference of features, consistency; DeiT-S, ResNet-50 and Swin-T there."""

TABLE_2: dict[str, tuple[str, float, float]] = {
    "A": ("DeiT", 79.8, 64.3),
    "B": ("no position embeddings", 77.5, 100.0),
    "C": ("patches and pixels shuffled", 74.9, 74.8),
    "D": ("DAL", 80.0, 64.0),
    "E": ("jigsaw", 79.2, 73.8),
    "F": ("jigsaw, index embeddings", 79.9, 79.6),
    "G": ("jigsaw, unknown position", 80.1, 83.8),
    "H": ("G and DAL (PCA)", 79.9, 83.4),
    "I": ("G and DAL (LN)", 80.0, 83.8),
    "J": ("G and DAL (NLN): MJP", 80.5, 82.9),
}

TABLE_3: dict[float, tuple[float, float, float]] = {
    0.0: (80.0, 16.56, 64.0),
    0.1: (80.5, 8.96, 82.9),
    0.3: (80.3, 6.36, 88.1),
    0.5: (80.4, 5.23, 90.5),
    0.7: (80.2, 4.39, 92.3),
    0.9: (80.3, 3.97, 93.1),
}

TABLE_5: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("a DeiT-S", (0.0350, 0.0057, 18.94, 0.5182, 0.3767)),
    ("a w/o PE", (0.0379, 0.0082, 20.22, 0.5912, 0.2692)),
    ("a MJP", (0.1055, 0.0166, 11.52, 0.4053, 0.6545)),
    ("b DeiT-S", (0.0391, 0.0024, 17.60, 0.5991, 0.3355)),
    ("b w/o PE", (0.0379, 0.0025, 20.25, 0.6655, 0.2370)),
    ("b MJP", (0.1043, 0.0059, 11.66, 0.4493, 0.6519)),
    ("c MJP", (0.1043, 0.0059, 11.66, 0.4493, 0.6519)),
    ("d MJP", (0.1706, 0.0338, 8.07, 0.0875, 0.8945)),
)

TABLE_7 = {"A": (54.61, 68.55, 77.95, 85.54, 90.74), "J": (46.74, 58.36, 69.10, 78.13, 84.55)}
TABLE_8 = {"A": (0.945, 0.076), "I": (0.566, 0.042), "J": (1.301, 0.134)}
