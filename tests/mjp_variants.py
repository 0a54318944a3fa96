"""The rows of Table 2 of the MJP paper, from DeiT as it is (A) to MJP as published (J)."""

from __future__ import annotations

from keyhole.defenses import Mjp

VARIANTS: dict[str, Mjp] = {
    "A": Mjp(gamma=0, positions="own", dal="none"),
    "B": Mjp(gamma=0, positions="none", dal="none"),
    "C": Mjp(gamma=0, positions="own", dal="none", jigsaw="pixels"),
    "D": Mjp(gamma=0, positions="own", dal="nln"),
    "E": Mjp(positions="own", dal="none"),
    "F": Mjp(positions="index", dal="none"),
    "G": Mjp(dal="none"),
    "H": Mjp(dal="pca"),
    "I": Mjp(dal="ln"),
    "J": Mjp(),
}
