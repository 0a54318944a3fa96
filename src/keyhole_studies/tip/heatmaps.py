"""Table 2: how alike a network's explanations stay when clients defend what they upload."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.attacks.matching import use_precision
from keyhole.auditing import read_versions
from keyhole.defenses import (
    DEFENSES,
    CalibratedNoise,
    expected_noise_norm,
    match_budget,
    match_noise_norm,
)
from keyhole.device import find_device
from keyhole.errors import BadValue
from keyhole.federation import LocalTraining, average_updates, compute_local_update
from keyhole.models import heat_maps
from keyhole.seeds import derive, generator
from keyhole.settings import ClientMode
from keyhole.update import Update
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import count_gap, part, settings_gap
from keyhole_studies.resident_data import ResidentData, load_resident_data, measure_accuracy
from keyhole_studies.tip.explanations import (
    Explanations,
    Upload,
    choose_across_classes,
    draw_heat_maps,
)
from keyhole_studies.training import TrainingSettings
from keyhole_studies.victim import prepare_victim

STEPS, LR = 4, 0.001
"""What a client does before it uploads; its batch is one image."""


@dataclass(frozen=True)
class HeatMapExperiment(Experiment):
    """One data set's line of Table 2.

    Args:
        data: The data set.
        settings: How the global model is trained; not needed with ``weights``.
        network: The global model's network.
        weights: A file of weights, in place of a training.
        defenses: The defenses that are compared, by the names of their rows.
        equal_epsilon: More rows: ``[one, other]`` is one defense with the epsilon of the other.
        equal_noise: More rows: ``[one, other]`` is one with noise as long as that of the other.
        clients: How many clients upload.
        images: How many test images are explained.
        layer: The layer whose maps are drawn; None: the last convolution.
        mode: The mode in which clients run the network.
        tested: Test images on which accuracy is measured.
        paper: The paper's figures, ``{defense: {metric: value}}``.
    """

    data: str
    settings: TrainingSettings | None = None
    network: str = "resnet18"
    weights: Path | None = None
    defenses: Mapping[str, str] = field(default_factory=dict)
    equal_epsilon: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    equal_noise: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    clients: int = 10
    images: int = 10
    layer: str | None = None
    mode: ClientMode = "train"
    tested: int = 2000

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device, seed = find_device(context.device), study.seed
        began = time.perf_counter()
        context.progress.show(f"{self.name}: {self.network} learns {self.data}")
        model = self.prepare_model(context, seed, device)
        data = load_resident_data(self.data, context.data_dir, seed, device)
        trained_in = time.perf_counter() - began
        context.progress.show(f"{self.name}: {self.clients} clients upload, {self.images} images")
        with use_precision("float32"):
            shown, labels = self.choose_images(data, seed, next(model.parameters()))
            found, norms = {}, {}
            for name, updates, norm in self.make_updates(model, data, seed):
                found[name] = self.explain(model, updates, data, shown, labels)
                norms[name] = norm
        sheet = context.runs / self.name / "heat.png"
        first = {name: e.uploaded[: len(shown)].cpu() for name, e in found.items()}
        draw_heat_maps(shown.cpu(), first, sheet)
        rows = {n: {**e.compare_with(found["none"], shown), **norms[n]} for n, e in found.items()}
        return {
            **self.describe_run(device, seed),
            "accuracy": self.measure_accuracy(model, data),
            "seconds": {"training": trained_in, "all": time.perf_counter() - began},
            "rows": rows,
            "paper": dict(self.paper),
        }

    def prepare_model(self, context: StudyContext, seed: int, device: torch.device) -> nn.Module:
        """The global model, in evaluation mode."""
        return prepare_victim(
            self.data,
            self.settings,
            seed=seed,
            device=device,
            data_dir=context.data_dir,
            network=self.network,
            weights=self.weights,
        )

    def measure_accuracy(self, model: nn.Module, data: ResidentData) -> float:
        return measure_accuracy(model, data.test, data.test_indices[: self.tested])

    def choose_images(self, data: ResidentData, seed: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Test images, each of another class as far as there are classes, and their labels."""
        labels, draw = data.test.labels, generator(seed, "shown")
        chosen = choose_across_classes(labels, data.test_indices, self.images, draw)
        return data.test.images(chosen).to(like), labels[chosen].to(like.device)

    def make_updates(
        self, model: nn.Module, resident: ResidentData, seed: int
    ) -> Iterator[tuple[str, list[Update], dict[str, Any]]]:
        """Every client's update, without a defense and under each, and how long its noise is."""
        like, data = next(model.parameters()), resident.data
        draw = generator(seed, "clients")
        chosen = choose_across_classes(data.labels, resident.train_indices, self.clients, draw)
        training = LocalTraining(steps=STEPS, lr=LR, mode=self.mode)
        uploads = []
        for number, index in enumerate(chosen):
            images, labels = data.images([index]).to(like), data.labels[[index]].to(like.device)
            inputs, own = data.normalise(images), derive(seed, "client", number)
            update = compute_local_update(model, inputs, labels, training=training, seed=own)
            uploads.append(Upload(images, labels, update.check()))
        first = uploads[0].update
        yield "none", [upload.update for upload in uploads], {"defense": "none", "noise_norm": 0.0}
        for name, defense in self.make_defenses(first, model).items():
            draws = [generator(seed, "noise", name, i) for i in range(len(uploads))]
            noisy = [u.defend(defense, model, data, d) for u, d in zip(uploads, draws, strict=True)]
            norm = expected_noise_norm(defense, first, model)
            yield name, noisy, {"defense": str(defense), "noise_norm": round(norm, 4)}

    def make_defenses(self, update: Update, model: nn.Module) -> dict[str, CalibratedNoise]:
        """The defenses by the names of their rows.

        Args:
            update: A client's update, whose steps and rate calibrate the noise.
            model: The network that it is an update of.
        """
        made: dict[str, CalibratedNoise] = {}
        for name, text in self.defenses.items():
            defense = DEFENSES.parse(text)
            if not isinstance(defense, CalibratedNoise):
                raise BadValue(f"{self.name}: {text} adds no noise that can be calibrated")
            made[name] = defense
        for name, (one, other) in self.equal_epsilon.items():
            made[name] = match_budget(made[one], made[other])
        for name, (one, other) in self.equal_noise.items():
            made[name] = match_noise_norm(made[one], made[other], update, model)
        return made

    def explain(
        self,
        model: nn.Module,
        updates: Sequence[Update],
        data: ResidentData,
        shown: Tensor,
        labels: Tensor,
    ) -> Explanations:
        """Heat maps of the shown images by every upload, and by their mean."""
        inputs = data.test.normalise(shown)

        def maps(moved: nn.Module, change: Mapping[str, Tensor] | None = None) -> Tensor:
            return heat_maps(moved, inputs, labels, layer=self.layer, change=change)

        server = copy.deepcopy(model)
        server.load_state_dict(average_updates(model.state_dict(), updates))
        uploaded = torch.cat([maps(model, update.change) for update in updates])
        return Explanations(uploaded, maps(server), self.measure_accuracy(server, data))

    def describe_run(self, device: torch.device, seed: int) -> dict[str, Any]:
        """How the result came about."""
        trained = self.settings is not None and self.weights is None
        return {
            "piece": self.name,
            "data": self.data,
            "network": self.network,
            "layer": self.layer or "last convolution",
            "training": asdict(self.settings) if trained else "given weights",  # type: ignore[arg-type]
            "local": {"steps": STEPS, "lr": LR, "batch_size": 1, "mode": self.mode},
            "clients": self.clients,
            "images": self.images,
            "seed": seed,
            "device": name_device(device),
            "versions": read_versions(),
        }

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another training or layer, fewer clients or images, or a defense without a row."""
        trained = known["training"] if isinstance(known["training"], dict) else {}
        now = {} if self.settings is None else asdict(self.settings)
        gap = settings_gap(trained, now, "training")
        layer = {"layer": self.layer or "last convolution", "network": self.network}
        gap = gap or settings_gap(known, layer)
        pairs = known["clients"] * known["images"]
        gap = gap or count_gap(pairs, self.clients * self.images, "pairs")
        asked = [*self.defenses, *self.equal_epsilon, *self.equal_noise]
        missing = [name for name in asked if name not in known["rows"]]
        return gap or (part(f"without {', '.join(missing)}") if missing else "")

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """PSNR and SSIM of the overlays."""
        for defense, paper in self.paper.items():
            found = known["rows"][defense]["uploaded"]["overlay"]
            yield Comparison(defense, "psnr", found["psnr"], paper["psnr"])
            yield Comparison(defense, "ssim", found["ssim"], paper["ssim"])

    def count_measured(self, known: dict[str, Any]) -> str:
        return f"{known['clients'] * known['images']} overlays"

    def tell(self, known: dict[str, Any]) -> str:
        overlays = {
            n: row["uploaded"]["overlay"] for n, row in known["rows"].items() if n != "none"
        }
        return ", ".join(f"{name} {found['psnr']:.1f} dB" for name, found in overlays.items())

    def describe(self) -> dict[str, Any]:
        what = f"heat maps of {self.images} images by {self.clients} clients' {self.network}"
        return {"does": f"{what} on {self.data}, without a defense and under each"}
