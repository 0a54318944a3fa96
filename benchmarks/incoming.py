"""What a client notices of a server that lies, and how often it suspects an honest one.

    python benchmarks/incoming.py              # 30 fresh, 10 trained, 25 held out, all attacks
    python benchmarks/incoming.py --fresh 1 --trained 1 --held-out 0 --json

A client checks the model that it was sent (:func:`keyhole.auditing.check_incoming`), knowing its
own code and, for small networks, its own images. Honest models are timm's with fresh weights, and
small ones that were trained by federated averaging; the latter are also compared with the round
before. Altered models are those of every attack with a malicious server, laid with public images.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from keyhole.attacks import (
    April,
    Attack,
    Fishing,
    Imprint,
    ImprintWeights,
    Loki,
    PeftImprint,
    SingleOut,
    TrapWeights,
)
from keyhole.auditing import IncomingCheck, check_incoming
from keyhole.auditing.incoming.rows import check_rows, find_copies
from keyhole.auditing.incoming.subject import IncomingModel, choose_images, norms_of
from keyhole.data import ImageSet, load
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, TrainingPlan, compute_local_update, train
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, PublicKnowledge, Server

FRESH = (
    *("resnet18", "resnet26d", "resnext26ts", "vit_tiny_patch16_224", "deit_tiny_patch16_224"),
    *("swin_tiny_patch4_window7_224", "convnext_atto", "mobilenetv2_050", "mobilenetv3_small_050"),
    *("efficientnet_b0", "vgg11_bn", "densenet121", "mixer_s32_224", "resmlp_12_224"),
    *("gmlp_ti16_224", "regnetx_002", "ghostnet_050", "mnasnet_small", "repvgg_a0", "levit_128s"),
    *("poolformer_s12", "cait_xxs24_224", "xcit_nano_12_p16_224", "tinynet_e", "lcnet_035"),
    *("pit_ti_224", "visformer_tiny", "pvt_v2_b0", "coat_lite_tiny", "mobilevit_xxs"),
)
"""timm models of 30 kinds."""
SMALL = {"clients": 4, "rounds": 3, "epochs": 4, "optimiser": "adam", "lr": 0.001}
TRAINED: dict[str, dict[str, Any]] = {
    "mlp, faces": {"model": "mlp", "data": "faces"},
    "mlp, digits": {"model": "mlp", "epochs": 6, "lr": 0.002},
    "mlp, digits, dropout": {"model": "mlp", "defense": "dropout(p=0.25)"},
    "mlp, digits, DP-SGD": {"model": "mlp", "defense": "dpsgd", "images": 32, "epochs": 1},
    "lenet, digits": {"model": "lenet", "lr": 0.01, "epochs": 8},
    "lenet-wide, digits, noise": {"model": "lenet-wide", "defense": "gaussian(sigma=0.001)"},
    "vit-small, digits": {"model": "vit-small", "images": 64, "lr": 0.0005},
    "resnet18, digits": {"model": "resnet18", "images": 64, "rounds": 2},
    "VGG-like, digits, skewed": {
        "model": "incoming:small_vgg",
        "partition": "dirichlet(alpha=0.1)",
        "epochs": 8,
    },
    "mobilenetv3, photos": {
        "model": "timm:mobilenetv3_small_050",
        "data": "photos",
        "image_size": 32,
    },
}
"""Plans of federated trainings."""
HELD_OUT_FRESH = (
    *("mobilenetv4_conv_small_050", "efficientvit_b0", "repghostnet_050", "semnasnet_075"),
    *("spnasnet_100", "skresnet18", "seresnext26t_32x4d", "rexnet_100", "ese_vovnet19b_slim"),
    *("cs3darknet_focus_s", "hrnet_w18_small", "twins_pcpvt_small", "convit_tiny", "mvitv2_tiny"),
    *("davit_tiny", "focalnet_tiny_srf", "hgnetv2_b0", "inception_next_atto", "starnet_s1"),
    "mambaout_femto",
)
"""Further timm models, which were not looked at when the thresholds were set."""
HELD_OUT_TRAINED: dict[str, dict[str, Any]] = {
    "lenet-wide, digits, SGD": {"model": "lenet-wide", "optimiser": "sgd", "lr": 0.1, "seed": 1},
    "mlp, digits, pruned updates": {"model": "mlp", "defense": "pruning", "seed": 2},
    "resnet10t, photos": {"model": "timm:resnet10t", "data": "photos", "image_size": 32},
    "convnext, faces": {"model": "timm:convnext_atto", "data": "faces", "image_size": 32},
    "vit-small, digits, skewed": {
        "model": "vit-small",
        "partition": "dirichlet(alpha=0.1)",
        "images": 64,
        "seed": 3,
    },
}
"""Further trainings, likewise."""
ATTACKS: dict[str, Attack] = {
    "imprint, cumulative": Imprint(bins=64, form="cumulative"),
    "imprint, sparse": Imprint(bins=64, form="sparse"),
    "imprint, one-shot": Imprint(form="one-shot"),
    "loki": Loki(bins=32),
    "imprint-weights": ImprintWeights(),
    "trap-weights, published": TrapWeights(scale=0.95),
    "trap-weights, calibrated": TrapWeights(),
    "trap-weights, short rows": TrapWeights(strength=1.0),
    "fishing": Fishing(target=3),
    "fishing, one unit": Fishing(target=3, share=0.1),
    "single-out": SingleOut(target=0),
    "april": April(),
    "peft-imprint": PeftImprint(),
}
ARCHITECTURES = ("mlp", "relu-mlp", "lenet", "resnet18", "vit-small", "adapters:vit-small")
CLIENTS, PUBLIC, BATCH = 4, 100, 16
READ = 0.2
"""Distance to an image, relative to its length, below which it counts as read."""
HIDDEN = (0.0, 0.03, 0.1, 0.2, 0.5)
"""Lengths of the noise by which a ladder is hidden."""
QUIET = 12
"""Directions in which public images vary least, of the digits' 64."""


