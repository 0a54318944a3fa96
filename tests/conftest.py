"""What the whole suite shares: the data folder, and a client under attack in one call."""

from __future__ import annotations

import logging
import os
import signal
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch starts its threads
if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores: one thread each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from keyhole import cli
from keyhole.attacks import Reconstruction
from keyhole.data import ImageSet, denormalise
from keyhole.defenses import Defense, NoDefense
from keyhole.federation import LocalTraining, train_client
from keyhole.metrics import psnr
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server

settings.register_profile(
    "keyhole", deadline=None, derandomize=True, database=None, max_examples=50
)
settings.load_profile("keyhole")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA_DIR = Path(os.environ.get("KEYHOLE_DATA") or BESIDE_THE_REPOSITORY).expanduser()


@pytest.fixture(autouse=True)
def _the_same_draws_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _the_log_is_on() -> None:
    """Libraries that tests run in this process set logging up for themselves, Flower among them."""
    logging.disable(logging.NOTSET)
    log = logging.getLogger("keyhole")
    log.disabled, log.propagate = False, True
    log.setLevel(logging.NOTSET)


@pytest.fixture
def data_dir() -> Path:
    """The folder of file-based data sets; the test is skipped where there is none."""
    if not DATA_DIR.is_dir():
        pytest.skip("needs the shared data: name its folder in KEYHOLE_DATA")
    return DATA_DIR


@pytest.fixture
def no_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found through the environment."""
    monkeypatch.delenv("KEYHOLE_DATA", raising=False)


@dataclass(frozen=True)
class Victim:
    """A client's secrets beside what the server saw of it."""

    observation: Observation
    images: Tensor
    labels: Tensor
    data: ImageSet
    masks: tuple[Tensor, ...] = ()

    @property
    def intercepted(self) -> tuple[Tensor, ...]:
        """The images on their way, as if no defense had changed them."""
        return (self.images,)

    def telling(self, *names: str) -> Victim:
        """The same victim before an attacker who is told ``labels``, ``masks`` and so on."""
        told = {name: getattr(self, name) for name in names}
        knowledge = replace(self.observation.knowledge, **told)
        return replace(self, observation=replace(self.observation, knowledge=knowledge))

    @property
    def unaware(self) -> Observation:
        """The same observation in the eyes of an attacker who does not know the defense."""
        knowledge = replace(self.observation.knowledge, defense=None)
        return replace(self.observation, knowledge=knowledge)

    def pixels(self, found: Reconstruction) -> Tensor:
        """What was reconstructed, clamped to [0, 1]."""
        assert found.images is not None
        return denormalise(found.images.double(), self.data.mean, self.data.std).clamp(0, 1)

    def decibels(self, found: Reconstruction) -> float:
        """PSNR of the reconstruction of a single image."""
        return float(psnr(self.pixels(found), self.images, data_range=1.0))

    def best_decibels(self, found: Reconstruction) -> list[float]:
        """For each private image the PSNR of the reconstruction most like it."""
        pixels = self.pixels(found)
        return [
            float(psnr(pixels, image.expand_as(pixels), data_range=1.0).max())
            for image in self.images
        ]


Observe = Callable[..., Victim]


@pytest.fixture(scope="session")
def observe() -> Observe:
    """Lets a client train on ``data[indices]`` under ``defense`` and records what a server sees."""

    def run(
        model: nn.Module,
        data: ImageSet,
        indices: Sequence[int],
        defense: Defense | None = None,
        *,
        training: LocalTraining | None = None,
        seed: int = 0,
    ) -> Victim:
        defense = defense or NoDefense()
        model = defense.prepare_model(model)
        images, labels = data.images(indices), data.labels[list(indices)]
        record = MaskRecorder()
        update, _ = train_client(
            model,
            images,
            labels,
            data=data,
            defense=defense,
            generator=generator(seed, "client", *indices),
            training=training,
            mask_recorder=record,
        )
        knowledge = Knowledge(
            shape=data.shape,
            classes=len(data.classes),
            mean=data.mean,
            std=data.std,
            batch_size=len(images),
            defense=defense,
        )
        seen = Server(model).receive(update, knowledge)
        return Victim(seen, images, labels, data, record.masks_by_site())

    return run


@pytest.fixture
def same_rng() -> Callable[[], bool]:
    """Tells whether torch's global generator is still where it was when the test began."""
    before = torch.get_rng_state()
    return lambda: torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def keyhole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in an empty folder; gives exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KEYHOLE_DATA", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["keyhole", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run
