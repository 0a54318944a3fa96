from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer as TorchVisionTransformer

from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES, Mjp
from keyhole.errors import BadValue, DoesNotFit, UnknownName
from keyhole.federation import LocalTraining, TrainingPlan, train, train_client
from keyhole.models import build
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.models.jigsaw import Jigsaw
from keyhole.models.puzzle import PuzzleRules
from keyhole.seeds import generator
from keyhole.update import Update, read_safetensors

HALF = Mjp(gamma=0.5)


@cache
def digits() -> ImageSet:
    return load("digits", image_size=16)


@cache
def vit() -> nn.Module:
    """4 x 4 patches of 4 pixels."""
    model = build("vit-small", classes=10, channels=1, image_size=16)
    model.blocks = model.blocks[:1]
    return model


@cache
def swin() -> nn.Module:
    return SwinTransformer(
        img_size=32, patch_size=4, window_size=4, embed_dim=16, depths=(1,), num_heads=(2,)
    )


def updated(
    model: nn.Module,
    defense: Mjp,
    indices: list[int],
    seed: int = 0,
    training: LocalTraining | None = None,
) -> tuple[Update, tuple[Tensor, ...], dict[str, Any]]:
    """A client's update, its masks and what the defense reports."""
    data, record = digits(), MaskRecorder()
    update, telemetry = train_client(
        model,
        data.images(indices),
        data.labels[indices],
        data=data,
        defense=defense,
        generator=generator(seed),
        training=training,
        mask_recorder=record,
    )
    return update, record.masks_by_site(), telemetry


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (swin, "it has no learned absolute position embedding"),
        (
            lambda: build("resnet18", classes=10, image_size=8),
            "it does not say which images it takes",
        ),
        (lambda: build("mlp", classes=10, image_size=8), "it does not say which images it takes"),
    ],
    ids=["swin", "resnet", "mlp"],
)
def test_networks_without_positions_are_pointed_to_the_level_of_images(
    make: Any, reason: str
) -> None:
    (why,) = Mjp().incompatibilities(make())
    assert why.startswith(reason)
    assert why.endswith("; mjp(level='image') shuffles the image itself")
    assert Mjp(level="image").incompatibilities(make()) == []
    for refused in (Mjp().validate, Mjp().prepare_model, Mjp().on_model):
        with pytest.raises(DoesNotFit, match="defense 'mjp' does not fit the model") as raised:
            refused(make())
        assert "\n" not in str(raised.value)


def test_patches_out_of_order_are_no_puzzle() -> None:
    class ByColumns(nn.Module):
        image_size, channels = 8, 1

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(16, 6), nn.Linear(6, 3)
            self.where = nn.Parameter(torch.randn(4, 6))

        def forward(self, images: Tensor) -> Tensor:
            patches = images[:, 0].unfold(1, 4, 4).unfold(2, 4, 4).transpose(1, 2)
            return self.head(
                (self.stem(patches.flatten(3).flatten(1, 2)) + self.where).tanh().mean(1)
            )

    assert (
        Mjp().incompatibilities(ByColumns())[0].startswith("its patches do not make a regular grid")
    )


SMALL = {"num_classes": 3, "image_size": 16, "patch_size": 4, "num_heads": 2}
VITS: dict[str, Callable[[], nn.Module]] = {
    "ours": lambda: build("vit-small", classes=3, image_size=16),
    "timm": lambda: VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=3
    ),
    "timm, positions for patches only": lambda: VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, no_embed_class=True
    ),
    "torchvision": lambda: TorchVisionTransformer(**SMALL, num_layers=1, hidden_dim=16, mlp_dim=16),
}


