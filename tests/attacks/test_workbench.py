from __future__ import annotations

import torch

from keyhole.attacks.workbench import Bare, Workbench


def test_a_bare_workbench_keeps_nothing_and_never_asks_to() -> None:
    bench: Workbench = Bare()
    bench.save({"x": torch.zeros(1)}, {"begun": 1})
    bench.watch(1, 2, "loss 0.1")
    assert bench.load() is None
    assert not bench.due()
    assert bench.victims_at_once is None
