"""A defense of one's own that returns no update is told so in one line, by its own name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from keyhole import Update
from keyhole.defenses import ClientSide, Defense
from keyhole.errors import BadUpdate


class Returns(Defense):
    """Returns what it was made with."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def on_update(self, update: Update, side: ClientSide | None = None) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"w": torch.ones(2, 2)}, "Returns' returned a dict from on_update, not an Update"),
        (None, "Returns' returned a NoneType from on_update, not an Update"),
        (Update({"w": torch.ones(4)}), r"returned 'w' with shape \(4,\): it has to be \(2, 2\)"),
    ],
)
def test_what_is_no_update_like_the_given_one_is_refused(returned: Any, words: str) -> None:
    with pytest.raises(BadUpdate, match=words):
        Returns(returned).on_update(Update({"w": torch.ones(2, 2)}))


@pytest.mark.parametrize("names", [(), ("w",), ("w", "b")])
def test_tensors_may_be_left_out(names: tuple[str, ...]) -> None:
    given = Update({"w": torch.ones(2, 2), "b": torch.ones(2)})
    kept = Update({name: given.change[name] for name in names})
    assert Returns(kept).on_update(given) is kept