@pytest.mark.parametrize("make", VITS.values(), ids=VITS)
def test_vits_of_any_library_fit(make: Callable[[], nn.Module]) -> None:
    """Torchvision's head starts at zero, which does not hide where its positions are."""
    model = make()
    assert HALF.incompatibilities(model) == []
    prepared: Any = HALF.prepare_model(model).train()
    assert prepared.puzzle.rules == PuzzleRules(0.5, (4, 4))
    named = list(prepared.named_modules())
    nn.init.normal_(
        [m for n, m in named if isinstance(m, nn.Linear) and "puzzle" not in n][-1].weight
    )
    record = MaskRecorder()
    record.begin()
    with record:
        found = HALF.on_step(prepared, torch.randn(1, 3, 16, 16), torch.tensor([1]))
    assert found is not None
    names = [name for name, _ in prepared.named_parameters()]
    gradient = dict(zip(names, found, strict=True))[prepared.puzzle.embedding.position]
    rows = gradient.flatten(0, -2)[prepared.puzzle.embedding.offset :]
    assert torch.equal(rows.any(1), record.masks_by_site()[0][0])


def test_images_are_shuffled_before_any_network() -> None:
    defense = Mjp(level="image", gamma=0.5, patch=4)
    model = build("resnet18", classes=10, channels=1, image_size=16)
    prepared = defense.prepare_model(model)
    assert isinstance(prepared, Jigsaw)
    assert set(prepared.state_dict()) == set(model.state_dict())
    assert prepared.puzzle.rules == PuzzleRules(0.5, (4, 4))
    plain, _, _ = updated(model, replace(defense, gamma=0), [1, 2])
    shuffled, masks, _ = updated(model, defense, [1, 2])
    assert masks == ()
    assert set(shuffled.change) == set(dict(model.named_parameters()))
    assert not torch.equal(shuffled.change["conv1.weight"], plain.change["conv1.weight"])
    images = digits().normalise(digits().images([1, 2]))
    assert torch.equal(prepared.eval()(images), model.eval()(images))


def test_images_that_cannot_be_cut_are_told() -> None:
    with pytest.raises(DoesNotFit, match="16x16 cannot be cut into patches of 5x5 pixels"):
        updated(
            build("mlp", classes=10, channels=1, image_size=16), Mjp(level="image", patch=5), [1]
        )


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("mjp(gamma=1.1)", "gamma: input should be less than or equal to 1, got 1.1"),
        ("mjp(gamma=-0.1)", "gamma: input should be greater than or equal to 0"),
        ("mjp(gamma='much')", "gamma: input should be a valid number"),
        ("mjp(positions='mine')", "positions: input should be 'unknown', 'own', 'index' or 'none'"),
        ("mjp(dal='svm')", "dal: input should be 'nln', 'ln', 'pca' or 'none'"),
        ("mjp(dal_weight=-1)", "dal_weight: input should be greater than or equal to 0"),
        ("mjp(jigsaw='rows')", "jigsaw: input should be 'patches' or 'pixels'"),
        ("mjp(level='layer')", "level: input should be 'tokens' or 'image'"),
        ("mjp(patch=0)", "patch: input should be greater than or equal to 1"),
        ("mjp(per='epoch')", "per: input should be 'image' or 'batch'"),
        ("mjp(share=2)", "share: input should be less than or equal to 1"),
    ],
)
def test_parameters_it_cannot_take_are_refused_in_one_line(text: str, where: str) -> None:
    with pytest.raises(BadValue) as raised:
        DEFENSES.parse(text)
    assert str(raised.value).startswith(f"defense mjp: {where}")
    assert "\n" not in str(raised.value)


def test_an_infinite_weight_is_refused() -> None:
    with pytest.raises(BadValue, match="dal_weight is infinite"):
        DEFENSES.parse("mjp(dal_weight=1e999)")


def test_parameters_it_does_not_have_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean gamma"):
        DEFENSES.parse("mjp(gama=0.1)")


def test_shares_of_less_than_a_patch_are_a_caveat() -> None:
    assert Mjp(gamma=0.05).caveats(vit()) == [
        "mjp covers nothing: 0.05 of 16 patches is less than one"
    ]
    for fine in (Mjp(gamma=0.1), Mjp(gamma=0), Mjp(gamma=0.05, jigsaw="pixels")):
        assert fine.caveats(vit()) == []


