"""Many victims at once, through failures, interruptions and want of memory."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import InvertingGradients, Reconstruction
from keyhole.attacks.matching import runner
from keyhole.attacks.matching.engine import Engine
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.workbench import Bare, Saved
from keyhole.errors import DoesNotFit
from keyhole.models import build

Clients = Callable[..., list[Any]]
LOOK, ITERATIONS = 5, 20
ATTACK = InvertingGradients(iterations=ITERATIONS, lr=0.1, tv=1e-4)


class Interrupted(Exception):
    pass


class Drawers(Bare):
    """Saves after every look, as if to disk; interrupts the attack at look number ``until``."""

    def __init__(
        self,
        saved: Saved | None = None,
        *,
        victims_at_once: int | None = None,
        until: int | None = None,
    ) -> None:
        self.saved, self.victims_at_once, self.until = saved, victims_at_once, until
        self.looks: list[tuple[int, int, str]] = []

    def load(self) -> Saved | None:
        return self.saved

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.saved = kept, json.loads(json.dumps(facts))

    def due(self) -> bool:
        return True

    def watch(self, done: int, total: int, text: str) -> None:
        self.looks.append((done, total, text))
        if len(self.looks) == self.until:
            raise Interrupted


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Whole batches are counted here; test_threads.py has them shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK", LOOK)


@pytest.fixture(scope="module")
def seen(clients: Clients) -> list[Any]:
    """Five clients of a small model in double precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.GELU(), nn.Linear(24, 10)).double()
    return [c.observation for c in clients(model, [[3], [14], [25], [36], [47]])]


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


def run(
    seen: Sequence[Any], bench: Bare | None = None, attack: InvertingGradients = ATTACK
) -> list[Reconstruction]:
    return list(attack.on_many(seen, bench))


def check_close(found: Sequence[Reconstruction], expected: Sequence[Reconstruction]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.images is not None
        torch.testing.assert_close(one.images, other.images, rtol=1e-6, atol=1e-6)
        assert one.diagnostics == pytest.approx(other.diagnostics, abs=1e-7)


def check_equal(found: Sequence[Reconstruction], expected: Sequence[Reconstruction]) -> None:
    """Bit for bit."""
    for one, other in zip(found, expected, strict=True):
        for a, b in ((one.images, other.images), (one.confidence, other.confidence)):
            assert (a is None and b is None) or torch.equal(a, b)
        assert one.loss_curve == other.loss_curve
        assert [when for when, _ in one.frames] == [when for when, _ in other.frames]
        for (_, a), (_, b) in zip(one.frames, other.frames, strict=True):
            assert torch.equal(a, b)
        assert one.diagnostics == other.diagnostics
        assert one.notes == other.notes


@pytest.fixture(scope="module")
def expected(seen: list[Any]) -> list[Reconstruction]:
    """What becomes of the five when nothing goes wrong; looks do not change it."""
    return run(seen)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_results_do_not_depend_on_how_many_are_attacked_at_once(
    seen: list[Any], expected: list[Reconstruction], sizes: list[int], at_once: int
) -> None:
    found = run(seen, Drawers(victims_at_once=at_once))
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
    bench = Drawers()
    for found in run(seen, bench):
        assert [when for when, _ in found.loss_curve] == [5, 10, 15, 20]
        assert [when for when, _ in found.frames] == [0, 5, 10, 20]
        assert found.loss_curve[-1][1] < found.loss_curve[0][1]
        assert all(frame.shape == (1, 1, 8, 8) for _, frame in found.frames)
        assert found.diagnostics["iterations"] == ITERATIONS
        assert found.diagnostics["loss"] <= min(loss for _, loss in found.loss_curve)
        assert (found.diagnostics["restarts"], found.diagnostics["failed"]) == (0, 0)
    assert [done for done, _, _ in bench.looks] == [0, 5, 10, 15, 20]
    assert {total for _, total, _ in bench.looks} == {ITERATIONS}
    assert bench.looks[-1][2].endswith("5 of 5 victims done")
    assert "0 of 5 victims done" in bench.looks[1][2]


def test_no_more_iterations_count_than_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    monkeypatch.setattr(runner, "LOOK", 50)
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
    problem = Problem.of(seen[0])
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
    bench = Drawers()
    found = run(seen, bench, enough)
    lengths = [int(f.diagnostics["iterations"]) for f in found]
    assert len(set(lengths)) > 2
    assert all(f.diagnostics["loss"] < losses[2] for f in found)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 5
    assert sizes[-1] < 5
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


# Losses that are not finite.


def poison(
    monkeypatch: pytest.MonkeyPatch, victim: int, when: Callable[[Tensor], bool] = lambda _: True
) -> None:
    """Makes one victim's loss NaN in the steps that ``when`` picks by the victims' iterations."""
    loss = Engine.loss

    def poisoned(self: Engine, values: Any, state: dict[str, Tensor], matcher: Any) -> Tensor:
        factor = torch.ones_like(state["loss"])
        if when(state["iterations"]):
            factor[state["victim"] == victim] = math.nan
        return factor * loss(self, values, state, matcher)

    monkeypatch.setattr(Engine, "loss", poisoned)


def at(iteration: int) -> Callable[[Tensor], bool]:
    """When the victim that got furthest has done so many iterations: only once."""
    return lambda iterations: int(iterations.max()) == iteration


@pytest.mark.parametrize("when", [0, 7])
def test_a_victim_whose_loss_breaks_down_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction], when: int
) -> None:
    poison(monkeypatch, 1, at(when))
    found = run(seen)
    check_close([*found[:1], *found[2:]], [*expected[:1], *expected[2:]])
    restarted = found[1]
    assert (restarted.diagnostics["restarts"], restarted.diagnostics["failed"]) == (1, 0)
    assert restarted.diagnostics["iterations"] == ITERATIONS
    assert restarted.images is not None
    assert restarted.images.isfinite().all()
    assert [when for when, _ in restarted.loss_curve] == [5, 10, 15, 20]
    assert [when for when, _ in restarted.frames] == [0, 5, 10, 20]
    assert (restarted.frames[0][1] - expected[1].frames[0][1]).abs().mean() > 0.1


