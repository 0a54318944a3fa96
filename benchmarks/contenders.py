"""What ``engine.py`` times: Keyhole's engine, a plain PyTorch loop, and breaching 0.1.2.

All attack the same clients: one 32 px colour image each, 10 classes, the label known. A contender
is made for one :class:`Case` and then takes as many iterations as it is told; setting up is never
timed with them.
"""

from __future__ import annotations

import copy
import importlib.metadata
import platform
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol

import torch  # before keyhole, which would settle for all how threads wait
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks import ATTACKS, Matching
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.attacks.matching.allocator import keep_memory
from keyhole.attacks.matching.compiled_step import Compilation
from keyhole.attacks.matching.precision import Precision, use_precision
from keyhole.attacks.matching.runner import Runner
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.data import ImageSet
from keyhole.defenses import Dropout, NoDefense
from keyhole.errors import KeyholeError, one_line
from keyhole.federation import train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server

CLASSES, SIZE, CLIENTS = 10, 32, 128
LR, TV, DROP_RATE, MASK_WEIGHT = 0.1, 1e-5, 0.25, 1e-4
"""What Keyhole's own attacks default to; the rivals are set alike."""
INSTALL = "pip install breaching==0.1.2"
CONFIGURATION = ("_default_optimization_attack", "invertinggradients")
"""Breaching's files of the attack's settings, the later over the earlier."""

IMAGES = ImageSet(
    name="noise",
    pixels=lambda indices: torch.stack([draw_image(index) for index in indices]),
    labels=torch.arange(CLIENTS) % CLASSES,
    classes=tuple(str(c) for c in range(CLASSES)),
    size=(SIZE, SIZE),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.247, 0.2435, 0.2616),
)


def draw_image(index: int) -> Tensor:
    """An image that needs no files: how fast an attack is does not depend on what it sees."""
    draw = generator(0, "image", index)
    return torch.randint(256, (3, SIZE, SIZE), generator=draw, dtype=torch.uint8)


