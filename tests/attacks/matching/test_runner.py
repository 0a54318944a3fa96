"""Many victims at once: results, what is noted, and who leaves the batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import Reconstruction
from keyhole.attacks.matching import chunk_size, runner
from keyhole.attacks.matching.engine import Engine
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.models import build
from matching_runs import (
    ATTACK,
    ITERATIONS,
    Clients,
    MemoryCheckpointer,
    check_close,
    run,
)

pytestmark = pytest.mark.usefixtures("one_thread", "look_often")


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many victims each step moved."""
    noted: list[int] = []
    step = Engine.step

    def spy(self: Engine, state: dict[str, Tensor], matcher: Any) -> None:
        noted.append(len(state["victim"]))
        step(self, state, matcher)

    monkeypatch.setattr(Engine, "step", spy)
    return noted


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_results_do_not_depend_on_how_many_are_attacked_at_once(
    seen: list[Any], expected: list[Reconstruction], sizes: list[int], at_once: int
) -> None:
    found = run(seen, MemoryCheckpointer(victims_at_once=at_once))
    check_close(found, expected)
    assert max(sizes) == at_once


def test_results_belong_to_their_clients_in_any_order(
    seen: list[Any], expected: list[Reconstruction]
) -> None:
    check_close(run(seen[::-1]), expected[::-1])
    check_close([ATTACK(observation) for observation in seen[2:4]], expected[2:4])


def test_another_seed_or_client_number_makes_another_first_guess(
    seen: list[Any], expected: list[Reconstruction]
) -> None:
    reseeded = replace(ATTACK, seed=1)(seen[0])
    renumbered = ATTACK(replace(seen[0], client=77))
    for other in (reseeded, renumbered):
        assert other.images is not None
        assert (other.frames[0][1] - expected[0].frames[0][1]).abs().mean() > 0.1


def test_what_was_seen_on_the_way_is_noted(seen: list[Any]) -> None:
    checkpointer = MemoryCheckpointer()
    for found in run(seen, checkpointer):
        assert [when for when, _ in found.loss_curve] == [5, 10, 15, 20]
        assert [when for when, _ in found.frames] == [0, 5, 10, 20]
        assert found.loss_curve[-1][1] < found.loss_curve[0][1]
        assert all(frame.shape == (1, 1, 8, 8) for _, frame in found.frames)
        assert found.diagnostics["iterations"] == ITERATIONS
        assert found.diagnostics["loss"] <= min(loss for _, loss in found.loss_curve)
        assert (found.diagnostics["restarts"], found.diagnostics["failed"]) == (0, 0)
    assert [done for done, _, _ in checkpointer.looks] == [0, 5, 10, 15, 20]
    assert {total for _, total, _ in checkpointer.looks} == {ITERATIONS}
    assert checkpointer.looks[-1][2].endswith("5 of 5 victims done")
    assert "0 of 5 victims done" in checkpointer.looks[1][2]


def test_no_more_iterations_count_than_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    monkeypatch.setattr(runner, "CHECK_INTERVAL", 50)
    for one, other in zip(run(seen), expected, strict=True):
        assert torch.equal(one.images, other.images)
        assert one.diagnostics == other.diagnostics


def test_the_best_guess_is_returned_and_not_the_last(seen: list[Any]) -> None:
    """A rate that throws the guess about makes the last one worse than the best."""
    wild = replace(ATTACK, lr=2.0, patience=1000)
    found = wild(seen[0])
    losses = [loss for _, loss in found.loss_curve]
    assert found.diagnostics["loss"] < losses[-1]
    assert found.images is not None
    problem = MatchingProblem.from_observation(seen[0])
    weights = {n: p.clone().requires_grad_() for n, p in problem.model.named_parameters()}
    logits = torch.func.functional_call(problem.model, weights, (found.images,))
    task = nn.functional.cross_entropy(logits, seen[0].knowledge.labels)
    gradient = torch.autograd.grad(task, list(weights.values()))
    flat = [torch.cat([g.flatten() for g in gradients])
            for gradients in (gradient, seen[0].update.gradient().values())]  # fmt: skip
    x = found.images
    variation = x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
    loss = 1 - torch.cosine_similarity(*flat, dim=0) + 1e-4 * variation
    assert loss.item() == pytest.approx(found.diagnostics["loss"], abs=1e-6)