def test_a_victim_whose_loss_breaks_down_again_has_failed(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    poison(monkeypatch, 1)
    found = run(seen)
    check_close([*found[:1], *found[2:]], [*expected[:1], *expected[2:]])
    failed = found[1]
    assert failed.images is None
    assert (failed.diagnostics["restarts"], failed.diagnostics["failed"]) == (1, 1)
    assert failed.diagnostics["images"] == 0


def test_a_trial_that_failed_is_not_taken(monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    poison(monkeypatch, 0)
    found = replace(ATTACK, trials=2)(seen[0])
    assert found.images is not None
    assert found.diagnostics["failed"] == 0


# Memory.


def starve(monkeypatch: pytest.MonkeyPatch, most: int, after: int = 0) -> None:
    """Lets a step run out of memory with more than ``most`` victims, after so many steps."""
    step = Engine.step
    count = iter(range(1_000_000))

    def starved(self: Engine, state: dict[str, Tensor], matcher: Any) -> None:
        if len(state["victim"]) > most and next(count) >= after:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 GiB")
        step(self, state, matcher)

    monkeypatch.setattr(Engine, "step", starved)


@pytest.mark.parametrize("after", [0, 12])
def test_where_memory_runs_out_the_batch_is_halved(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction], after: int
) -> None:
    starve(monkeypatch, 2, after)
    found = run(seen)
    check_close(found, expected)
    assert found[0].notes[0] == "memory ran out with 5 victims at once: went on with 3"
    assert found[0].notes[1] == "memory ran out with 3 victims at once: went on with 2"
    assert len(found[0].notes) == 2


LINUX = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 2048000000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    "error", [RuntimeError(LINUX), RuntimeError("std::bad_alloc"), MemoryError()], ids=repr
)
def test_a_processor_says_otherwise_that_memory_ran_out(
    monkeypatch: pytest.MonkeyPatch,
    seen: list[Any],
    expected: list[Reconstruction],
    error: Exception,
) -> None:
    real = Engine.step

    def starved(self: Engine, state: dict[str, Tensor], matcher: Any) -> None:
        if len(state["victim"]) > 2:
            raise error
        real(self, state, matcher)

    monkeypatch.setattr(Engine, "step", starved)
    found = run(seen, Drawers())
    check_close(found, expected)
    assert any("memory ran out" in note for each in found for note in each.notes)