@pytest.mark.parametrize("dal", ["nln", "ln"])
@pytest.mark.parametrize("per", ["image", "batch"])
def test_a_step_is_the_gradient_of_both_losses(dal: Any, per: Any) -> None:
    defense = Mjp(gamma=0.5, dal=dal, per=per, dal_weight=0.7)
    model: Any = defense.prepare_model(vit()).train()
    images, labels = digits().normalise(digits().images([1, 2, 3])), digits().labels[[1, 2, 3]]
    own = copy.deepcopy(model)
    torch.manual_seed(9)
    found = defense.on_step(model, images, labels)
    assert found is not None
    torch.manual_seed(9)
    entropy = F.cross_entropy(own(images), labels)
    (entropy + 0.7 * own.localisation_loss()).backward()
    assert len(found) == len(list(own.parameters()))
    for gradient, weight in zip(found, own.parameters(), strict=True):
        assert torch.equal(gradient, weight.grad)
    assert all(p.grad is None for p in model.parameters())


def test_without_a_localiser_the_step_is_the_plain_one() -> None:
    defense = Mjp(gamma=0.5, dal="none")
    images, labels = digits().normalise(digits().images([1])), digits().labels[[1]]
    assert defense.on_step(defense.prepare_model(vit()), images, labels) is None
    assert HALF.on_step(vit(), images, labels) is None  # nobody prepared this model


def test_the_weight_of_localisation_counts() -> None:
    still, loud = (updated(vit(), replace(HALF, dal_weight=w), [3])[0].change for w in (0, 5.0))
    assert not still["puzzle.head.0.weight"].any()
    assert loud["puzzle.head.0.weight"].any()
    assert torch.equal(still["patch_embed.weight"], loud["patch_embed.weight"])
    assert not torch.equal(still["pos_embed"], loud["pos_embed"])


def test_a_model_is_prepared_once_and_never_changed() -> None:
    model = copy.deepcopy(vit())
    before, kind = copy.deepcopy(model.state_dict()), type(model)
    prepared = HALF.prepare_model(model)
    assert HALF.prepare_model(prepared) is prepared
    made = HALF.on_model(prepared)
    assert made is not prepared
    with torch.no_grad():
        for weight in (*made.parameters(), *HALF.on_model(model).parameters()):
            weight.zero_()
    assert type(model) is kind
    for network in (model, prepared):
        assert all(torch.equal(before[n], network.state_dict()[n]) for n in before)
    assert list(model.state_dict()) == list(before)


def test_server_and_clients_prepare_the_same_model() -> None:
    one, other = (HALF.prepare_model(vit()).state_dict() for _ in range(2))
    assert all(torch.equal(other[n], t) for n, t in one.items())


def test_the_settings_reach_the_puzzle() -> None:
    defense = Mjp(gamma=0.3, per="batch", share=0.5, jigsaw="pixels", positions="own", dal="ln")
    board = defense.prepare_model(vit()).puzzle
    assert board.rules == PuzzleRules(0.3, (4, 4), alike=True, pixels=True, share=0.5)
    assert (board.positions, board.localiser) == ("own", "ln")


def test_a_clients_update_hides_the_covered_positions_alone() -> None:
    update, (mask,), telemetry = updated(vit(), HALF, [3])
    assert mask.shape == (1, 16)
    assert int((~mask).sum()) in (7, 8)
    assert torch.equal(update.change["pos_embed"][0, 1:].any(1), mask[0])
    assert update.change["puzzle.unknown"].any()
    assert telemetry == {"gamma": 0.5}
    again, (same,), _ = updated(vit(), HALF, [3])
    assert torch.equal(same, mask)
    assert all(torch.equal(again.change[n], t) for n, t in update.change.items())
    assert not torch.equal(updated(vit(), HALF, [3], seed=1)[1][0], mask)


@pytest.mark.parametrize(("per", "kinds"), [("image", 4), ("batch", 1)])
def test_puzzles_are_drawn_for_images_or_for_batches(per: Any, kinds: int) -> None:
    _, (mask,), _ = updated(vit(), Mjp(gamma=0.5, per=per), [1, 2, 3, 4])
    assert len(mask.unique(dim=0)) == kinds


def test_every_local_step_draws_another_puzzle() -> None:
    training = LocalTraining(steps=5, lr=0.01)
    update, (masks,), _ = updated(vit(), HALF, [3], training=training)
    assert masks.shape == (5, 16)
    assert len(masks.unique(dim=0)) == 5
    assert update.steps == 5