@dataclass(frozen=True)
class Case:
    """What is attacked, and how."""

    model: str
    attack: Literal["ig", "dia"]
    device: str
    """``cpu`` or ``cuda``; ``auto`` becomes one of them."""
    precision: Precision
    victims: int | None
    """At once, in the engine; None: as many as it chooses itself."""
    compiled: Compilation = "never"
    """Whether the engine compiles its step."""

    def on_device(self) -> Case:
        """The same on a device that exists."""
        if self.device == "auto":
            return replace(self, device="cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise CannotRun("there is no CUDA device: pass --device cpu")
        return self


class CannotRun(Exception):
    """Why a contender does not take part."""


class Contender(Protocol):
    """Something that attacks."""

    facts: dict[str, Any]

    def advance(self, count: int) -> None:
        """Takes so many iterations."""


def observe(case: Case, clients: int) -> list[Observation]:
    """What the server saw of the first so many clients."""
    defense = Dropout(p=DROP_RATE) if case.attack == "dia" else NoDefense()
    model = build(case.model, classes=CLASSES, channels=3, image_size=SIZE, seed=0).to(case.device)
    server = Server(model)
    observations = []
    for client in range(clients):
        labels = IMAGES.labels[[client % CLIENTS]]
        update, _ = train_client(
            model,
            IMAGES.images([client % CLIENTS]).to(case.device),
            labels.to(case.device),
            data=IMAGES,
            defense=defense,
            generator=generator(0, "client", client),
        )
        knowledge = Knowledge(
            shape=IMAGES.shape,
            classes=CLASSES,
            mean=IMAGES.mean,
            std=IMAGES.std,
            labels=labels,
            defense=defense,
        )
        observations.append(server.receive(update, knowledge, client=client))
    return observations


class KeyholeEngine:
    """Many victims at once, stepped as :class:`keyhole.attacks.matching.runner.Runner` does."""

    def __init__(self, case: Case) -> None:
        attack = ATTACKS.parse(
            f"{case.attack}(precision={case.precision!r}, compiled={case.compiled!r})"
        )
        assert isinstance(attack, Matching)
        victims = case.victims
        if victims is None:
            victims = make_runner(attack, observe(case, 2))._choose_chunk_size(range(CLIENTS))
        observations = observe(case, victims)
        began = time.perf_counter()
        watch_memory(case.device)
        runner = make_runner(attack, observations)
        everyone = range(victims)
        matcher = runner.make_matcher(everyone)
        state = runner._start(everyone, attempt=0)
        self.advance = runner._make_stepper(state, matcher, attack.iterations)
        self.facts: dict[str, Any] = {
            "victims": victims,
            "backend": matcher.backend,
            "notes": runner.notes,
            "setup_seconds": time.perf_counter() - began,
            "megabytes_per_victim": most_memory(case.device, victims),
        }


def watch_memory(device: str) -> None:
    """From here on the most memory that a GPU holds is remembered."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def most_memory(device: str, victims: int) -> float | None:
    """The most memory held since then, in megabytes for each victim; None on a CPU."""
    return torch.cuda.max_memory_allocated() / victims / 1e6 if device == "cuda" else None


def make_runner(attack: Matching, observations: Sequence[Observation]) -> Runner:
    """What runs ``attack`` on ``observations``, as the attack itself makes it."""
    group = VictimGroup(attack, observations)
    return group.make_runner(attack.iterations, NullCheckpointer(), group.known_values)


class PlainLoop:
    """One victim, by nothing but PyTorch: what one writes down from the papers."""

    def __init__(self, case: Case) -> None:
        (observation,) = observe(case, 1)
        self.facts: dict[str, Any] = {}
        self.model = copy.deepcopy(observation.model).train().requires_grad_()
        self.weights = list(self.model.parameters())
        seen = observation.update.gradient()
        self.target = [seen[name] for name, _ in self.model.named_parameters()]
        self.length = torch.stack([t.square().sum() for t in self.target]).sum().sqrt()
        self.low, self.high = observation.knowledge.box(self.target[0])
        assert observation.knowledge.labels is not None
        self.label = observation.knowledge.labels.to(case.device)
        self.half = torch.autocast(case.device, torch.bfloat16, enabled=case.precision == "bf16")
        self.image = torch.randn(1, *IMAGES.shape, device=case.device, requires_grad=True)
        self.masks = replace_dropouts(self.model, self.image) if case.attack == "dia" else []
        self.optimiser = torch.optim.Adam([self.image, *self.masks], lr=LR)

    def advance(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        with self.half:
            loss = F.cross_entropy(self.model(self.image), self.label)
        gradient = torch.autograd.grad(loss, self.weights, create_graph=True)
        dots = [(g * t).sum() for g, t in zip(gradient, self.target, strict=True)]
        squares = [g.square().sum() for g in gradient]
        lengths = torch.stack(squares).sum().sqrt() * self.length
        distance = 1 - torch.stack(dots).sum() / lengths
        distance = distance + TV * (
            self.image.diff(dim=-2).abs().mean() + self.image.diff(dim=-1).abs().mean()
        )
        for mask in self.masks:
            distance = distance + MASK_WEIGHT * (1 - mask.mean() - DROP_RATE).abs()
        unknowns = [self.image, *self.masks]
        for unknown, found in zip(unknowns, torch.autograd.grad(distance, unknowns), strict=True):
            unknown.grad = found
        assert self.image.grad is not None
        self.image.grad.sign_()
        self.optimiser.step()
        with torch.no_grad():
            self.image.clamp_(self.low, self.high)
            for mask in self.masks:
                mask.clamp_(0, 1)


class OptimisedMask(nn.Module):
    """Stands in a dropout's place and multiplies by a mask that can be optimised."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.empty_like(x).bernoulli_(1 - DROP_RATE).requires_grad_()
        return x * self.mask / (1 - DROP_RATE)


def replace_dropouts(model: nn.Module, image: Tensor) -> list[Tensor]:
    """Puts a :class:`OptimisedMask` in place of every dropout of ``model``."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, OptimisedMask())
    with torch.no_grad():
        model(image)
    found = [m.mask for m in model.modules() if isinstance(m, OptimisedMask)]
    return [mask for mask in found if mask is not None]


class Breaching:
    """One victim, by breaching's attack "inverting gradients" as its own files configure it.

    Of the settings only the rate and the weight of total variation are ours. Only its loop is
    timed: copying models and scoring the outcome are left out.
    """

    def __init__(self, case: Case) -> None:
        if case.attack != "ig":
            raise CannotRun("breaching has no attack that seeks dropout masks")
        try:
            with warnings.catch_warnings(action="ignore"):
                import breaching
                from breaching.attacks import prepare_attack
                from omegaconf import OmegaConf
        except ImportError as error:
            raise CannotRun(f"{one_line(error)}: {INSTALL}") from None
        self.facts: dict[str, Any] = {"version": importlib.metadata.version("breaching")}
        (observation,) = observe(case, 1)
        files = Path(breaching.__file__).parent / "config" / "attack"
        theirs = [OmegaConf.load(files / f"{name}.yaml") for name in CONFIGURATION]
        ours = {
            "optim": {"step_size": LR},
            "regularization": {"total_variation": {"scale": TV}},
            "impl": {"mixed_precision": case.precision == "bf16"},
        }
        setup = {"device": torch.device(case.device), "dtype": torch.float32}
        self.config = OmegaConf.merge(*theirs, ours)
        model = copy.deepcopy(observation.model).requires_grad_()
        self.attacker = prepare_attack(model, nn.CrossEntropyLoss(), self.config, setup)
        payload, self.shared = self.messages(observation, OmegaConf.create)
        try:
            self.models, self.labels, _ = self.attacker.prepare_attack([payload], [self.shared])
            self.advance(1)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise CannotRun(f"breaching cannot attack this model: {one_line(error)}") from None

    @staticmethod
    def messages(observation: Observation, mapping: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What breaching's server sends and its user sends back, of the same client."""
        seen, weights = observation.update.gradient(), dict(observation.model.named_parameters())
        knowledge = observation.knowledge
        assert knowledge.labels is not None
        like = next(iter(weights.values()))
        facts = {"shape": knowledge.shape, "mean": knowledge.mean, "std": knowledge.std}
        payload = {
            "parameters": list(weights.values()),
            "buffers": None,
            "metadata": mapping({**facts, "modality": "vision"}),
        }
        shared = {
            "gradients": [seen[name] for name in weights],
            "buffers": None,
            "metadata": {
                "num_data_points": 1,
                "labels": knowledge.labels.to(like.device),
                "local_hyperparams": None,
            },
        }
        return payload, shared

    def advance(self, count: int) -> None:
        self.config.optim.max_iterations = count
        self.attacker._run_trial(self.models, [self.shared], self.labels, defaultdict(list), 0)


CONTENDERS: dict[str, Callable[[Case], Contender]] = {
    "engine": KeyholeEngine,
    "plain": PlainLoop,
    "breaching": Breaching,
}


@contextmanager
def use_settings(precision: Precision, *, tuned: bool) -> Iterator[None]:
    """Memory and cuDNN: as PyTorch has them, or ``tuned`` as Keyhole does.

    Either way a GPU multiplies in the same precision for everyone.
    """
    if tuned:
        keep_memory()
    with use_precision(precision):
        torch.backends.cudnn.benchmark = tuned
        yield


def serve(connection: Connection, name: str, facts: dict[str, Any], tuned: bool) -> None:
    """Runs one contender for whoever holds the other end: facts first, then timed runs by request.

    ``facts`` are a :class:`Case`'s.
    """
    sys.stdout = sys.stderr  # standard output is for results
    case = Case(**facts)
    with use_settings(case.precision, tuned=tuned):
        try:
            case = case.on_device()
            contender = CONTENDERS[name](case)
        except (CannotRun, KeyholeError) as why:
            connection.send(str(why))
            return
        connection.send({**contender.facts, **describe_machine(case.device)})
        while (request := connection.recv()) is not None:
            piece, limit, threads = request
            torch.set_num_threads(threads)
            connection.send(time_iterations(contender, piece, limit, case.device))


def describe_machine(device: str) -> dict[str, Any]:
    """What a contender runs on."""
    return {
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def time_iterations(
    contender: Contender, piece: int, limit: float, device: str
) -> tuple[float, int]:
    """Takes ``piece`` iterations, again and again for ``limit`` seconds: seconds and iterations."""
    wait_for(device)
    began, count, spent = time.perf_counter(), 0, 0.0
    while not count or spent < limit:
        contender.advance(piece)
        wait_for(device)
        count += piece
        spent = time.perf_counter() - began
    return spent, count


def wait_for(device: str) -> None:
    """Until nothing is under way any more."""
    if device == "cuda":
        torch.cuda.synchronize()