# Victims that are done leave.


def test_victims_that_are_done_leave_the_batch(
    seen: list[Any], expected: list[Reconstruction], sizes: list[int]
) -> None:
    losses = sorted(found.diagnostics["loss"] for found in expected)
    enough = replace(ATTACK, iterations=200, stop_below=losses[2])
    checkpointer = MemoryCheckpointer()
    found = run(seen, checkpointer, enough)
    lengths = [int(f.diagnostics["iterations"]) for f in found]
    assert len(set(lengths)) > 2
    assert all(f.diagnostics["loss"] < losses[2] for f in found)
    probe, *steps = sizes
    assert probe == 2
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 5
    assert steps[-1] < 5
    check_close(found, [enough(observation) for observation in seen])


def test_a_victim_without_progress_is_done_after_its_drops(seen: list[Any]) -> None:
    stuck = replace(ATTACK, iterations=400, lr=1.0, patience=3, drops=2)
    found = run(seen, None, stuck)
    lengths = [f.diagnostics["iterations"] for f in found]
    assert max(lengths) < 400
    assert len(set(lengths)) > 1


# First guesses.


def test_of_several_first_guesses_the_one_of_least_loss_is_taken(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    runs: list[runner.Runner] = []
    whole = runner.Runner.run

    def spy(self: runner.Runner) -> None:
        whole(self)
        runs.append(self)

    monkeypatch.setattr(runner.Runner, "run", spy)
    found = run(seen[:2], None, replace(ATTACK, trials=3))
    outcomes = runs[0].outcomes
    assert sorted(outcomes) == list(range(6))
    for number, result in enumerate(found):
        mine = {v: outcomes[v] for v in range(3 * number, 3 * number + 3)}
        losses = [outcome.loss for outcome in mine.values()]
        assert len(set(losses)) == 3
        best = min(mine.values(), key=lambda outcome: outcome.loss)
        assert result.diagnostics["loss"] == best.loss == min(losses)
        assert torch.equal(result.images, best.best["pixels"])
        assert losses[0] == pytest.approx(expected[number].diagnostics["loss"], abs=1e-7)


# What is left as it was.


def test_an_attack_leaves_the_server_and_the_generator_as_they_were(
    seen: list[Any], same_rng: Callable[[], bool]
) -> None:
    model = seen[0].model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run(seen[:1])
    assert same_rng()
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize("name", ["mlp", "vit-small", "lenet"])
def test_the_processor_is_given_a_sensible_number_of_victims(clients: Clients, name: str) -> None:
    model = build(name, classes=10, channels=1, image_size=8)
    problem = MatchingProblem.from_observation(clients(model, [[3]])[0].observation)
    assert 1 <= chunk_size.cpu_chunk_size(problem) <= chunk_size.MAX_ON_CPU


def test_a_finding_says_how_many_victims_a_gpu_took_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1_000_000_000, 2_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 10_000_000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 50_000_000)
    for name in ("reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    steps: list[int] = []
    assert chunk_size.gpu_chunk_size(lambda: steps.append(1), 2) == (40, 20_000_000.0)
    assert (len(steps), len(freed)) == (1, 2)
    said = "40 victims at once, about 20 MB of GPU memory each (measured)"
    assert chunk_size.describe_chunk(40, 20_000_000.0) == said


@pytest.mark.parametrize(("iterations", "measured"), [(99, False), (100, True)])
def test_a_finding_says_what_a_victim_takes_on_a_processor(
    seen: list[Any], iterations: int, measured: bool
) -> None:
    found = run(seen[:2], None, replace(ATTACK, iterations=iterations, patience=1000))
    notes = [note for note in found[0].notes if "at once" in note]
    assert len(notes) == measured
    if measured:
        assert re.fullmatch(
            r"2 victims at once, about [\d.]+ MB of memory each \(measured\)", *notes
        )


def test_what_is_measured_decides_how_many_fit(clients: Clients) -> None:
    model = build("lenet", classes=10, channels=1, image_size=8)
    problem = MatchingProblem.from_observation(clients(model, [[3]])[0].observation)
    assert chunk_size.cpu_chunk_size(problem, 1.0) > 1 == chunk_size.cpu_chunk_size(problem, 1e13)
