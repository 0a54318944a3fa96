"""How much memory tensors take on a CPU, counted as they come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of tensors that are made inside it and still alive.

    Not by the process's memory, which holds what was freed before, but storage by storage: equal
    work gives equal bytes. What operations take inside, and give back at their end, is not seen.

    >>> import torch
    >>> with LiveMemory() as memory:
    ...     product = torch.ones(500, 500) @ torch.ones(500, 500)
    >>> memory.peak, memory.live
    (3000000, 1000000)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._seen: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = {_key(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        made = func(*args, **kwargs)
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and _key(each) not in given:
                self._add(each)
        return made

    def _add(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen[key] = weakref.ref(storage, lambda _: self._remove(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _remove(self, key: int, size: int) -> None:
        self.live -= size
        del self._seen[key]


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def measure_peak(work: Callable[[], object]) -> int:
    """The bytes that tensors of some work took at most at once."""
    memory = LiveMemory()
    with memory:
        work()
    return memory.peak
