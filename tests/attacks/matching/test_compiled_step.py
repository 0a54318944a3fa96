"""A step as one flat graph: the same step, wherever it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from keyhole.attacks import DropoutInversion, InvertingGradients, Matching
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.attacks.matching import compiled_step
from keyhole.attacks.matching.compiled_step import (
    PAYS_FROM_STEPS,
    PAYS_FROM_VICTIMS,
    compiling_pays,
    make_compiled_step,
    trace_step,
)
from keyhole.attacks.matching.runner import Runner
from keyhole.attacks.matching.state import State
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.defenses import Dropout
from keyhole.models import build

Clients = Callable[..., list[Any]]
ATTACKS = [InvertingGradients(iterations=9), DropoutInversion(iterations=9)]


def start(clients: Clients, name: str, attack: Matching) -> tuple[Runner, State, Any]:
    model = build(name, classes=10, channels=1, image_size=8)
    if name == "vit-small":
        model.blocks = model.blocks[:1]
    victims = clients(model, [[3], [4]], Dropout(p=0.25))
    group = VictimGroup(attack, [victim.observation for victim in victims])
    runner = group.make_runner(attack.iterations, NullCheckpointer(), group.known_values)
    return runner, runner._start(range(2), attempt=0), runner.make_matcher(range(2))


def copy_of(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def run_graph(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """What the compiler makes, without a compiler."""
    return graph


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
@pytest.mark.parametrize("name", ["mlp", "lenet", "vit-small"])
def test_the_traced_step_is_the_step(clients: Clients, name: str, attack: Matching) -> None:
    runner, state, matcher = start(clients, name, attack)
    graph, inputs = trace_step(runner.engine, copy_of(state), matcher)
    assert not [node for node in graph.graph.nodes if node.op == "get_attr"]
    constants = inputs[len(state) :]
    plain, traced = copy_of(state), copy_of(state)
    for _ in range(3):
        runner.engine.step(plain, matcher)
        with torch.no_grad():
            graph(*traced.values(), *constants)
    assert float((plain["loss"] - state["loss"]).abs().min()) > 0
    for key, tensor in plain.items():
        torch.testing.assert_close(traced[key], tensor, rtol=1e-4, atol=1e-6)


def test_the_same_graph_serves_other_victims(clients: Clients) -> None:
    """Target gradients are inputs: another chunk's graph is equal, so that the cache finds it."""
    runner, state, matcher = start(clients, "mlp", ATTACKS[0])
    swapped = torch.tensor([1, 0])
    others = {name: tensor[swapped] for name, tensor in state.items()}
    code, inputs = trace_step(runner.engine, copy_of(state), matcher)
    other_code, other_inputs = trace_step(runner.engine, others, matcher.select(swapped))
    assert code.code == other_code.code
    assert [t.shape for t in inputs] == [t.shape for t in other_inputs]


def test_making_it_leaves_the_state_as_it_was(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_step, "compile_graph", run_graph)
    runner, state, matcher = start(clients, "mlp", ATTACKS[0])
    before = copy_of(state)
    step, note = make_compiled_step(runner.engine, state, matcher)
    assert note is None
    assert step is not None
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    step()
    assert (state["iterations"] == 1).all()


def test_what_cannot_be_compiled_is_stepped_plainly_and_noted(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(compiled_step, "compile_graph", fails)
    victims = clients(build("mlp", classes=10, channels=1, image_size=8), [[3]])
    observations = [victim.observation for victim in victims]
    (plain,) = InvertingGradients(iterations=4).on_many(observations)
    (found,) = InvertingGradients(iterations=4, compiled="always").on_many(observations)
    assert found.notes == ("stepped without compiling: no compiler",)
    assert found.diagnostics["loss"] == plain.diagnostics["loss"]


def test_memory_that_runs_out_is_the_runners_to_handle(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(compiled_step, "compile_graph", fails)
    runner, state, matcher = start(clients, "mlp", ATTACKS[0])
    with pytest.raises(torch.OutOfMemoryError):
        make_compiled_step(runner.engine, state, matcher)


class Somewhere:
    """A matcher with nothing but its name."""

    def __init__(self, backend: str) -> None:
        self.backend = backend


def pays(compilation: Any, backend: str, steps: int, victims: int, cuda: bool) -> bool:
    class Alive:
        is_cuda = cuda

        def __len__(self) -> int:
            return victims

    return compiling_pays(compilation, Somewhere(backend), steps, {"alive": Alive()})  # type: ignore[arg-type,dict-item]


def test_compiling_pays_on_a_gpu_for_many_steps_of_many_victims() -> None:
    many, long = PAYS_FROM_VICTIMS, PAYS_FROM_STEPS
    assert pays("auto", "factored", long, many, True)
    assert not pays("auto", "factored", long, many, False)
    assert not pays("auto", "factored", long - 1, many, True)
    assert not pays("auto", "factored", long, many - 1, True)
    assert not pays("never", "factored", long, many, True)
    assert pays("always", "vmap", 1, 1, False)
    assert not pays("always", "loop", long, many, True)


def test_chunks_to_come_are_those_of_victims_not_yet_started(clients: Clients) -> None:
    runner, state, _ = start(clients, "mlp", ATTACKS[0])
    assert runner._chunks_to_come(state) == 1
    runner.victims = 8  # six more, in chunks of two
    assert runner._chunks_to_come(state) == 4


@pytest.mark.slow
def test_a_compiled_attack_sees_what_a_plain_one_sees(clients: Clients) -> None:
    victims = clients(build("mlp", classes=10, channels=1, image_size=8), [[3], [4]])
    observations = [victim.observation for victim in victims]
    plain = InvertingGradients(iterations=20).on_many(observations)
    found = InvertingGradients(iterations=20, compiled="always").on_many(observations)
    for one, other in zip(plain, found, strict=True):
        assert other.notes == ()
        assert other.diagnostics["loss"] == pytest.approx(one.diagnostics["loss"], rel=1e-3)