def small_vgg(classes: int, channels: int) -> nn.Module:
    """Two blocks of convolutions with ReLUs, and two linear layers."""
    layers: list[nn.Module] = []
    for width in (16, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, classes))


def relu_mlp(classes: int, channels: int, image_size: tuple[int, int]) -> nn.Module:
    """Two hidden layers with biases and ReLUs."""
    inputs = channels * image_size[0] * image_size[1]
    hidden = [nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, classes))


def make(name: str, data: ImageSet, seed: int) -> nn.Module:
    """A small network for the data set; ``relu-mlp`` is this file's own."""
    called = "incoming:relu_mlp" if name == "relu-mlp" else name
    return build(
        called,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
    )


def copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def check_fresh(name: str) -> IncomingCheck:
    """Checks fresh weights of a timm model; the client's own code has drawn others."""
    own, sent = (build(f"timm:{name}", classes=1000, image_size=224, seed=s) for s in (1, 0))
    return check_incoming(own, sent.state_dict(), shape=(3, 224, 224))


def check_trained(plan: Mapping[str, Any]) -> Iterator[tuple[str, IncomingCheck]]:
    """Checks a trained model three ways: alone, beside the round before, and its bare tensors."""
    settings = TrainingPlan(**{**SMALL, **plan})
    rounds: list[dict[str, Tensor]] = []
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            settings,
            out=Path(folder) / "run",
            watchers=[lambda seen: rounds.append(copy_tensors(seen.sent))],
        )
    data = load(settings.data, image_size=settings.image_size)
    own = build(
        settings.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=99,
    )
    weights = copy_tensors(result.model.state_dict())
    yield "model and images", check_incoming(own, weights, data=data)
    yield "bare tensors", check_incoming(None, weights)
    for before, after in zip(rounds, [*rounds[1:], weights], strict=True):
        yield "since the round before", check_incoming(own, after, before, data)


def alter(attack: Attack, model: nn.Module, data: ImageSet) -> dict[str, Tensor]:
    """What a client of the attack's server gets; in a sum, a client that is not the target."""
    images = data.normalise(data.images(range(len(data) - PUBLIC, len(data))))
    public = PublicKnowledge(data.shape, len(data.classes), images, batch_size=16, clients=CLIENTS)
    sent = attack.personalise(attack.alter(model, public), 1, public)
    return copy_tensors(sent.state_dict())


def check_attack(attack: Attack, name: str, data: ImageSet) -> dict[str, list[str]] | None:
    """The alarms by what the client knows; None where the attack does not apply."""
    own, sent = (make(name, data, seed) for seed in (1, 0))
    try:
        weights = alter(attack, sent, data)
    except DoesNotFit:
        return None
    return {
        "model and images": names_of(check_incoming(own, weights, data=data)),
        "model": names_of(check_incoming(own, weights)),
        "bare tensors": names_of(check_incoming(None, weights)),
    }


def hide_ladder(noise: float, data: ImageSet, *, quiet: bool) -> dict[str, Any]:
    """An imprint whose rows differ by noise: what still looks alike, and what the server reads.

    Args:
        noise: The length of the noise, relative to that of a row.
        data: The client's images and the server's public ones.
        quiet: Whether the noise lies in the directions in which public images vary least, and the
            biases make up for its mean.
    """
    attack, model = Imprint(bins=256, form="cumulative"), make("lenet", data, 0)
    images = data.normalise(data.images(range(len(data) - 300, len(data))))
    altered = attack.alter(model, PublicKnowledge(data.shape, len(data.classes), images))
    rows = altered.get_parameter("imprint.measure.weight").data
    change = noise * norms_of(rows)[:, None] * draw_directions(rows, images, quiet=quiet)
    rows += change
    if quiet:
        altered.get_parameter("imprint.measure.bias").data -= change @ images.flatten(1).mean(0)
    alarms = check_rows(IncomingModel(copy_tensors(altered.state_dict())))
    values = data.normalise(data.images(choose_images(data))).flatten(1) @ rows.T
    return {
        "rows": [alarm.name for alarm in alarms if alarm.layer == "imprint.measure"],
        "units alike on images": len(find_copies((values - values.mean(0)).T)),
        "units": len(rows),
        "read": count_read(attack, altered, data),
        "images": BATCH,
    }


