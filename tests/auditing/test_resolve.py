import pytest
import torch
from torch import nn

import keyhole
from keyhole.auditing.plan import Stage
from keyhole.auditing.resolve import choose_victims, compute_fingerprint, resolve_stage
from keyhole.errors import BadValue
from keyhole.threat import Attacker


def test_only_attackers_who_know_the_defense_are_told_of_it():
    resolved = resolve_stage(Stage(data="digits", defenses=("gaussian",)), seed=0)
    defense, attack = resolved.defenses[0], resolved.attacks[0]
    told = {
        who: resolved.build_knowledge(defense, attack, who, torch.tensor([1])).defense
        for who in Attacker
    }
    assert told[Attacker.NAIVE] is None
    assert told[Attacker.ADAPTIVE] == defense
    assert (
        resolved.build_knowledge(defense, attack, Attacker.NAIVE, torch.tensor([1])).labels is None
    )


def test_auto_stands_alone():
    with pytest.raises(BadValue, match="auto"):
        resolve_stage(Stage(attacks=("auto", "linear")), seed=0)


@pytest.mark.parametrize("name", ["digits", "faces", "photos"])
def test_no_public_image_is_a_victim_or_of_a_victims_group(name):
    data = keyhole.data.load(name, image_size=16)
    victims, public = choose_victims(data, 3, 2, seed=1)
    private = [i for batch in victims for i in batch]
    assert len(set(private)) == 6
    assert public
    assert not set(private) & set(public)
    if data.groups is not None:
        assert not set(data.groups[private].tolist()) & set(data.groups[list(public)].tolist())


def test_curated_sets_show_their_first_images_and_others_are_drawn_by_seed():
    faces, digits = keyhole.data.load("faces"), keyhole.data.load("digits")
    assert choose_victims(faces, 3, 1, seed=5)[0] == ((0,), (1,), (2,))
    assert choose_victims(digits, 3, 1, seed=5) == choose_victims(digits, 3, 1, seed=5)
    assert choose_victims(digits, 3, 1, seed=5)[0] != choose_victims(digits, 3, 1, seed=6)[0]


def test_the_fingerprint_follows_weights_and_images():
    data = keyhole.data.load("digits")
    model = nn.Linear(3, 2)
    before = compute_fingerprint(model, data, ((0,),))
    assert before == compute_fingerprint(model, data, ((0,),))
    assert before != compute_fingerprint(model, data, ((1,),))
    with torch.no_grad():
        model.weight[0, 0] += 1
    assert before != compute_fingerprint(model, data, ((0,),))


def test_only_attacks_that_ask_for_masks_are_told_them():
    resolved = resolve_stage(
        Stage(data="digits", defenses=("dropout",), attacks=("ig", "wiig", "dia")), seed=0
    )
    masks = (torch.ones(1, 3, dtype=torch.bool),)
    told = {
        attack.name: resolved.build_knowledge(
            resolved.defenses[0], attack, Attacker.PAPER, torch.tensor([1]), masks
        ).masks
        for attack in resolved.attacks
    }
    assert told["ig"] is None
    assert told["dia"] is None
    assert told["wiig"][0].tolist() == [[True, True, True]]
    assert told["wiig"][0] is not masks[0]
