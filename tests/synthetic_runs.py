"""Run folders of many victims that nobody had to attack, for tests of what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from keyhole.auditing import AuditResult
from keyhole.auditing.finding import Finding, build_key, read_versions
from keyhole.auditing.kept_pictures import choose_kept
from keyhole.auditing.store import Store
from keyhole.metrics import METRICS, summarise
from keyhole.seeds import generator

ATTACKERS = (("linear", "naive"), ("linear", "adaptive"), ("ig", "naive"), ("ig", "adaptive"))
DEFENSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("none", {}),
    *(("gaussian", {"sigma": sigma}) for sigma in (1e-4, 1e-3, 1e-2)),
    ("pruning", {"ratio": 0.9}),
)


def make_finding(
    defense: tuple[str, dict[str, Any]],
    attack: str,
    attacker: str,
    *,
    victims: int = 8,
    read: float = 0.0,
    malicious: bool = False,
    side: int = 32,
    model: str = "mlp",
    data: str = "photos",
    metrics: bool = True,
    **changes: Any,
) -> Finding:
    """A finding of which this share of images was read, chosen by chance."""
    name, parameters = defense
    named = {"model": model, "data": data, "defense": str(defense), "attack": attack}
    key = build_key({**named, "attacker": attacker, "malicious": malicious})
    draw = generator(0, "synthetic", key)
    clear = torch.rand(victims, generator=draw)
    was_read = (clear.argsort().argsort() >= round((1 - read) * victims)).double()
    ssim = torch.where(was_read > 0, 0.6 + 0.4 * clear, 0.3 * clear).double()
    values = {
        "psnr": 8 + 20 * ssim,
        "ssim": ssim,
        "reid": was_read,
        "read": was_read,
    }
    facts: dict[str, Any] = {
        "key": key,
        "model": model,
        "data": data,
        "defense": {"name": name, "parameters": parameters},
        "attacker": attacker,
        "attack": attack,
        "attack_parameters": {},
        "knowledge": {
            "labels": False,
            "defense": name if attacker == "adaptive" and name != "none" else None,
            "server": "malicious" if malicious else "honest but curious",
            "altered_model": "an added layer" if malicious else None,
        },
        "victims": victims,
        "seconds": 1.0,
        "metrics": {
            each: summarise(v.tolist(), worst_is_high=METRICS[each].leaks_high)
            for each, v in values.items()
        }
        if metrics
        else {},
        "baselines": {"noise": {"psnr": 7.0, "ssim": 0.01, "reid": 0.0}},
        "recipe": {
            "batch_size": 1,
            "image_size": [side, side],
            "steps": 1,
            "lr": None,
            "weights": None,
            "seed": 0,
            "gallery": 2 * victims,
            "device": "cpu",
        },
        "versions": read_versions(),
        "attack_label": attack,
    }
    return Finding.from_json(Finding(**{**facts, **changes}).to_json())


def draw_pictures(finding: Finding, side: int, colours: int = 3) -> dict[str, torch.Tensor]:
    """Noise on smooth shades, the hardest there is to compress; the pictures that a run keeps."""
    ssim = finding.metrics["ssim"].per_image
    kept = sorted(choose_kept(dict(enumerate(ssim)), colours * side * side))
    shape = (len(kept), colours, side, side)
    draw = generator(0, "pictures", finding.key)
    truth = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    noise = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    share = torch.tensor([ssim[victim] for victim in kept]).view(-1, 1, 1, 1)
    seen = (share * truth + (1 - share) * noise).to(torch.uint8)
    return {"truth": truth, "seen": seen, "seen.at": torch.tensor(kept)}


def make_run(folder: Path, *, victims: int = 1000, side: int = 32) -> AuditResult:
    """A finished run of five defenses and four attackers, of whom two read without a defense."""
    store = Store.open(folder, {"title": "A large audit"})
    findings = [
        make_finding(
            defense,
            attack,
            attacker,
            victims=victims,
            side=side,
            read=0.3 if defense[0] == "none" else 0.01 if attacker == "adaptive" else 0.0,
        )
        for defense in DEFENSES
        for attack, attacker in ATTACKERS
    ]
    try:
        store.write_order([finding.key for finding in findings])
        for finding in findings:
            store.add(finding, draw_pictures(finding, side))
    finally:
        store.release()
    return AuditResult.load(folder)
