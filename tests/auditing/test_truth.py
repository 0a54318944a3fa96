"""Nothing that an attack is handed leads to the truth."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

import keyhole
from keyhole.attacks import Attack, Checkpointer, Reconstruction
from keyhole.auditing import store_checkpointer
from keyhole.auditing.accumulator import SettingAccumulator
from keyhole.auditing.attack_setting import AttackSetting
from keyhole.auditing.observed_client import ObservedClient
from keyhole.auditing.resolve import ResolvedStage
from keyhole.auditing.run import RunContext
from keyhole.auditing.scoring import Judge
from keyhole.auditing.store import Store
from keyhole.data import ImageSet, load
from keyhole.threat import Observation

SECRETS = (
    ResolvedStage,
    ObservedClient,
    RunContext,
    ImageSet,
    Judge,
    AttackSetting,
    SettingAccumulator,
    Store,
)
DEAD_ENDS = (ModuleType, type, BuiltinFunctionType, CodeType, str, bytes, int, float)
HANDED: list[tuple[Sequence[Observation], Checkpointer]] = []


@dataclass(frozen=True, kw_only=True)
class Spy(Attack):
    """Notes what it is handed, and finds nothing."""

    name: ClassVar[str] = "spy"
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    told: bool = False

    @property
    def given(self) -> frozenset[str]:
        return frozenset({"labels", "masks"} if self.told else ())

    def incompatibilities(self, observation: Observation) -> list[str]:
        return []

    def reads(self, observation: Observation) -> set[str]:
        return set()

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return Reconstruction()

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        HANDED.append((observations, checkpointer))
        return super().stream(observations, checkpointer)


def reachable(start: object) -> Iterator[object]:
    """Everything that can be got at from an object by attributes, items and closures."""
    seen: set[int] = set()
    waiting = [start]
    kept = []  # so that no id is used twice
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, DEAD_ENDS) or found is None:
            continue
        seen.add(id(found))
        kept.append(found)
        yield found
        waiting += next_to(found)


def next_to(found: object) -> list[Any]:
    if isinstance(found, FunctionType):  # not its module
        return [found.__closure__, found.__defaults__, found.__kwdefaults__, found.__dict__]
    if isinstance(found, Tensor):
        return [found._base, found.grad_fn, found.__dict__, found._backward_hooks]
    return gc.get_referents(found)


def shows(tensor: Tensor, truth: Tensor) -> bool:
    """Whether these images lie anywhere in the memory behind a tensor."""
    if tensor.layout != torch.strided or not tensor.is_floating_point():
        return False
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    wanted = truth.flatten().to(whole)
    rare = int(wanted.abs().argmax())
    last = len(whole) - len(wanted)
    starts = (
        (whole[rare : rare + last + 1] == wanted[rare]).nonzero().flatten() if last >= 0 else []
    )
    return any(torch.equal(whole[i : i + len(wanted)], wanted) for i in map(int, starts))


def secrets_near(start: object, truth: Sequence[Tensor]) -> list[str]:
    found = []
    for each in reachable(start):
        if isinstance(each, SECRETS):
            found.append(type(each).__name__)
        if isinstance(each, Tensor) and any(shows(each, image) for image in truth):
            found.append(f"an image, in a tensor {tuple(each.shape)}")
    return found


@pytest.mark.parametrize("defense", ["none", "dropout", "csvar", "gaussian(sigma=0.01)"])
@pytest.mark.parametrize("told", [False, True])
def test_no_attack_can_reach_the_truth(tmp_path: Path, defense: str, told: bool) -> None:
    HANDED.clear()
    result = keyhole.audit(
        model="mlp",
        data="digits",
        defenses=[defense],
        attacks=[Spy(told=told)],
        victims=2,
        batch_size=2,
        out=tmp_path,
        repeats=2,
    )
    data = load("digits")
    indices = [i for batch in result.findings[0].recipe["indices"] for i in batch]
    images = data.images(indices)
    truth = [*images, *data.normalise(images)]
    assert HANDED
    for handed in HANDED:
        assert secrets_near(handed, truth) == []


def test_the_search_finds_what_is_hidden(tmp_path: Path) -> None:
    """A checkpointer that held the store, a closure, an attribute, a view of greater memory."""
    images = load("digits").images([3, 4])
    store = Store.open(tmp_path, {})
    store.release()

    def remembers() -> Tensor:
        return images

    held = store_checkpointer.StoreCheckpointer(store.state("a"), store_checkpointer.Progress)  # type: ignore[arg-type]
    assert secrets_near(held, [*images]) == []
    held.store = store  # type: ignore[attr-defined]
    assert secrets_near(held, [*images]) == ["Store"]
    assert secrets_near([remembers], [images[1]])
    assert secrets_near({"x": torch.cat([torch.zeros(5), images.flatten()])[:5]}, [images[1]])
    assert not secrets_near({"x": torch.zeros(500)}, [images[1]])
