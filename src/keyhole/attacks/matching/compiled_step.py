"""Compiles a whole step: loss, its derivative, the optimiser and the record, as one flat graph.

``torch.compile`` cannot be put on top of gradient matching, because what it compiles cannot be
differentiated twice. So the step is traced after autograd has run: what is recorded are the
operations of the forward pass and of both derivatives, with nothing left to differentiate. That
graph goes to inductor, which fuses the small operations between convolutions and products.

Tracing takes seconds and compiling a minute or two. It pays where many steps follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from keyhole.attacks.matching.engine import Engine, Step
from keyhole.attacks.matching.gradients.matchers import Matcher
from keyhole.attacks.matching.gradients.unfolding import without_writes
from keyhole.attacks.matching.state import KNOWN, State
from keyhole.errors import one_line

Compilation = Literal["auto", "always", "never"]
"""Whether steps are compiled; ``auto``: where it pays."""

PAYS_FROM_STEPS = 5000
"""Steps to come from which compiling pays on a GPU. Measured on an H200 with 128 victims: ResNet-18
takes 132 s to compile and saves 41 ms a step, ``vit-small`` takes 79 s and saves 11 ms."""
PAYS_FROM_VICTIMS = 32
"""Victims at once from which it pays: fewer leave the GPU idle either way."""


def compiling_pays(compilation: Compilation, matcher: Matcher, steps: int, state: State) -> bool:
    """Whether to compile the steps to come.

    The answer depends on nothing that is measured while an attack runs, because a compiled step
    rounds differently: equal commands give equal results.

    Args:
        compilation: What the attack asks for.
        matcher: The matcher of the victims; a loop over victims is never compiled.
        steps: The number of steps to come.
        state: The victims' state.
    """
    if compilation == "never" or matcher.backend == "loop":
        return False
    if compilation == "always":
        return True
    alive = state["alive"]
    return alive.is_cuda and len(alive) >= PAYS_FROM_VICTIMS and steps >= PAYS_FROM_STEPS


def make_compiled_step(
    engine: Engine, state: State, matcher: Matcher
) -> tuple[Step | None, str | None]:
    """A compiled step that changes ``state`` in place, or None and why it cannot be compiled."""
    before = {n: t.clone() for n, t in state.items() if not n.startswith(KNOWN)}
    try:
        graph, inputs = trace_step(engine, state, matcher)
        run = compile_graph(graph, inputs)
        with torch.no_grad():
            run(*inputs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
        return None, f"stepped without compiling: {one_line(error)}"
    finally:
        for name, tensor in before.items():
            state[name].copy_(tensor)

    def step() -> None:
        with torch.no_grad():
            run(*inputs)

    return step, None


def trace_step(engine: Engine, state: State, matcher: Matcher) -> tuple[fx.GraphModule, list[Any]]:
    """The step as one graph of plain operations, and its inputs.

    The inputs are the state's tensors, which the graph changes in place, followed by everything
    else that it reads: weights and target gradients. Tracing takes one step.
    """
    names = list(state)

    def step(*tensors: Tensor) -> Tensor:
        current = dict(zip(names, tensors, strict=True))
        engine.step(current, matcher)
        return current["loss"]

    with without_writes():
        traced = make_fx(step)(*state.values())
    constants = lift_constants(traced)
    return traced, [*state.values(), *constants]


def lift_constants(traced: fx.GraphModule) -> list[Tensor]:
    """Turns the tensors that a graph holds into inputs, and returns them.

    Graphs of the same model and size are then equal whatever the victims' gradients are, and the
    compiler's cache finds them.
    """
    places = [node for node in traced.graph.nodes if node.op == "placeholder"]
    inputs: dict[str, fx.Node] = {}
    for node in list(traced.graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in inputs:
            with traced.graph.inserting_after(places[-1]):
                inputs[node.target] = traced.graph.placeholder(f"constant_{len(inputs)}")
            inputs[node.target].meta.update(node.meta)
            places.append(inputs[node.target])
        node.replace_all_uses_with(inputs[node.target])
        traced.graph.erase_node(node)
    constants = [getattr(traced, name).detach() for name in inputs]
    traced.recompile()
    return constants


def compile_graph(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Compiles a flat graph by inductor, from its cache if it was compiled before.

    The cache asks for a mode in which tensors have shapes only; here all shapes are fixed.
    """
    shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    with torch.no_grad(), quiet_compiler(), tracing(TracingContext(shapes)):
        compiled: Callable[..., Any] = torch._inductor.compile(graph, inputs)
    return compiled


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Hides the compiler's advice to use another precision: ours is chosen."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*TensorFloat32.*")
        yield
