"""An audit of what a real server captured: rounds and clients of a run, ours or the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.atomic import read_json
from keyhole.attacks import Attack
from keyhole.audit.cast import (
    PUBLIC,
    Cast,
    about_norms,
    attacks_of,
    fingerprint,
    in_all_orders,
    tuned,
    untold,
)
from keyhole.audit.plan import Stage
from keyhole.audit.recipe import CapturedRecipe, defense_of, recipe_of
from keyhole.audit.scene import Scene, refuse_useless, scene_of
from keyhole.data import ImageSet, load
from keyhole.errors import BadUpdate, BadValue, KeyholeError, RunFolderError
from keyhole.federation import Capture
from keyhole.federation.capture import CapturedRound, Facts
from keyhole.models import build
from keyhole.models.weights import fill
from keyhole.seeds import generator
from keyhole.threat import Server
from keyhole.update import Update

MANY = 64
"""Images of a client from which on iterative attacks are tried only by request."""


@dataclass(frozen=True, eq=False)
class Witnessed:
    """One client of one round that can be attacked."""

    node: str
    update: Update
    recipe: CapturedRecipe
    truth: tuple[int, ...] | None
    """Indices of its images in the data set, where they are known."""


def captured_scenes(
    stage: Stage, *, seed: int, data_dir: str | None, device: torch.device
) -> tuple[list[Scene], list[str]]:
    """The scenes of a captured folder, and in words what of it could not be used."""
    assert stage.captured is not None
    if stage.repeats > 1:
        raise BadValue("repeats: captured clients sent what they sent; leave it out")
    capture = Capture.open(stage.captured)
    notes = list(capture.problems)
    size = stage.image_size or capture.about.get("image-size")
    by_user = bool(capture.about.get("by-user"))
    data = load(stage.data, image_size=size, data_dir=data_dir, by_user=by_user)
    owners = truth_of(capture, stage, len(data), notes)
    scenes: list[Scene] = []
    for seen in chosen_rounds(capture, stage):
        notes += [
            f"client {n} sent nothing in round {seen.number}: {w}" for n, w in seen.lost.items()
        ]
        try:
            model = model_of(seen, stage, data, seed).to(device)
        except BadUpdate as error:
            notes.append(f"round {seen.number}: {error}")
            continue
        clients = witnesses(seen, stage, model, owners, notes)
        groups = alike(clients)
        for group in groups:
            label = label_of(stage, seen, group, several=len(groups) > 1)
            scenes.append(_scene(stage, seen, model, data, group, owners, seed, label))
        if not clients:
            notes.append(f"round {seen.number} has no client that can be attacked")
    if not scenes:
        reasons = notes[len(capture.problems) :] or notes
        raise RunFolderError(f"nothing in {capture.root} can be attacked: {reasons[0]}")
    if not any(scene.rows for scene in scenes):
        refuse_useless(scenes)
    return scenes, notes


def chosen_rounds(capture: Capture, stage: Stage) -> list[CapturedRound]:
    """The rounds that the user names; the first one, which tends to leak most, without."""
    there = {seen.number: seen for seen in capture.rounds}
    if stage.rounds is None:
        return [capture.rounds[0]]
    if stage.rounds == "all":
        return list(capture.rounds)
    wanted = [part.strip() for part in stage.rounds.split(",")]
    unknown = [part for part in wanted if not part.isdecimal() or int(part) not in there]
    if unknown:
        known = ", ".join(str(number) for number in there)
        raise BadValue(f"round {unknown[0]!r} was not captured: there are {known}, or say all")
    return [there[number] for number in dict.fromkeys(int(part) for part in wanted)]


def truth_of(
    capture: Capture, stage: Stage, images: int, notes: list[str]
) -> dict[str, tuple[int, ...]]:
    """Whose images are whose, by client; empty where nobody noted it."""
    found = capture.truth if stage.truth is None else read_json(stage.truth)
    if found is None:
        return {}
    where = stage.truth or capture.root / "truth.json"
    try:
        if found.get("data") not in (None, stage.data):
            about = found["data"]
            notes.append(f"the truth is about {about!r}, not {stage.data!r}: nothing is scored")
            return {}
        owners = {str(k): tuple(int(i) for i in v) for k, v in found["clients"].items()}
        if any(not 0 <= i < images for share in owners.values() for i in share):
            raise RunFolderError(f"{where} speaks of images that {stage.data!r} does not have")
        return owners
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(
            f'{where} is no truth: it should hold {{"clients": {{ID: [INDEX, ...]}}}}'
        ) from None


def model_of(seen: CapturedRound, stage: Stage, data: ImageSet, seed: int) -> nn.Module:
    """The model as the server sent it in that round."""
    model = build(
        stage.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
    )
    model = defense_of(seen.config, stage).prepared(model)
    weights = named(seen.weights(), model)
    fill(model, weights, "the captured model")
    return model


def named(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Tensors that came without names, as a list in the model's order, get the model's."""
    own = list(model.state_dict())
    if len(tensors) == len(own) and all(name.isdecimal() for name in tensors):
        return dict(zip(own, (tensors[k] for k in sorted(tensors, key=int)), strict=True))
    return tensors