def test_only_a_share_of_the_steps_is_puzzled() -> None:
    training = LocalTraining(steps=30, lr=1e-4)
    _, (masks,), _ = updated(vit(), replace(HALF, share=0.5), [3], training=training)
    assert 5 < int(masks.all(1).sum()) < 25


def test_in_evaluation_mode_clients_lay_no_puzzle() -> None:
    training = LocalTraining(mode="eval")
    update, masks, _ = updated(vit(), HALF, [3], training=training)
    assert masks == ()
    assert update.change["pos_embed"][0, 1:].any(1).all()
    assert not update.change["puzzle.unknown"].any()


def test_a_federation_trains_under_it(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small",
        defense="mjp(gamma=0.5)",
        clients=2,
        images=8,
        rounds=2,
        epochs=1,
        batch_size=4,
        lr=0.01,
    )
    seen: list[Any] = []
    result = train(plan, out=tmp_path / "run", watchers=[seen.append])
    assert isinstance(result.model, Jigsaw)
    assert [r["defense"] for r in result.rounds] == [[{"gamma": 0.5}] * 2] * 2
    learnt, _ = read_safetensors(tmp_path / "run" / "checkpoint.safetensors")
    for name in ("puzzle.unknown", "puzzle.head.0.weight", "pos_embed", "patch_embed.weight"):
        assert not torch.equal(seen[0].sent[name], seen[1].sent[name])
        assert torch.equal(learnt[name], result.model.state_dict()[name])
    halves = [train(replace_rounds(plan, n), out=tmp_path / "halves") for n in (1, 2)]
    assert halves[1].resumed_after == 1
    whole, resumed = result.model.state_dict(), halves[1].model.state_dict()
    assert all(torch.equal(resumed[n], t) for n, t in whole.items())


def replace_rounds(plan: TrainingPlan, rounds: int) -> TrainingPlan:
    return plan.model_copy(update={"rounds": rounds})


def test_a_later_federation_starts_from_what_was_learnt(tmp_path: Path) -> None:
    first = TrainingPlan(
        model="vit-small", defense="mjp(gamma=0.5)", clients=1, images=4, rounds=1, steps=1, lr=0.1
    )
    train(first, out=tmp_path / "first")
    weights = tmp_path / "first" / "checkpoint.safetensors"
    seen: list[Any] = []
    later = first.model_copy(update={"weights": weights})
    train(later, out=tmp_path / "later", watchers=[seen.append])
    learnt, _ = read_safetensors(weights)
    assert set(learnt) == set(seen[0].sent)
    assert all(torch.equal(seen[0].sent[n], t) for n, t in learnt.items())


def test_a_prepared_model_follows_the_rules_of_another_strength() -> None:
    plain = build("vit-small", classes=10, channels=1, image_size=16)
    weak = Mjp(gamma=0.1).prepare_model(plain)
    assert Mjp(gamma=0.1).prepare_model(weak) is weak
    strong = Mjp(gamma=0.9).prepare_model(weak)
    assert strong is not weak
    strong.train()(torch.randn(3, 1, 16, 16))
    assert int(strong.puzzle.known_counts.sum()) <= 3 * 4
    assert weak.puzzle.rules.gamma == 0.1
    with pytest.raises(DoesNotFit, match="another variant"):
        Mjp(positions="own", dal="none").prepare_model(weak)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dal", ["nln", "pca", "none"])
def test_a_model_on_the_gpu_is_prepared_and_trained_there(dal: str) -> None:
    plain = build("vit-small", classes=10, channels=1, image_size=16).cuda()
    data = load("digits", image_size=16)
    update, _ = train_client(
        Mjp(gamma=0.5, dal=dal).prepare_model(plain),
        data.images([0, 1]).cuda(),
        data.labels[:2].cuda(),
        data=data,
        defense=Mjp(gamma=0.5, dal=dal),
        generator=generator(0, "gpu"),
    )
    assert all(change.is_cuda for change in update.change.values())
    assert float(update.change["puzzle.unknown"].norm()) > 0
