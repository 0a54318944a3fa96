"""How fast clients train: Keyhole's backends beside a plain PyTorch loop, client after client.

    python benchmarks/training.py                          # two cases, a table
    python benchmarks/training.py --json                   # one JSON object
    python benchmarks/training.py --cases lenet:10x32 --ways graph,loop --images 320

A case is MODEL:CLIENTSxBATCH. ``ratio`` is our images per second over the plain loop's: above 1
ours is faster.

How it is measured, so that nobody need call it unfair:

- The plain loop is what one writes down from PyTorch's own guide: bfloat16 autocast and
  channels-last on a GPU, images normalised on the device beforehand, batches by an index tensor on
  the device, ``torch.optim.SGD``, cuDNN's search for algorithms, no synchronisation in a step. It
  copies the global model for every client, and that is all it does for federation.
- Ours is a whole round without the evaluation: images are read, clients are trained, updates are
  checked and averaged.
- All take turns, round by round, in one process; the first rounds do not count. A ratio is the
  median over all turns; ``range`` gives least and greatest. ``first_seconds`` is what the first
  round took, with all recording and compiling. ``moved`` is how far the weights went from their
  start: about as far for everyone, else someone does other work.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import ImageSet
from keyhole.defenses import Defense, NoDefense
from keyhole.defenses.base import Telemetry
from keyhole.federation import Federation, LocalTraining, RoundClient
from keyhole.federation.backends import Backend, CudaGraphTrainer, LoopTrainer, VmapTrainer
from keyhole.federation.precision import choose_precision
from keyhole.federation.resident import keep_on_device
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.settings import AskedPrecision
from keyhole.update import Update

CASES = "resnet18:4x128,resnet18:10x32"
SIZE, CLASSES = 32, 10
LR, MOMENTUM = 0.03, 0.9
GRAPHS = "graph,graph:float32,graph:tf32,graph:search,graph:2,graph:4,graph:compiled"
DEFAULT_WAYS = {"cuda": f"{GRAPHS},loop,vmap", "cpu": "loop,vmap"}


@dataclass(frozen=True)
class Case:
    """What is trained.

    Args:
        model: The network.
        clients: How many take part, one after another or together.
        batch: Images per step.
        images: Each client's images.
        augment: Whether images are mirrored and shifted.
    """

    model: str
    clients: int
    batch: int
    images: int
    augment: bool

    @property
    def training(self) -> LocalTraining:
        """One epoch of each client."""
        return LocalTraining(
            lr=LR, epochs=1, batch_size=self.batch, momentum=MOMENTUM, augment=self.augment
        )


def make_data(count: int) -> ImageSet:
    """Noise with labels: how fast a step is does not depend on what it sees."""
    draw = generator(0, "images")
    pixels = torch.randint(256, (count, 3, SIZE, SIZE), generator=draw, dtype=torch.uint8)
    return ImageSet(
        name="noise",
        pixels=lambda indices: pixels[torch.as_tensor(indices)],
        labels=torch.randint(CLASSES, (count,), generator=draw),
        classes=tuple(str(c) for c in range(CLASSES)),
        size=(SIZE, SIZE),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.247, 0.2435, 0.2616),
    )


class PlainLoop:
    """Federated averaging as one writes it down, client after client."""

    def __init__(self, case: Case, model: nn.Module, data: ImageSet) -> None:
        self.case, self.device = case, next(model.parameters()).device
        self.on_gpu = self.device.type == "cuda"
        self.layout = torch.channels_last if self.on_gpu else torch.contiguous_format
        self.model = copy.deepcopy(model).to(memory_format=self.layout)
        count = case.clients * case.images
        images = data.normalise(data.images(range(count)).to(self.device))
        self.images = images.contiguous(memory_format=self.layout)
        self.labels = data.labels[:count].to(self.device)

    def run_round(self, number: int) -> None:
        """Trains all clients and averages their weights."""
        torch.backends.cudnn.benchmark = self.on_gpu
        torch.manual_seed(number)
        total: list[Tensor] | None = None
        for client in range(self.case.clients):
            local = copy.deepcopy(self.model).train()
            self.train(local, client * self.case.images)
            ends = [t.detach() for t in local.state_dict().values()]
            total = ends if total is None else [a + b for a, b in zip(total, ends, strict=True)]
        assert total is not None
        torch.backends.cudnn.benchmark = False
        with torch.no_grad():
            for own, sum_ in zip(self.model.state_dict().values(), total, strict=True):
                own.copy_(sum_ / self.case.clients)

    def train(self, local: nn.Module, first: int) -> None:
        """One epoch on the images from ``first`` on."""
        optimiser = torch.optim.SGD(local.parameters(), lr=LR, momentum=MOMENTUM)
        order = first + torch.randperm(self.case.images, device=self.device)
        for batch in order.split(self.case.batch):
            x, y = self.images[batch], self.labels[batch]
            if self.case.augment:
                x = mirror_and_shift(x)
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
                loss = F.cross_entropy(local(x.contiguous(memory_format=self.layout)), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def mirror_and_shift(x: Tensor) -> Tensor:
    """Mirrors half of a batch's images and shifts each by up to 4 pixels."""
    count, _, height, width = x.shape
    coin = torch.rand(count, 1, 1, 1, device=x.device) < 0.5
    x = F.pad(torch.where(coin, x.flip(-1), x), (4, 4, 4, 4), mode="reflect")
    rows = torch.randint(9, (count, 1), device=x.device) + torch.arange(height, device=x.device)
    columns = torch.randint(9, (count, 1), device=x.device) + torch.arange(width, device=x.device)
    which = torch.arange(count, device=x.device).view(-1, 1, 1)
    return x.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def make_federation(case: Case, way: str, model: nn.Module, data: ImageSet) -> Federation:
    """Keyhole's federation; it evaluates on one image only.

    A way is a backend and more: ``graph:float32`` (precision), ``graph:4`` (clients in
    turns), ``graph:search`` (cuDNN looks for its fastest algorithms), ``graph:compiled``.
    """
    name, *rest = way.split(":")
    precisions = ("float32", "tf32", "bf16")
    asked: AskedPrecision = next((p for p in precisions if p in rest), "auto")
    training = case.training
    device = next(model.parameters()).device
    kept = keep_on_device(data, device)
    chosen = choose_precision(asked, model)
    return Federation(
        model=copy.deepcopy(model),
        data=kept,
        shares=[list(range(i * case.images, (i + 1) * case.images)) for i in range(case.clients)],
        test=(kept, [0]),
        training=LocalTraining(**{**vars(training), "precision": chosen}),
        defense=NoDefense(),
        backend=make_backend(name, rest),
    )


