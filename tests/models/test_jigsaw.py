"""A model with a puzzle before it, against one that is written out plainly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from jigsaw_models import (
    CELLS,
    EITHER,
    compute_gradients,
    draw_seeded_puzzle,
    embedding,
    make_batch,
    plain_model,
    reference_logits,
    timm_vit,
    with_puzzle,
)
from keyhole.defenses import Mjp
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.models.jigsaw import CHILD_NAME, Jigsaw, add_puzzle, has_puzzle
from keyhole.models.puzzle import PuzzleRules


@EITHER
def test_the_reference_is_the_model_where_nothing_is_covered(name: str) -> None:
    model, (images, _) = plain_model(name), make_batch()
    order = torch.arange(CELLS).expand(3, -1)
    torch.testing.assert_close(
        reference_logits(model, images, order, model.pos_embed), model(images)
    )


@EITHER
@pytest.mark.parametrize("alike", [False, True], ids=["one an image", "one a batch"])
def test_covered_patches_share_the_unknown_position_and_its_gradient(
    name: str, alike: bool
) -> None:
    model = with_puzzle(copy.deepcopy(plain_model(name)).double(), alike=alike).train()
    images, labels = make_batch()
    images = images.double()
    puzzle = draw_seeded_puzzle(model, images)
    assert puzzle.order is not None
    covered = puzzle.kept == 0
    assert (covered.sum(1) >= 3).all()
    assert len(covered.unique(dim=0)) == (1 if alike else 3)

    table = model.pos_embed.detach().repeat(3, 1, 1)
    table[:, 1:][covered] = model.puzzle.unknown.detach()[0, 0]
    table.requires_grad_()
    expected = reference_logits(model, images, puzzle.order, table)
    (own,) = torch.autograd.grad(F.cross_entropy(expected, labels), table)

    torch.manual_seed(0)
    logits = model(images)
    torch.testing.assert_close(logits, expected)
    position, unknown = torch.autograd.grad(
        F.cross_entropy(logits, labels), [model.pos_embed, model.puzzle.unknown]
    )
    torch.testing.assert_close(unknown[0, 0], own[:, 1:][covered].sum(0))
    torch.testing.assert_close(position[0, 1:], (own[:, 1:] * puzzle.kept[..., None]).sum(0))
    torch.testing.assert_close(position[0, 0], own[:, 0].sum(0))
    always = covered.all(0)
    assert (position[0, 1:][always] == 0).all()
    assert (position[0, 1:][~always] != 0).any(1).all()
    assert always.any() or not alike


@EITHER
def test_without_anything_covered_it_is_the_undefended_model_bit_for_bit(name: str) -> None:
    model, (images, _) = with_puzzle(plain_model(name), gamma=0.0), make_batch()
    base = copy.deepcopy(plain_model(name))
    for training in (True, False):
        assert torch.equal(model.train(training)(images), base.train(training)(images))
    found, expected = compute_gradients(model.train()), compute_gradients(base.train())
    assert set(found) == {*expected, "puzzle.unknown"}
    assert all(torch.equal(found[n], g) for n, g in expected.items())
    assert not found["puzzle.unknown"].any()


@EITHER
def test_in_evaluation_it_takes_plain_images(name: str) -> None:
    model, (images, _) = with_puzzle(plain_model(name)).eval(), make_batch()
    base = copy.deepcopy(plain_model(name)).eval()
    assert torch.equal(model(images), base(images))
    found, expected = compute_gradients(model), compute_gradients(base)
    assert all(torch.equal(found[n], g) for n, g in expected.items())


@EITHER
def test_in_training_every_batch_is_another_puzzle(name: str) -> None:
    model, (images, _) = with_puzzle(plain_model(name)).train(), make_batch()
    assert not torch.equal(model(images), model(images))
    one, again, other = (
        compute_gradients(model, 4),
        compute_gradients(model, 4),
        compute_gradients(model, 5),
    )
    assert all(torch.equal(again[n], g) for n, g in one.items())
    assert not torch.equal(one["pos_embed"], other["pos_embed"])


def test_a_timm_model_stays_one() -> None:
    base, (images, _) = plain_model("timm"), make_batch()
    model = with_puzzle(base)
    assert isinstance(model, VisionTransformer)
    assert isinstance(model, Jigsaw)
    assert has_puzzle(model)
    assert not has_puzzle(base)
    assert type(model) is type(with_puzzle(base, gamma=0.1))
    assert (model.num_features, model.num_classes) == (32, 5)
    assert model.no_weight_decay() == base.no_weight_decay()
    assert torch.equal(model.eval().forward_features(images), base.eval().forward_features(images))
    model.reset_classifier(7)
    assert model(images).shape == (3, 7)


def test_features_in_training_are_those_of_the_puzzle() -> None:
    """One puzzle a pass: the forward pass goes through ``forward_features`` itself."""
    model, (images, _) = with_puzzle(plain_model("timm")).train(), make_batch()
    torch.manual_seed(2)
    features = copy.deepcopy(model).forward_features(images)
    torch.manual_seed(2)
    assert torch.equal(model(images), model.forward_head(features))
    assert not torch.equal(
        features, copy.deepcopy(plain_model("timm")).train().forward_features(images)
    )


def test_keyword_arguments_reach_the_model() -> None:
    model, (images, _) = with_puzzle(plain_model("timm")).eval(), make_batch()
    seen = torch.zeros(17, 17)
    seen[:, 5:] = -torch.inf
    expected = plain_model("timm").eval()(images, attn_mask=seen)
    assert torch.equal(model(images, attn_mask=seen), expected)
    assert not torch.equal(model(images), expected)


@EITHER
def test_a_given_puzzle_is_laid_also_in_evaluation(name: str) -> None:
    model, (images, _) = with_puzzle(plain_model(name)), make_batch()
    puzzle = draw_seeded_puzzle(model, images, seed=1)
    torch.manual_seed(1)
    expected = model.train()(images)
    with model.eval().use_puzzle(puzzle):
        assert torch.equal(model(images), expected)
    assert torch.equal(model(images), plain_model(name).eval()(images))


def test_a_puzzle_is_forgotten_where_the_model_fails() -> None:
    model, (images, _) = with_puzzle(plain_model("vit-small")).train(), make_batch()
    own = model.pos_embed
    with pytest.raises(RuntimeError):
        model(images[:, :2])
    assert model.pos_embed is own
    assert isinstance(model.pos_embed, nn.Parameter)
    assert not model.puzzle.in_forward
    assert not torch.equal(model(images), model(images))


@EITHER
def test_the_given_model_is_left_alone_and_copies_live_apart(name: str) -> None:
    base = copy.deepcopy(plain_model(name))
    before = copy.deepcopy(base.state_dict())
    model = with_puzzle(base, localiser="nln")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    assert type(base) is type(plain_model(name))
    assert all(torch.equal(before[n], t) for n, t in base.state_dict().items())
    assert list(base.state_dict()) == list(before)
    assert all(torch.equal(copied.state_dict()[n], t) for n, t in before.items())
    assert type(copied) is type(model)
    assert not torch.equal(copied.puzzle.unknown, model.puzzle.unknown)
    assert not torch.equal(copied.train()(make_batch()[0]), model.train()(make_batch()[0]))


def test_copies_of_a_model_that_has_trained_cover_other_patches() -> None:
    model, (images, _) = with_puzzle(plain_model("vit-small"), gamma=0.5).train(), make_batch(8)
    model(images)
    masks = []
    for network in (model, copy.deepcopy(model)):
        record = MaskRecorder()
        record.begin()
        with record:
            network(images)
        masks.append(record.masks_by_site()[0])
    assert not torch.equal(*masks)


def test_a_model_has_but_one_puzzle() -> None:
    with pytest.raises(DoesNotFit, match="has a puzzle already"):
        add_puzzle(with_puzzle(plain_model("timm")), PuzzleRules(0.1))


@EITHER
def test_names_and_weights_are_the_models_own_and_more(name: str) -> None:
    base = plain_model(name)
    model = with_puzzle(base, localiser="ln")
    added = set(model.state_dict()) - set(base.state_dict())
    assert added == {"puzzle.unknown", "puzzle.head.weight", "puzzle.head.bias"}
    assert set(base.state_dict()) <= set(model.state_dict())
    assert all(torch.equal(model.state_dict()[n], t) for n, t in base.state_dict().items())
    assert list(dict(model.named_children()))[-1] == CHILD_NAME


def test_the_unknown_position_is_drawn_as_wide_as_the_known_ones() -> None:
    for spread in (0.02, 1.0):
        base = timm_vit(embed_dim=512)
        nn.init.normal_(base.pos_embed, std=spread)
        one, other = with_puzzle(base).puzzle.unknown, with_puzzle(base).puzzle.unknown
        assert one.shape == (1, 1, 512)
        assert float(one.detach().std()) == pytest.approx(spread, rel=0.15)
        assert torch.equal(one, other)  # server and clients make the same


def test_making_a_puzzle_draws_nothing_from_the_global_generator(
    same_rng: Callable[[], bool],
) -> None:
    with_puzzle(plain_model("timm"), localiser="nln")
    with_puzzle(plain_model("timm"), positions="index")
    assert same_rng()


def test_weights_come_back_from_a_safetensors_file(tmp_path: Path) -> None:
    model = with_puzzle(plain_model("timm"), localiser="nln")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other = with_puzzle(plain_model("timm"), localiser="nln")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    found, expected = compute_gradients(other.train(), 3), compute_gradients(model.train(), 3)
    assert all(torch.equal(found[n], g) for n, g in expected.items())


def test_double_precision_and_a_table_without_a_leading_axis_are_borne() -> None:
    class Tabled(nn.Module):
        """Its position table is ``[rows, D]``; two more tokens stand before the patches."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 5)
            self.start = nn.Parameter(torch.randn(2, 8))
            self.table = nn.Parameter(torch.randn(18, 8))

        def forward(self, images: Tensor) -> Tensor:
            patches = self.stem(images).flatten(2).mT
            x = torch.cat([self.start.expand(len(images), -1, -1), patches], 1) + self.table
            return self.head(x.tanh().mean(1))

    base = Tabled().double()
    assert embedding(base).offset == 2
    model, (images, labels) = with_puzzle(base, localiser="ln").train(), make_batch(1)
    puzzle = draw_seeded_puzzle(model, images.double())
    torch.manual_seed(0)
    loss = F.cross_entropy(model(images.double()), labels) + model.localisation_loss()
    (gradient,) = torch.autograd.grad(loss, [model.table])
    assert loss.dtype == torch.double
    assert gradient[:2].any(1).all()
    assert torch.equal(gradient[2:].any(1), puzzle.kept[0] != 0)


