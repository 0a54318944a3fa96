"""Numbers and lists as sentences have them."""

from __future__ import annotations

from collections.abc import Sequence


def count_noun(count: int, noun: str) -> str:
    """A number with its noun.

    >>> count_noun(1, "image"), count_noun(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def join_words(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