class Searching(CudaGraphTrainer):
    """Where cuDNN times its algorithms and takes the fastest, in whatever order they add."""

    def train(
        self, model: nn.Module, clients: Sequence[RoundClient], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        cudnn = torch.backends.cudnn
        before = cudnn.benchmark, cudnn.deterministic
        cudnn.benchmark, cudnn.deterministic = True, False
        try:
            return super().train(model, clients, defense=defense)
        finally:
            cudnn.benchmark, cudnn.deterministic = before


def make_backend(name: str, rest: Sequence[str]) -> Backend:
    """The backend that a way names."""
    if name == "graph":
        slots = max((int(part) for part in rest if part.isdigit()), default=1)
        kind = Searching if "search" in rest else CudaGraphTrainer
        return kind(slots=slots, compiled="compiled" in rest)
    return VmapTrainer() if name == "vmap" else LoopTrainer()


@dataclass
class Race:
    """Everyone who trains one case, and how long each took for a round, each time."""

    case: Case
    device: torch.device
    ways: Sequence[str]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)

    def run(self, turns: int, warm_up: int) -> None:
        """Everyone takes turns, round by round."""
        case = self.case
        data = make_data(case.clients * case.images)
        model = build(case.model, classes=CLASSES, channels=3, image_size=SIZE, seed=0)
        model = model.to(self.device)
        plain = PlainLoop(case, model, data)
        rounds: dict[str, Callable[[int], object]] = {"plain": plain.run_round}
        federations = {w: make_federation(case, w, model, data) for w in self.ways}
        rounds |= {way: federation.run_round for way, federation in federations.items()}
        for number in range(1, warm_up + turns + 1):
            for way in list(rounds):
                try:
                    spent = self.time(rounds[way], number)
                except RuntimeError as error:
                    self.failed[way] = str(error).splitlines()[0]
                    del rounds[way]
                    continue
                self.first.setdefault(way, spent)
                if number > warm_up:
                    self.seconds.setdefault(way, []).append(spent)
        after = {"plain": plain.model} | {w: f.model for w, f in federations.items()}
        self.moved = {way: distance(end, model) for way, end in after.items() if way in rounds}

    def time(self, work: Callable[[int], object], number: int) -> float:
        """How long a round takes."""
        wait_for(self.device)
        began = time.perf_counter()
        work(number)
        wait_for(self.device)
        return time.perf_counter() - began

    def facts(self) -> dict[str, Any]:
        """Ratios and images per second of everyone."""
        images = self.case.clients * self.case.images
        plain = self.seconds["plain"]
        found = {}
        for way, spent in self.seconds.items():
            ratios = [a / b for a, b in zip(plain, spent, strict=True)]
            found[way] = {
                "ratio": round_figure(median(ratios)),
                "range": [round_figure(min(ratios)), round_figure(max(ratios))],
                "images_per_second": round_figure(images / median(spent)),
                "first_seconds": round_figure(self.first[way]),
                "moved": round_figure(self.moved[way]),
            }
        return {"ways": found, "failed": self.failed, "images": images}


