"""What each defense declares to an attacker who knows it, and that it is true."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from keyhole.defenses import (
    DEFENSES,
    BlockShuffle,
    Capability,
    Csvar,
    Defense,
    HiddenPositions,
    ImageNoise,
    Mjp,
    NoDefense,
    PixelNoise,
    Pruning,
    Tip,
    uniform_noise,
)
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

DECLARED = {
    "none": set(),
    "gaussian": {Capability.NOISE},
    "dp": {Capability.NOISE},
    "agp": {Capability.NOISE},
    "tip": {Capability.NOISE},
    "dpsgd": {Capability.NOISE},
    "pruning": {Capability.VALUES},
    "topk": {Capability.VALUES},
    "quantise": {Capability.VALUES},
    "signsgd": {Capability.VALUES},
    "half": {Capability.VALUES},
    "percentile-privacy": {Capability.VALUES},
    "svt": {Capability.VALUES},
    "flower-local-dp": {Capability.NOISE},
    "flower-clipping": set(),
    "share": set(),
    "csvar": {Capability.IMAGE_CHANGE},
    "image-noise": {Capability.IMAGE_CHANGE},
    "dropout": {Capability.HIDDEN_MASKS},
    "mjp": {Capability.HIDDEN_POSITIONS},
    "soteria": {Capability.MISLEADING},
    "precode": {Capability.MISLEADING, Capability.HIDDEN_MASKS},
    "ats": {Capability.IMAGE_CHANGE},
    "mixup": {Capability.BATCH_CHANGE},
    "instahide": {Capability.BATCH_CHANGE},
    "oasis": {Capability.BATCH_CHANGE},
    "censor": {Capability.NORMS},
    "graddefense": {Capability.NOISE},
}


def test_every_defense_declares_what_it_does() -> None:
    assert {d.name: set(d().declares) for d in DEFENSES} == DECLARED


@pytest.mark.parametrize("capability", Capability)
def test_a_capability_is_declared_by_an_attribute_of_a_defense(capability: Capability) -> None:
    assert hasattr(Defense, capability)
    assert capability.__doc__


def test_a_defense_of_which_nothing_is_known() -> None:
    model, update = torch.nn.Linear(2, 2), Update({"weight": torch.ones(2, 2)})
    plain = NoDefense()
    assert plain.noise_model(update, model) == {}
    assert plain.possible_values(update) == {}
    assert plain.misleading_values(update, model) == {}
    assert plain.batch_change() is None
    assert plain.image_change() is None
    assert plain.hidden_positions() is None
    assert not plain.hides_masks
    assert not plain.keeps_norms


@pytest.mark.parametrize("scope", ["tensor", "update"])
@pytest.mark.parametrize("ratio", [0.3, 0.9])
def test_what_was_pruned_lay_between_the_bounds(scope: Any, ratio: float) -> None:
    draws = generator(0)
    whole = Update(
        {
            "a": torch.randn(20, 30, generator=draws),
            "b": 0.1 * torch.randn(50, generator=draws),
        },
        steps=2,
        lr=0.5,
    )
    defense = Pruning(ratio=ratio, scope=scope)
    pruned = defense.on_update(whole)
    for name, values in defense.possible_values(pruned).items():
        truth, shown = whole.gradient()[name], pruned.gradient()[name]
        assert torch.equal(values.known, shown != 0)
        assert bool(((values.low <= truth) & (truth <= values.high)).all())
        assert torch.equal(values.low[values.known], truth[values.known])


def test_a_tensor_in_which_nothing_survived_is_bounded_by_the_others() -> None:
    whole = Update({"large": torch.tensor([4.0, -3.0]), "small": torch.tensor([0.5, 0.1])})
    defense = Pruning(ratio=0.5, scope="update")
    values = defense.possible_values(defense.on_update(whole))
    assert values["small"].low.tolist() == [-3, -3]
    assert values["small"].high.tolist() == [3, 3]
    assert defense.possible_values(Update({"w": torch.zeros(3)})) == {}


def test_changes_of_images_have_their_parameters() -> None:
    assert Csvar(channels="together", block=4).image_change() == BlockShuffle("together", 4)
    assert ImageNoise(sigma=51).image_change() == PixelNoise(0.2)
    assert [BlockShuffle().finest(side, side) for side in (32, 224)] == [2, 4]
    assert BlockShuffle(block=8).finest(224, 224) == 8


@pytest.mark.parametrize(
    ("defense", "hiding"),
    [
        (Mjp(dal_weight=0.5), HiddenPositions(0.5)),
        (Mjp(positions="own"), None),
        (Mjp(level="image"), None),
    ],
    ids=str,
)
def test_only_unknown_positions_are_hidden(defense: Mjp, hiding: HiddenPositions | None) -> None:
    assert defense.hidden_positions() == hiding


def test_the_same_noise_is_in_every_parameter_and_in_no_buffer() -> None:
    model = build("resnet18", classes=10, channels=1, image_size=(16, 16), seed=0)
    update = Update({n: torch.zeros_like(t) for n, t in model.state_dict().items()})
    found = uniform_noise(update, model, 0.25)
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert all(noise.sigma == 0.25 for noise in found.values())
    assert all(bool((noise.variance == 0.0625).all()) for noise in found.values())


def test_tip_says_what_share_of_the_filters_has_noise() -> None:
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    update = Update({n: torch.randn_like(p) for n, p in model.named_parameters()})
    found = Tip(ratio=0.5, beta=3.0).noise_model(update, model)
    assert found
    for noise in found.values():
        assert noise.share == 0.5
        assert noise.sigma is None
        assert float((noise.variance > 0).double().mean()) == 0.5
