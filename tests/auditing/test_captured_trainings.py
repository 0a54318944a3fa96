from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from captures import audited, change_json, client_file, manifest, replaced, ssims
from keyhole.auditing.captured_clients import group_clients
from keyhole.data import load
from keyhole.federation import TrainingPlan, build_federation, client_generator, train
from keyhole.seeds import generator

digits = load("digits")


def test_several_images_a_client(tmp_path: Path) -> None:
    plan = TrainingPlan(
        clients=2, images=2, steps=1, batch_size=2, rounds=1, together="no", defense="none"
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    result = audited(tmp_path / "seen", model="mlp")
    linear = next(f for f in result.findings if f.attack == "linear")
    assert linear.data.endswith("2 clients of 2 images")
    assert len(linear.metrics["ssim"].per_image) == 4
    assert linear.recipe["batch_size"] == 2


def test_batch_statistics_of_captured_clients_are_spoken_of(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="timm:resnet10t", clients=1, images=2, steps=1, batch_size=2, rounds=1, together="no"
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    told = audited(tmp_path / "seen", model="timm:resnet10t", attacks=("labels",))
    assert any("each batch's own statistics" in note for f in told.findings for note in f.notes)


def test_attacks_that_need_buffers_say_so_and_the_others_go_on(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="timm:resnet10t", clients=1, images=2, steps=1, batch_size=2, rounds=1, together="no"
    )
    seen = tmp_path / "seen"
    train(plan, out=tmp_path / "run", capture=seen)
    tensors = load_file(client_file(seen))
    replaced(client_file(seen), {n: t for n, t in tensors.items() if "running" not in n})
    result = audited(
        seen,
        model="timm:resnet10t",
        attacks=("ig(batch_statistics='both')", "ig", "labels"),
        iterations=2,
    )
    assert [f.attack for f in result.findings] == ["ig", "labels"]
    (skipped,) = [each for each in result.skipped if "both" in each.attack]
    assert "share weights with their buffers" in skipped.why


def test_the_defense_is_taken_from_the_messages(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small",
        clients=2,
        images=1,
        steps=1,
        batch_size=1,
        rounds=1,
        together="no",
        defense="gaussian(sigma=10.0)",
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    (verdict,) = audited(tmp_path / "seen", attacks=("patch-lstsq",)).verdicts
    assert verdict.defense["name"] == "gaussian"
    assert verdict.defense["parameters"]["sigma"] == 10.0
    assert verdict.status == "not broken"


def test_a_defense_that_is_not_known_is_said(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m["config"].update(defense="homemade(strength=3)"))
    result = audited(seen, attacks=("patch-lstsq",))
    said = (*result.notes, *result.findings[0].notes)
    assert any("homemade" in note for note in said)


def test_clients_of_one_recipe_are_attacked_as_one(seen: Path) -> None:
    def other_rate(found: dict[str, Any]) -> None:
        found["clients"][1]["metrics"] = {"lr": 0.5}

    change_json(manifest(seen), other_rate)
    result = audited(seen, attacks=("patch-lstsq",))
    assert [f.recipe["lr"] for f in result.findings] == [0.03, 0.5]
    assert [f.recipe["nodes"] for f in result.findings] == ["0,2", "1"]
    assert group_clients([]) == []


def test_as_many_clients_of_another_recipe_are_judged_apart(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m["clients"][1].update(metrics={"lr": 0.5}))
    change_json(manifest(seen), lambda m: m["clients"].append({**m["clients"][1], "node": "3"}))
    change_json(seen / "truth.json", lambda t: t["clients"].update({"3": t["clients"]["1"]}))
    result = audited(seen, attacks=("patch-lstsq",))
    assert [f.recipe["lr"] for f in result.findings] == [0.03, 0.5]
    assert len(result.verdicts) == 2


def test_steps_in_an_unknown_order_are_read_by_trying_every_order(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small",
        clients=4,
        images=2,
        epochs=1,
        batch_size=1,
        momentum=0,
        rounds=1,
        together="no",
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    federation = build_federation(plan, data_dir=None)

    def first_drawn(client: int) -> int:
        draw = client_generator(0, client, 1)
        seed = int(torch.randint(2**62, (), generator=draw))
        return int(torch.randperm(2, generator=generator(seed, "batches"))[0])

    def labels(client: int) -> list[int]:
        return digits.labels[list(federation.shares[client])].tolist()

    turned = [c for c in range(4) if first_drawn(c) == 1 and len(set(labels(c))) == 2]
    result = audited(tmp_path / "seen", attacks=("ig",), iterations=150, nodes=str(turned[0]))
    (finding,) = result.findings
    assert finding.attack_parameters["trials"] == 2
    assert any("all 2 orders" in note for note in finding.notes)
    assert min(ssims(result, "ig")) > 0.9