def distance(end: nn.Module, start: nn.Module) -> float:
    """How far the parameters of two models are apart."""
    pairs = zip(end.parameters(), start.parameters(), strict=True)
    return sum(float((a - b).detach().double().square().sum()) for a, b in pairs) ** 0.5


def wait_for(device: torch.device) -> None:
    """Until nothing is under way any more."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def round_figure(value: float) -> float:
    """Three digits say more than enough."""
    return float(f"{value:.3g}")


def format_results(found: dict[str, Any]) -> str:
    """A row per case and way."""
    lines = [f"{found['device']}, torch {found['torch']}, medians of {found['turns']} rounds", ""]
    lines.append(f"{'case':<18}{'way':<18}{'x plain loop':>22}{'images/s':>12}{'first s':>10}")
    for case, facts in found["cases"].items():
        for way, row in facts["ways"].items():
            low, high = row["range"]
            ratio = f"{row['ratio']:.3g} ({low:.3g}-{high:.3g})"
            rate, first = f"{row['images_per_second']:,.0f}", f"{row['first_seconds']:.3g}"
            lines.append(f"{case:<18}{way:<18}{ratio:>22}{rate:>12}{first:>10}")
        lines += [f"{case:<18}{way:<18}  {why}" for way, why in facts["failed"].items()]
    return "\n".join(lines)


def parse_case(text: str, images: int | None, augment: bool) -> Case:
    """A case as people write it."""
    model, _, size = text.rpartition(":")
    clients, batch = (int(part) for part in size.split("x"))
    each = images if images is not None else 50_000 // clients
    return Case(model, clients, batch, each, augment)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--cases", default=CASES, help="MODEL:CLIENTSxBATCH, joined by commas")
    parser.add_argument("--ways", help="graph, loop and vmap, joined by commas")
    parser.add_argument("--images", type=int, help="images per client (all together: 50,000)")
    parser.add_argument("--augment", action="store_true", help="mirror and shift images")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--turns", type=int, default=3, help="rounds that count")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before")
    arguments = parser.parse_args(argv)
    device = torch.device(arguments.device)
    ways = (arguments.ways or DEFAULT_WAYS[device.type]).split(",")
    cases = {}
    for text in arguments.cases.split(","):
        print(f"timing {text} ...", file=sys.stderr, flush=True)
        race = Race(parse_case(text, arguments.images, arguments.augment), device, ways)
        race.run(arguments.turns, arguments.warm_up)
        cases[text] = race.facts()
    on_gpu = device.type == "cuda"
    found = {
        "cases": cases,
        "turns": arguments.turns,
        "augment": arguments.augment,
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(found, indent=2) if arguments.json else format_results(found))


if __name__ == "__main__":
    main()