def witnesses(
    seen: CapturedRound,
    stage: Stage,
    model: nn.Module,
    owners: dict[str, tuple[int, ...]],
    notes: list[str],
) -> list[Witnessed]:
    """The clients of a round that the user chose and whose updates can be used."""
    wanted = None if stage.nodes is None else [n.strip() for n in stage.nodes.split(",")]
    names = [name_of(client) for client in seen.clients]
    if wanted is not None:
        for node in wanted:
            if node not in names:
                notes.append(f"client {node} did not answer in round {seen.number}")
    found: list[Witnessed] = []
    for client, name in zip(seen.clients, names, strict=True):
        if (wanted is None and len(found) < stage.victims) or (wanted and name in wanted):
            try:
                found.append(witness(seen, stage, model, client, owners))
            except KeyholeError as error:
                notes.append(f"client {name} of round {seen.number} is left out: {error}")
    reported = {name for each in found for name in each.update.change}
    whole = [each for each in found if reported == set(each.update.change)]
    for each in (w for w in found if w not in whole):
        missing = sorted(reported - set(each.update.change))
        notes.append(
            f"client {each.node} of round {seen.number} is left out: its update lacks "
            f"{missing[0]!r}, which others have"
        )
    for each in (w for w in whole if w.truth is None and owners):
        notes.append(
            f"client {each.node} of round {seen.number} is not scored: the truth does not give its "
            f"{each.recipe.examples} image(s)"
        )
    return whole


def name_of(client: Facts) -> str:
    """Flower's node ids are drawn anew in every run; a partition's number says more."""
    return str(client.get("metrics", {}).get("partition-id", client["node"]))


def witness(
    seen: CapturedRound,
    stage: Stage,
    model: nn.Module,
    client: Facts,
    owners: dict[str, tuple[int, ...]],
) -> Witnessed:
    told = {**seen.config, **client.get("metrics", {})}
    if client.get("examples") is not None:
        told["num-examples"] = client["examples"]
    recipe = recipe_of(told, stage)
    change = named(seen.change(client), model)
    Update(change).check_against(model.state_dict())
    place = next(model.parameters())
    own = {n: change[n].to(place) for n, _ in model.named_parameters() if n in change}
    update = Update(
        own,
        steps=recipe.steps,
        lr=recipe.lr,
        batch_size=recipe.batch_size,
        examples=recipe.examples,
    ).check()
    if update.norm() == 0:
        raise BadUpdate("its update is all zeros and tells nothing")
    truth = owners.get(name_of(client), owners.get(str(client["node"])))
    known = truth is not None and len(truth) == recipe.examples
    return Witnessed(name_of(client), update, recipe, truth if known else None)


def alike(clients: Sequence[Witnessed]) -> list[list[Witnessed]]:
    """Clients that can be attacked as one: the same recipe, all with or all without truth."""
    groups: dict[tuple[CapturedRecipe, bool], list[Witnessed]] = {}
    for client in clients:
        groups.setdefault((client.recipe, client.truth is not None), []).append(client)
    return list(groups.values())


def _scene(
    stage: Stage,
    seen: CapturedRound,
    model: nn.Module,
    data: ImageSet,
    group: Sequence[Witnessed],
    owners: dict[str, tuple[int, ...]],
    seed: int,
    label: str,
) -> Scene:
    recipe = group[0].recipe
    scored = group[0].truth is not None
    defense = defense_of(seen.config, stage)
    attacks, left_out = attacks_for(stage, recipe, scored=scored)
    victims = tuple(client.truth or () for client in group)
    private = {i for indices in (*owners.values(), *victims) for i in indices}
    order = torch.randperm(len(data), generator=generator(seed, "victims")).tolist()
    own = stage.model_copy(
        update={
            "rounds": str(seen.number),
            "nodes": ",".join(client.node for client in group),
            "defenses": (str(defense),),
            "victims": len(group),
            "batch_size": recipe.examples,
            "steps": recipe.steps,
            "lr": recipe.lr,
            "client_mode": recipe.mode,
            "checkpoint_epoch": seen.number - 1,
        }
    )
    made = Cast(
        stage=own,
        model=model,
        data=data,
        defenses=(defense,),
        attacks=tuple(attacks),
        chosen=stage.attacks != ("auto",) or recipe.examples > MANY,
        victims=victims,
        public=tuple([i for i in order if i not in private][:PUBLIC]),
        seed=seed,
        fingerprint=fingerprint(model, data, victims, [client.update for client in group]),
        reported=frozenset(group[0].update.change),
        label=label,
        scored=scored,
        orders=recipe.orders,
        notes=about_norms(model, recipe.mode, said=True),
    )
    scene = scene_of(made, defense, attacks, model, Server(model))
    notes = (*scene.notes, *recipe.notes, *left_out)
    return dataclasses.replace(scene, captured=tuple(c.update for c in group), notes=notes)


def label_of(
    stage: Stage, seen: CapturedRound, group: Sequence[Witnessed], *, several: bool
) -> str:
    """What a group of clients goes by; where a round has ``several``, by their names."""
    who = f"client {group[0].node}" if len(group) == 1 else f"{len(group)} clients"
    if several and len(group) > 1:
        who = f"clients {', '.join(client.node for client in group)}"
    images = group[0].recipe.examples
    count = "1 image" if images == 1 else f"{images} images"
    return f"{stage.data}, captured in round {seen.number}, {who} of {count}"


def attacks_for(
    stage: Stage, recipe: CapturedRecipe, *, scored: bool
) -> tuple[list[Attack], list[str]]:
    """The attacks to try, without what only a simulation could tell them; and what was left out."""
    left_out = []
    if stage.attacks == ("auto",) and recipe.examples > MANY:
        left_out.append(
            f"a client trained on {recipe.examples} images: iterative attacks are tried only if "
            "named with --attack"
        )
    found = [untold(tuned(attack, stage), scored) for attack in attacks_of(stage)]
    return [in_all_orders(attack, recipe.orders) for attack in found], left_out
