from __future__ import annotations

import torch

from keyhole.attacks.checkpointer import Checkpointer, NullCheckpointer


def test_a_bare_workbench_keeps_nothing_and_never_asks_to() -> None:
    checkpointer: Checkpointer = NullCheckpointer()
    checkpointer.save({"x": torch.zeros(1)}, {"begun": 1})
    checkpointer.watch(1, 2, "loss 0.1")
    assert checkpointer.load() is None
    assert not checkpointer.due()
    assert checkpointer.victims_at_once is None