def draw_directions(rows: Tensor, images: Tensor, *, quiet: bool) -> Tensor:
    """Random unit rows, in all directions or in those in which images vary least."""
    draw = torch.randn(rows.shape, generator=generator(0, "hidden ladder")).to(rows)
    if quiet:
        flat = images.flatten(1)
        least = torch.linalg.svd(flat - flat.mean(0))[2][-QUIET:]
        draw = draw[:, :QUIET] @ least
    return normalize(draw)


def count_read(attack: Attack, altered: nn.Module, data: ImageSet) -> int:
    """How many images of a client's batch the server reads."""
    inputs = data.normalise(data.images(range(BATCH)))
    training = LocalTraining(mode="eval")
    update = compute_local_update(altered, inputs, data.labels[:BATCH], training=training, seed=0)
    known = Knowledge(data.shape, len(data.classes), data.mean, data.std, batch_size=BATCH)
    found = attack(Server(altered).receive(update, known)).images
    assert found is not None
    truth = inputs.flatten(1).to(found)
    errors = torch.cdist(truth, found.flatten(1)).amin(1) / norms_of(truth)
    return int((errors < READ).sum())


def names_of(found: IncomingCheck) -> list[str]:
    return list(dict.fromkeys(alarm.name for alarm in found.alarms))


def measure_honest(
    fresh: Sequence[str], trained: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The alarms that each honest network raised, and their number."""
    alarms: dict[str, dict[str, list[str]]] = {"fresh": {}, "trained": {}}
    checks = {"fresh": len(fresh), "trained": 0}
    for name in fresh:
        alarms["fresh"][name] = [str(alarm) for alarm in check_fresh(name).alarms]
    for name, plan in trained.items():
        found = list(check_trained(plan))
        alarms["trained"][name] = [f"{how}: {a}" for how, each in found for a in each.alarms]
        checks["trained"] += len(found)
    return {
        "networks": len(fresh) + len(trained),
        "networks with an alarm": sum(bool(a) for g in alarms.values() for a in g.values()),
        "checks": checks,
        "alarms": alarms,
    }


def measure(fresh: int, trained: int, held_out: int, names: Sequence[str]) -> dict[str, Any]:
    """All tables: what honest networks, altered models and hidden ladders raised."""
    digits = load("digits")
    altered = {
        attack: {
            name: found
            for name in names
            if (found := check_attack(ATTACKS[attack], name, digits)) is not None
        }
        for attack in ATTACKS
    }
    return {
        "threads": torch.get_num_threads(),
        "honest": measure_honest(FRESH[:fresh], dict(list(TRAINED.items())[:trained])),
        "held out": measure_honest(
            HELD_OUT_FRESH[:held_out], dict(list(HELD_OUT_TRAINED.items())[:held_out])
        ),
        "altered": altered,
        "hidden ladder": {
            kind: {str(noise): hide_ladder(noise, digits, quiet=quiet) for noise in HIDDEN}
            for kind, quiet in (("in all directions", False), ("in quiet directions", True))
        },
    }


def print_tables(found: dict[str, Any]) -> None:
    for kind in ("honest", "held out"):
        for group, networks in found[kind]["alarms"].items():
            raised = {name: alarms for name, alarms in networks.items() if alarms}
            print(f"{kind}, {group}: {len(raised)} of {len(networks)} raise an alarm")
            for name, alarms in raised.items():
                print(f"  {name}: {'; '.join(alarms)}")
    for attack, rows in found["altered"].items():
        for name, views in rows.items():
            seen = "  ".join(f"{how}: {', '.join(a) or 'NOTHING'}" for how, a in views.items())
            print(f"{attack:<26} {name:<10} {seen}")
    for kind, by_noise in found["hidden ladder"].items():
        for noise, each in by_noise.items():
            seen = ", ".join(each["rows"]) or "NOTHING"
            alike = f"{each['units alike on images']} of {each['units']} units alike on images"
            read = f"{each['read']} of {each['images']} images read"
            print(f"ladder with noise {noise} {kind}: {seen}; {alike}; {read}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fresh", type=int, default=len(FRESH), help="timm models")
    parser.add_argument("--trained", type=int, default=len(TRAINED), help="trained models")
    parser.add_argument("--held-out", type=int, default=len(HELD_OUT_FRESH), help="of each kind")
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    chosen = parser.parse_args(argv)
    warnings.filterwarnings("ignore", module="timm")
    torch.set_num_threads(1)
    names = chosen.architectures.split(",")
    found = measure(chosen.fresh, chosen.trained, chosen.held_out, names)
    if chosen.json:
        print(json.dumps(found, indent=2))
    else:
        print_tables(found)


if __name__ == "__main__":
    main()
