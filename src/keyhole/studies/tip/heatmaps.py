"""Table 2: how alike a network's explanations stay when clients defend what they upload."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.audit import find_device
from keyhole.audit.finding import versions
from keyhole.audit.run import full_precision
from keyhole.defenses.calibrated import noise_norm
from keyhole.federation import LocalTraining
from keyhole.federation.averaging import averaged
from keyhole.federation.client import local_update
from keyhole.models.gradcam import heat_maps
from keyhole.models.modes import ClientMode
from keyhole.report.heat_pictures import draw
from keyhole.seeds import derive, generator
from keyhole.studies.base import Piece, Setting, Study
from keyhole.studies.held import Parts, parts
from keyhole.studies.tip.explained import Explained, Upload, defenses, spread
from keyhole.studies.tip.victim import RECIPES, Recipe, accuracy_of, trained
from keyhole.update import Update

STEPS, LR = 4, 0.001
"""What a client does before it uploads; its batch is one image."""

TABLE_2: dict[str, dict[str, dict[str, float]]] = {
    "cifar10": {
        "dp": {"mse": 5044.96, "psnr": 11.18, "ssim": 0.35},
        "agp": {"mse": 3215.65, "psnr": 13.47, "ssim": 0.48},
        "tip": {"mse": 16.97, "psnr": 39.50, "ssim": 0.99},
    },
    "cifar100": {
        "dp": {"mse": 4948.12, "psnr": 11.28, "ssim": 0.32},
        "agp": {"mse": 3045.79, "psnr": 13.82, "ssim": 0.51},
        "tip": {"mse": 46.35, "psnr": 32.48, "ssim": 0.98},
    },
    "tiny-imagenet": {
        "dp": {"mse": 5104.48, "psnr": 11.27, "ssim": 0.60},
        "agp": {"mse": 4039.55, "psnr": 12.39, "ssim": 0.66},
        "tip": {"mse": 753.50, "psnr": 22.03, "ssim": 0.91},
    },
}


@dataclass(frozen=True)
class HeatMapPiece(Piece):
    """One data set's line of Table 2.

    The global model is trained here, or read from ``weights``. ``layer`` names whose maps are drawn
    (None: the last convolution's).
    """

    data: str
    network: str = "resnet18"
    weights: Path | None = None
    recipe: Recipe | None = None
    clients: int = 10
    images: int = 10
    layer: str | None = None
    mode: ClientMode = "train"
    tested: int = 2000

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        device, seed = find_device(setting.device), study.seed
        began = time.perf_counter()
        setting.progress.show(f"{self.name}: {self.network} learns {self.data}")
        model = self.model(setting, seed, device)
        split = parts(self.data, setting.data_dir, seed, device)
        trained_in = time.perf_counter() - began
        setting.progress.show(f"{self.name}: {self.clients} clients upload, {self.images} images")
        with full_precision():
            shown, labels = self.shown(split, seed, next(model.parameters()))
            found, norms = {}, {}
            for name, updates, norm in self.updates(model, split, seed):
                found[name] = self.explained(model, updates, split, shown, labels)
                norms[name] = norm
        sheet = setting.runs / self.name / "heat.png"
        draw(shown.cpu(), {n: e.uploaded[: len(shown)].cpu() for n, e in found.items()}, sheet)
        rows = {n: {**e.beside(found["none"], shown), **norms[n]} for n, e in found.items()}
        return {
            **self.facts(device, seed),
            "accuracy": accuracy_of(model, split, self.tested),
            "seconds": {"training": trained_in, "all": time.perf_counter() - began},
            "rows": rows,
            "paper": dict(self.paper),
        }

    def model(self, setting: Setting, seed: int, device: torch.device) -> nn.Module:
        return trained(
            self.data,
            seed=seed,
            device=device,
            data_dir=setting.data_dir,
            network=self.network,
            recipe=self.recipe,
            weights=self.weights,
        )

    def shown(self, split: Parts, seed: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Test images, each of another class as far as there are classes, and their labels."""
        labels = split.test.labels
        chosen = spread(labels, split.tested, self.images, generator(seed, "shown"))
        return split.test.images(chosen).to(like), labels[chosen].to(like.device)

    def updates(
        self, model: nn.Module, split: Parts, seed: int
    ) -> Iterator[tuple[str, list[Update], dict[str, Any]]]:
        """Every client's update, without a defense and under each, and how long its noise is."""
        like, data = next(model.parameters()), split.data
        chosen = spread(data.labels, split.train, self.clients, generator(seed, "clients"))
        training = LocalTraining(steps=STEPS, lr=LR, mode=self.mode)
        uploads = []
        for number, index in enumerate(chosen):
            images, labels = data.images([index]).to(like), data.labels[[index]].to(like.device)
            inputs, own = data.normalise(images), derive(seed, "client", number)
            update = local_update(model, inputs, labels, training=training, seed=own)
            uploads.append(Upload(images, labels, update.check()))
        first = uploads[0].update
        yield "none", [upload.update for upload in uploads], {"defense": "none", "noise_norm": 0.0}
        for name, defense in defenses(first, model).items():
            draws = [generator(seed, "noise", name, i) for i in range(len(uploads))]
            noisy = [u.under(defense, model, data, d) for u, d in zip(uploads, draws, strict=True)]
            norm = noise_norm(defense, first, model)
            yield name, noisy, {"defense": str(defense), "noise_norm": round(norm, 4)}

    def explained(
        self,
        model: nn.Module,
        updates: Sequence[Update],
        split: Parts,
        shown: Tensor,
        labels: Tensor,
    ) -> Explained:
        """Heat maps of the shown images by every upload, and by their mean."""
        inputs = split.test.normalise(shown)

        def maps(moved: nn.Module, change: Mapping[str, Tensor] | None = None) -> Tensor:
            return heat_maps(moved, inputs, labels, layer=self.layer, change=change)

        server = copy.deepcopy(model)
        server.load_state_dict(averaged(model.state_dict(), updates))
        uploaded = torch.cat([maps(model, update.change) for update in updates])
        return Explained(uploaded, maps(server), accuracy_of(server, split, self.tested))

    def facts(self, device: torch.device, seed: int) -> dict[str, Any]:
        recipe = self.recipe or RECIPES.get(self.data)
        learnt = recipe is not None and self.weights is None
        return {
            "piece": self.name,
            "data": self.data,
            "network": self.network,
            "layer": self.layer or "last convolution",
            "training": asdict(recipe) if learnt and recipe is not None else "given weights",
            "local": {"steps": STEPS, "lr": LR, "batch_size": 1, "mode": self.mode},
            "clients": self.clients,
            "images": self.images,
            "seed": seed,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "versions": versions(),
        }

    def about(self) -> dict[str, Any]:
        what = f"heat maps of {self.images} images by {self.clients} clients' {self.network}"
        return {"does": f"{what} on {self.data}, without a defense and under each"}


def heat_map_pieces() -> tuple[HeatMapPiece, ...]:
    """Table 2."""
    return tuple(
        HeatMapPiece(f"heat-{data}", data, figure="T2", paper=paper)
        for data, paper in TABLE_2.items()
    )