def test_later_chunks_are_as_small_as_memory_asked_for(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    starve(monkeypatch, 1)
    found = run(seen, Drawers(victims_at_once=2))
    check_close(found, expected)
    assert found[0].notes == ("memory ran out with 2 victims at once: went on with 1",)


def test_a_single_victim_that_does_not_fit_is_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    starve(monkeypatch, 0)
    with pytest.raises(DoesNotFit, match="memory runs out with a single victim") as raised:
        run(seen)
    assert "\n" not in str(raised.value)


def test_a_batch_that_does_not_even_start_is_halved(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    start = Engine.start

    def starved(self: Engine, victims: Sequence[int], *rest: Any) -> Any:
        if len(victims) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return start(self, victims, *rest)

    monkeypatch.setattr(Engine, "start", starved)
    check_close(run(seen), expected)


# Interruptions.


def resumed(
    seen: list[Any], attack: InvertingGradients, until: int, victims_at_once: int | None
) -> list[Reconstruction]:
    """Interrupted at a look and taken up again, until it is through."""
    first = Drawers(victims_at_once=victims_at_once, until=until)
    with pytest.raises(Interrupted):
        run(seen, first, attack)
    return run(seen, Drawers(first.saved, victims_at_once=victims_at_once), attack)


@pytest.mark.parametrize(
    ("victims_at_once", "until"),
    [(None, k) for k in (1, 2, 5)] + [(2, k) for k in (1, 5, 6, 8, 15)],
)
def test_a_run_that_was_interrupted_goes_on_bit_for_bit(
    seen: list[Any], victims_at_once: int | None, until: int
) -> None:
    whole = run(seen, Drawers(victims_at_once=victims_at_once))
    check_equal(resumed(seen, ATTACK, until, victims_at_once), whole)


def misplaced(tensor: Tensor) -> Tensor:
    """The same values at an address that is no multiple of 64, as safetensors may hand them out."""
    size = tensor.element_size()
    room = torch.zeros(tensor.numel() * size + 128, dtype=torch.uint8)
    start = -room.data_ptr() % 64 + size
    placed = room[start : start + tensor.numel() * size].view(tensor.dtype).view(tensor.shape)
    return placed.copy_(tensor)


def test_where_saved_memory_lies_does_not_change_a_bit(clients: Clients) -> None:
    attack = InvertingGradients(iterations=60)
    model = build("mlp", classes=10, channels=1, image_size=8)
    seen = [client.observation for client in clients(model, [[3], [14], [25]])]
    first = Drawers(until=3)
    with pytest.raises(Interrupted):
        run(seen, first, attack)
    assert first.saved is not None
    tensors, facts = first.saved
    moved = {name: misplaced(tensor) for name, tensor in tensors.items()}
    whole = run(seen, Drawers(), attack)
    check_equal(run(seen, Drawers((moved, facts)), attack), whole)


@pytest.fixture(params=["leaving", "restarted", "failed", "split", "several guesses"])
def eventful(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, expected: list[Reconstruction]
) -> Iterator[InvertingGradients]:
    """An attack on which something happens before it is interrupted."""
    if request.param == "leaving":
        losses = sorted(found.diagnostics["loss"] for found in expected)
        yield replace(ATTACK, iterations=120, stop_below=losses[2])
        return
    if request.param == "restarted":
        poison(monkeypatch, 1, at(7))
    elif request.param == "failed":
        poison(monkeypatch, 1)
    elif request.param == "split":
        starve(monkeypatch, 2)
    yield replace(ATTACK, trials=2) if request.param == "several guesses" else ATTACK


@pytest.mark.parametrize("until", [3, 5])
def test_whatever_happened_before_an_interruption_is_remembered(
    seen: list[Any], eventful: InvertingGradients, until: int
) -> None:
    whole = run(seen, Drawers(), eventful)
    check_equal(resumed(seen, eventful, until, None), whole)


def test_a_run_can_be_interrupted_time_and_again(seen: list[Any]) -> None:
    whole = run(seen, Drawers(victims_at_once=3))
    saved, found, rounds = None, None, 0
    while found is None and rounds < 30:
        rounds += 1
        bench = Drawers(saved, victims_at_once=3, until=4)
        try:
            found = run(seen, bench)
        except Interrupted:
            saved = bench.saved
    assert rounds > 4
    assert found is not None
    check_equal(found, whole)


def test_what_was_finished_is_not_computed_again(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    bench = Drawers()
    whole = run(seen, bench)

    def forbidden(*_: Any) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(Engine, "step", forbidden)
    check_equal(run(seen, Drawers(bench.saved)), whole)


def test_what_is_given_is_not_saved(seen: list[Any]) -> None:
    """Labels are known from the start: they are no part of the attack's state."""
    bench = Drawers(until=3)
    with pytest.raises(Interrupted):
        run(seen, bench)
    assert bench.saved is not None
    tensors, facts = bench.saved
    assert tensors
    assert not [name for name in tensors if "given" in name]
    assert facts["begun"] == 1


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
    problem = Problem.of(clients(model, [[3]])[0].observation)
    assert 1 <= runner.on_cpu(problem) <= runner.MOST_ON_CPU


@pytest.mark.parametrize("at_once", [None, 2])
def test_an_attack_out_of_time_ends_with_what_it_has(seen: list[Any], at_once: int | None) -> None:
    bench = Drawers(victims_at_once=at_once)
    bench.deadline = time.monotonic() - 1
    found = run(seen, bench)
    assert [each.diagnostics["iterations"] for each in found] == [1.0] * len(seen)
    assert all(each.images is not None and each.diagnostics["failed"] == 0 for each in found)


def test_a_deadline_far_away_changes_nothing(seen: list[Any]) -> None:
    bench = Drawers()
    bench.deadline = time.monotonic() + 3600
    check_equal(run(seen, bench), run(seen, Drawers()))


def test_a_victim_without_a_finite_loss_has_failed_when_time_runs_out(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(engine: Engine, values: dict[str, Tensor], *_: Any) -> Tensor:
        return values["pixels"].flatten(1).sum(1) * torch.nan

    monkeypatch.setattr(Engine, "loss", lost)
    bench = Drawers()
    bench.deadline = time.monotonic() - 1
    found = run(seen, bench)
    assert all(each.images is None and each.diagnostics["failed"] == 1 for each in found)