def test_any_network_takes_shuffled_images() -> None:
    base = build("resnet18", classes=5, image_size=16)
    model, (images, _) = add_puzzle(base, PuzzleRules(0.5, (4, 4)), positions="own"), make_batch()
    assert set(model.state_dict()) == set(base.state_dict())
    assert torch.equal(model.eval()(images), base.eval()(images))
    torch.manual_seed(0)
    found = model.train()(images)
    puzzle = draw_seeded_puzzle(model, images)
    assert puzzle.order is not None
    base.train()
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(1, 2)
    moved = torch.stack([p[o] for p, o in zip(patches, puzzle.order, strict=True)])
    moved = moved.unflatten(1, (4, 4)).permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
    assert torch.equal(found, base(moved))


def test_a_model_survives_pickling(tmp_path: Path) -> None:
    model = Mjp(gamma=0.5).prepare_model(build("vit-small", classes=10, channels=1, image_size=16))
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.randn(2, 1, 16, 16)
    assert type(again) is type(model)
    assert torch.equal(again.eval()(x), model.eval()(x))


def test_images_may_be_given_by_name() -> None:
    model = Mjp(gamma=0.5).prepare_model(build("vit-small", classes=10, channels=1, image_size=16))
    x = torch.randn(2, 1, 16, 16)
    assert torch.equal(model.eval()(images=x), model(x))
