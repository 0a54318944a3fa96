"""A model with a puzzle before it, against one that is written out plainly here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from keyhole.defenses import Mjp
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.models.anatomy import PatchEmbedding, find_patch_embedding
from keyhole.models.dropout_sites import FixedMasks, MaskRecorder, SiteFinder
from keyhole.models.jigsaw import CHILD_NAME, Jigsaw, add_puzzle, has_puzzle
from keyhole.models.puzzle import Puzzle, PuzzlePool, PuzzleRules, draw_random_puzzle
from keyhole.seeds import generator
from mjp_variants import VARIANTS

SHAPE = (3, 16, 16)
PATCH, CELLS = 4, 16


def timm_vit(**options: Any) -> nn.Module:
    sizes = {"img_size": 16, "patch_size": PATCH, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return VisionTransformer(**{**sizes, "num_classes": 5, **options})


def small_vit() -> nn.Module:
    model = build("vit-small", classes=5, image_size=16)
    model.blocks = model.blocks[:2]
    return model


MAKERS: dict[str, Callable[[], nn.Module]] = {"vit-small": small_vit, "timm": timm_vit}
EITHER = pytest.mark.parametrize("name", MAKERS)


@cache
def plain(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MAKERS[name]()


def embedding(model: nn.Module) -> PatchEmbedding:
    found = find_patch_embedding(model, SHAPE)
    assert isinstance(found, PatchEmbedding)
    return found


def puzzled(model: nn.Module, gamma: float = 0.4, *, alike: bool = False, **options: Any) -> Any:
    rules = PuzzleRules(gamma, (PATCH, PATCH), alike=alike)
    return add_puzzle(model, rules, embedding=embedding(model), shape=SHAPE, **options)


def batch(count: int = 3) -> tuple[Tensor, Tensor]:
    draw = generator(0, "batch")
    images = torch.randn(count, *SHAPE, generator=draw)
    return images, torch.randint(5, (count,), generator=draw)


def gradients(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Of a copy, which has no masks left over from before."""
    images, labels = batch()
    model = copy.deepcopy(model)
    names, weights = zip(*model.named_parameters(), strict=True)
    torch.manual_seed(seed)
    loss = F.cross_entropy(model(images), labels)
    found = torch.autograd.grad(loss, weights, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def laid(model: Any, images: Tensor, seed: int = 0) -> Puzzle:
    """The puzzle that a model in training lays from a seed."""
    torch.manual_seed(seed)
    return draw_random_puzzle(images, model.puzzle.rules, pool=PuzzlePool())


def reference(model: Any, images: Tensor, order: Tensor, table: Tensor) -> Tensor:
    """The logits of either ViT, patch by patch, with positions ``table [B, 1 + N, D]``."""
    linear = not isinstance(model, VisionTransformer)
    rows = []
    for image, places in zip(images, order.tolist(), strict=True):
        tokens = []
        for place in places:
            top, left = PATCH * (place // 4), PATCH * (place % 4)
            patch = image[:, top : top + PATCH, left : left + PATCH]
            stem = model.patch_embed if linear else model.patch_embed.proj
            pixels = patch.permute(1, 2, 0).flatten() if linear else patch.flatten()
            tokens.append(stem.weight.flatten(1) @ pixels + stem.bias)
        rows.append(torch.stack(tokens))
    x = torch.cat([model.cls_token.expand(len(images), -1, -1), torch.stack(rows)], 1) + table
    for block in model.blocks:
        x = block(x)
    return model.head(model.norm(x)[:, 0])


@EITHER
def test_the_reference_is_the_model_where_nothing_is_covered(name: str) -> None:
    model, (images, _) = plain(name), batch()
    order = torch.arange(CELLS).expand(3, -1)
    torch.testing.assert_close(reference(model, images, order, model.pos_embed), model(images))


@EITHER
@pytest.mark.parametrize("alike", [False, True], ids=["one an image", "one a batch"])
def test_covered_patches_share_the_unknown_position_and_its_gradient(
    name: str, alike: bool
) -> None:
    model = puzzled(copy.deepcopy(plain(name)).double(), alike=alike).train()
    images, labels = batch()
    images = images.double()
    puzzle = laid(model, images)
    assert puzzle.order is not None
    covered = puzzle.kept == 0
    assert (covered.sum(1) >= 3).all()
    assert len(covered.unique(dim=0)) == (1 if alike else 3)

    table = model.pos_embed.detach().repeat(3, 1, 1)
    table[:, 1:][covered] = model.puzzle.unknown.detach()[0, 0]
    table.requires_grad_()
    expected = reference(model, images, puzzle.order, table)
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
    model, (images, _) = puzzled(plain(name), gamma=0.0), batch()
    base = copy.deepcopy(plain(name))
    for training in (True, False):
        assert torch.equal(model.train(training)(images), base.train(training)(images))
    found, expected = gradients(model.train()), gradients(base.train())
    assert set(found) == {*expected, "puzzle.unknown"}
    assert all(torch.equal(found[n], g) for n, g in expected.items())
    assert not found["puzzle.unknown"].any()


@EITHER
def test_in_evaluation_it_takes_plain_images(name: str) -> None:
    model, (images, _) = puzzled(plain(name)).eval(), batch()
    base = copy.deepcopy(plain(name)).eval()
    assert torch.equal(model(images), base(images))
    found, expected = gradients(model), gradients(base)
    assert all(torch.equal(found[n], g) for n, g in expected.items())


@EITHER
def test_in_training_every_batch_is_another_puzzle(name: str) -> None:
    model, (images, _) = puzzled(plain(name)).train(), batch()
    assert not torch.equal(model(images), model(images))
    one, again, other = gradients(model, 4), gradients(model, 4), gradients(model, 5)
    assert all(torch.equal(again[n], g) for n, g in one.items())
    assert not torch.equal(one["pos_embed"], other["pos_embed"])


def test_a_timm_model_stays_one() -> None:
    base, (images, _) = plain("timm"), batch()
    model = puzzled(base)
    assert isinstance(model, VisionTransformer)
    assert isinstance(model, Jigsaw)
    assert has_puzzle(model)
    assert not has_puzzle(base)
    assert type(model) is type(puzzled(base, gamma=0.1))
    assert (model.num_features, model.num_classes) == (32, 5)
    assert model.no_weight_decay() == base.no_weight_decay()
    assert torch.equal(model.eval().forward_features(images), base.eval().forward_features(images))
    model.reset_classifier(7)
    assert model(images).shape == (3, 7)


def test_features_in_training_are_those_of_the_puzzle() -> None:
    """One puzzle a pass: the forward pass goes through ``forward_features`` itself."""
    model, (images, _) = puzzled(plain("timm")).train(), batch()
    torch.manual_seed(2)
    features = copy.deepcopy(model).forward_features(images)
    torch.manual_seed(2)
    assert torch.equal(model(images), model.forward_head(features))
    assert not torch.equal(features, copy.deepcopy(plain("timm")).train().forward_features(images))


def test_keyword_arguments_reach_the_model() -> None:
    model, (images, _) = puzzled(plain("timm")).eval(), batch()
    seen = torch.zeros(17, 17)
    seen[:, 5:] = -torch.inf
    expected = plain("timm").eval()(images, attn_mask=seen)
    assert torch.equal(model(images, attn_mask=seen), expected)
    assert not torch.equal(model(images), expected)


@EITHER
def test_a_given_puzzle_is_laid_also_in_evaluation(name: str) -> None:
    model, (images, _) = puzzled(plain(name)), batch()
    puzzle = laid(model, images, seed=1)
    torch.manual_seed(1)
    expected = model.train()(images)
    with model.eval().use_puzzle(puzzle):
        assert torch.equal(model(images), expected)
    assert torch.equal(model(images), plain(name).eval()(images))


def test_a_puzzle_is_forgotten_where_the_model_fails() -> None:
    model, (images, _) = puzzled(plain("vit-small")).train(), batch()
    own = model.pos_embed
    with pytest.raises(RuntimeError):
        model(images[:, :2])
    assert model.pos_embed is own
    assert isinstance(model.pos_embed, nn.Parameter)
    assert not model.puzzle.in_forward
    assert not torch.equal(model(images), model(images))


@EITHER
def test_the_given_model_is_left_alone_and_copies_live_apart(name: str) -> None:
    base = copy.deepcopy(plain(name))
    before = copy.deepcopy(base.state_dict())
    model = puzzled(base, localiser="nln")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    assert type(base) is type(plain(name))
    assert all(torch.equal(before[n], t) for n, t in base.state_dict().items())
    assert list(base.state_dict()) == list(before)
    assert all(torch.equal(copied.state_dict()[n], t) for n, t in before.items())
    assert type(copied) is type(model)
    assert not torch.equal(copied.puzzle.unknown, model.puzzle.unknown)
    assert not torch.equal(copied.train()(batch()[0]), model.train()(batch()[0]))


def test_copies_of_a_model_that_has_trained_cover_other_patches() -> None:
    model, (images, _) = puzzled(plain("vit-small"), gamma=0.5).train(), batch(8)
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
        add_puzzle(puzzled(plain("timm")), PuzzleRules(0.1))


@EITHER
def test_names_and_weights_are_the_models_own_and_more(name: str) -> None:
    base = plain(name)
    model = puzzled(base, localiser="ln")
    added = set(model.state_dict()) - set(base.state_dict())
    assert added == {"puzzle.unknown", "puzzle.head.weight", "puzzle.head.bias"}
    assert set(base.state_dict()) <= set(model.state_dict())
    assert all(torch.equal(model.state_dict()[n], t) for n, t in base.state_dict().items())
    assert list(dict(model.named_children()))[-1] == CHILD_NAME


def test_the_unknown_position_is_drawn_as_wide_as_the_known_ones() -> None:
    for spread in (0.02, 1.0):
        base = timm_vit(embed_dim=512)
        nn.init.normal_(base.pos_embed, std=spread)
        one, other = puzzled(base).puzzle.unknown, puzzled(base).puzzle.unknown
        assert one.shape == (1, 1, 512)
        assert float(one.detach().std()) == pytest.approx(spread, rel=0.15)
        assert torch.equal(one, other)  # server and clients make the same


def test_making_a_puzzle_draws_nothing_from_the_global_generator(
    same_rng: Callable[[], bool],
) -> None:
    puzzled(plain("timm"), localiser="nln")
    puzzled(plain("timm"), positions="index")
    assert same_rng()


def test_weights_come_back_from_a_safetensors_file(tmp_path: Path) -> None:
    model = puzzled(plain("timm"), localiser="nln")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    other = puzzled(plain("timm"), localiser="nln")
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    found, expected = gradients(other.train(), 3), gradients(model.train(), 3)
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
    model, (images, labels) = puzzled(base, localiser="ln").train(), batch(1)
    puzzle = laid(model, images.double())
    torch.manual_seed(0)
    loss = F.cross_entropy(model(images.double()), labels) + model.localisation_loss()
    (gradient,) = torch.autograd.grad(loss, [model.table])
    assert loss.dtype == torch.double
    assert gradient[:2].any(1).all()
    assert torch.equal(gradient[2:].any(1), puzzle.kept[0] != 0)


@EITHER
def test_masks_are_sites_that_can_be_surveyed_and_recorded(name: str) -> None:
    model, (images, _) = puzzled(plain(name), gamma=0.4).train(), batch()
    survey, record = SiteFinder(), MaskRecorder()
    with survey:
        model(images)
    (site,) = survey.sites
    assert (site.p, site.shape, site.hides) == (0.4, (CELLS,), "pos_embed")
    record.begin()
    torch.manual_seed(0)
    with record:
        expected = copy.deepcopy(model)(images)
    assert torch.equal(record.masks_by_site()[0], laid(model, images).kept != 0)
    torch.manual_seed(0)
    assert torch.equal(model(images), expected)


@EITHER
def test_driven_networks_see_the_image_as_it_lies_and_hide_what_the_mask_says(name: str) -> None:
    model, (images, _) = puzzled(plain(name)).train(), batch()
    kept = (torch.rand(3, CELLS, generator=generator(1)) < 0.6).float()
    table = model.pos_embed.detach().repeat(3, 1, 1)
    table[:, 1:][kept == 0] = model.puzzle.unknown.detach()[0, 0]
    order = torch.arange(CELLS).expand(3, -1)
    with FixedMasks([kept]):
        torch.testing.assert_close(model(images), reference(model, images, order, table))
    with FixedMasks():
        torch.testing.assert_close(model(images), plain(name)(images))


@pytest.mark.parametrize("positions", ["own", "index", "none"])
def test_where_no_position_is_hidden_there_is_no_mask_to_know(positions: Any) -> None:
    """An attacker takes the image as the network saw it: shuffled or not, it is the same to it."""
    model, (images, _) = puzzled(plain("vit-small"), positions=positions).train(), batch()
    survey, record = SiteFinder(), MaskRecorder()
    with survey:
        model(images)
    assert survey.sites == []
    record.begin()
    torch.manual_seed(0)
    with record:
        found = copy.deepcopy(model)(images)
    assert record.masks_by_site() == ()
    torch.manual_seed(0)
    assert torch.equal(copy.deepcopy(model)(images), found)
    with FixedMasks():
        straight = model(images)
    assert torch.equal(straight, model.eval()(images))


def test_masks_between_zero_and_one_can_be_learnt() -> None:
    model, (images, _) = puzzled(plain("vit-small")).train(), batch()
    kept = torch.rand(3, CELLS, generator=generator(1)).requires_grad_()
    with FixedMasks([kept]):
        found = model(images)
    (gradient,) = torch.autograd.grad(found.square().sum(), kept)
    assert (gradient != 0).all()


@EITHER
def test_several_victims_are_differentiated_at_once(name: str) -> None:
    """vmap over grad of a functional call, as an attack and a federation do."""
    model = puzzled(plain(name)).train().requires_grad_(False)
    images, labels = batch(4)
    kept = (torch.rand(4, CELLS, generator=generator(1)) < 0.6).float()
    weights = dict(model.named_parameters())

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        with FixedMasks([mask[None]]):
            return F.cross_entropy(functional_call(model, own, (x[None],)), y[None])

    together = vmap(grad(loss), in_dims=(None, 0, 0, 0))(weights, images, labels, kept)
    for victim in range(4):
        alone = grad(loss)(weights, images[victim], labels[victim], kept[victim])
        for key, gradient in alone.items():
            torch.testing.assert_close(together[key][victim], gradient, atol=1e-5, rtol=1e-4)
        hidden = together["pos_embed"][victim, 0, 1:][kept[victim] == 0]
        assert (hidden == 0).all()
        assert together["puzzle.unknown"][victim].any()
    assert all(weights[n] is p for n, p in model.named_parameters())


def by_hand(model: Any, kept: Tensor) -> float:
    """The localisation loss, position by position."""
    table = model.pos_embed.detach()[0, 1:].double()
    layers = [m for m in model.puzzle.head.modules() if isinstance(m, nn.Linear)]
    total, count = 0.0, 0
    for image in kept:
        for place in range(CELLS):
            if image[place] == 0:
                continue
            value = table[place]
            for number, layer in enumerate(layers):
                value = value.relu() if number else value
                value = layer.weight.detach().double() @ value + layer.bias.detach().double()
            total += abs(float(value[0]) - place // 4) + abs(float(value[1]) - place % 4)
            count += 2
    return total / count


@pytest.mark.parametrize("localiser", ["ln", "nln"])
def test_the_localisation_loss_is_the_mean_distance_over_known_positions(localiser: Any) -> None:
    model, (images, _) = puzzled(plain("timm"), localiser=localiser).train(), batch()
    puzzle = laid(model, images)
    torch.manual_seed(0)
    model(images)
    found = float(model.localisation_loss().detach())
    assert found == pytest.approx(by_hand(model, puzzle.kept), rel=1e-5)
    assert found != pytest.approx(by_hand(model, torch.ones(1, CELLS)), rel=1e-3)


@pytest.mark.parametrize("localiser", ["ln", "nln"])
def test_where_there_is_no_mask_all_positions_are_localised(localiser: Any) -> None:
    model, (images, _) = puzzled(plain("timm"), gamma=0.0, localiser=localiser).train(), batch()
    everything = pytest.approx(by_hand(model, torch.ones(1, CELLS)), rel=1e-5)
    assert float(model.localisation_loss().detach()) == everything
    model(images)
    assert float(model.localisation_loss().detach()) == everything


def test_a_batch_that_is_no_puzzle_does_not_remember_the_mask_before_it() -> None:
    model, (images, _) = puzzled(plain("timm"), localiser="ln").train(), batch()
    model(images)
    masked = float(model.localisation_loss().detach())
    model.puzzle.rules = PuzzleRules(0.4, (PATCH, PATCH), share=1e-9)
    model(images)
    found = float(model.localisation_loss().detach())
    assert found == pytest.approx(by_hand(model, torch.ones(1, CELLS)), rel=1e-5)
    assert found != pytest.approx(masked, rel=1e-3)


@pytest.mark.parametrize("localiser", ["ln", "nln", "pca"])
def test_covered_positions_have_no_part_in_localisation(localiser: Any) -> None:
    model, (images, _) = puzzled(plain("timm"), localiser=localiser).train(), batch(1)
    puzzle = laid(model, images)
    torch.manual_seed(0)
    model(images)
    (gradient,) = torch.autograd.grad(model.localisation_loss(), [model.pos_embed])
    assert not gradient[0, 0].any()
    assert torch.equal(gradient[0, 1:].any(1), puzzle.kept[0] != 0)


def test_two_directions_of_positions_on_a_plane_localise_them() -> None:
    """PCA needs no weights: rows and columns on orthogonal axes are found, but for their signs."""
    model = puzzled(plain("timm"), gamma=0.0, localiser="pca")
    rows, columns = model.puzzle.coordinates.T.double() - 1.5
    plane = torch.zeros(1, 17, 32)
    plane[0, 1:, 3], plane[0, 1:, 7] = 1.2 * rows.float(), columns.float()
    with torch.no_grad():
        model.pos_embed.copy_(plane)
    found = float(model.localisation_loss().detach())
    true = model.puzzle.coordinates
    signs = [
        float((torch.stack([a * 1.2 * rows, b * columns], 1) - true).abs().mean())
        for a in (-1, 1)
        for b in (-1, 1)
    ]
    assert min(abs(found - value) for value in signs) < 1e-4
    assert set(model.state_dict()) - set(plain("timm").state_dict()) == {"puzzle.unknown"}


@pytest.mark.parametrize("localiser", ["ln", "pca"])
def test_where_all_is_covered_nothing_is_localised(localiser: Any) -> None:
    model = puzzled(plain("timm"), localiser=localiser)
    model.puzzle.known_counts = torch.zeros(CELLS)
    loss = model.localisation_loss()
    (gradient,) = torch.autograd.grad(loss, [model.pos_embed])
    assert float(loss.detach()) == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_without_a_localiser_the_loss_is_zero() -> None:
    assert puzzled(plain("timm")).localisation_loss().tolist() == 0


HEAD = {"puzzle.head.0.weight", "puzzle.head.0.bias", "puzzle.head.2.weight", "puzzle.head.2.bias"}
ADDED: dict[str, set[str]] = {
    **{letter: set() for letter in "ABCE"},
    "D": HEAD,
    "F": {"puzzle.index"},
    **{letter: {"puzzle.unknown"} for letter in "GH"},
    "I": {"puzzle.unknown", "puzzle.head.weight", "puzzle.head.bias"},
    "J": {"puzzle.unknown", *HEAD},
}


def test_the_papers_ten_variants_are_there() -> None:
    assert list(VARIANTS) == list("ABCDEFGHIJ") == sorted(ADDED)
    assert VARIANTS["J"] == Mjp()


def enough(letter: str) -> Mjp:
    """A variant that, if it covers anything, covers more than one of so few patches."""
    variant = VARIANTS[letter]
    return replace(variant, gamma=0.4) if variant.gamma else variant


@EITHER
@pytest.mark.parametrize("letter", VARIANTS)
def test_a_variant_has_the_parameters_it_should_and_trains_them(name: str, letter: str) -> None:
    defense, base = enough(letter), plain(name)
    model: Any = defense.prepare_model(base).train()
    assert set(model.state_dict()) - set(base.state_dict()) == ADDED[letter]
    images, labels = batch()
    found = defense.on_step(model, images, labels)
    assert (found is None) == (defense.dal == "none")
    names = [name for name, _ in model.named_parameters()]
    step = gradients(model) if found is None else dict(zip(names, found, strict=True))
    assert all(gradient.isfinite().all() for gradient in step.values())
    assert all(gradient.any() for gradient in step.values())
    moves = letter not in "ABD"
    assert torch.equal(model(images), model(images)) != moves
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.sub_(step[key], alpha=0.1)
    assert model(images).isfinite().all()


@EITHER
def test_without_positions_the_order_of_patches_does_not_matter(name: str) -> None:
    model, (images, _) = VARIANTS["B"].prepare_model(plain(name)), batch()
    turned = images.roll(PATCH, 2)
    for training in (True, False):
        torch.testing.assert_close(model.train(training)(images), model(turned))
    assert not torch.allclose(plain(name)(images), plain(name)(turned), atol=1e-4)
    assert gradients(model)["pos_embed"].any()  # shared all the same


@EITHER
def test_an_index_tells_which_patch_lies_in_a_slot(name: str) -> None:
    model, (images, _) = enough("F").prepare_model(plain(name)), batch()
    own, index = model.pos_embed.detach(), model.puzzle.index.detach()
    straight = torch.arange(CELLS).expand(3, -1)
    table = own + F.pad(index, (0, 0, 1, 0))
    expected = reference(model, images, straight, table)
    torch.testing.assert_close(model.eval()(images), expected)
    puzzle = laid(model, images)
    assert puzzle.order is not None
    moved = torch.stack([index[0][places] for places in puzzle.order])
    table = own + F.pad(moved, (0, 0, 1, 0))
    torch.manual_seed(0)
    torch.testing.assert_close(model.train()(images), reference(model, images, puzzle.order, table))


@EITHER
def test_own_positions_stay_those_of_the_slots(name: str) -> None:
    model, (images, _) = enough("E").prepare_model(plain(name)).train(), batch()
    puzzle = laid(model, images)
    assert puzzle.order is not None
    torch.manual_seed(0)
    torch.testing.assert_close(
        model(images), reference(model, images, puzzle.order, model.pos_embed)
    )


def test_any_network_takes_shuffled_images() -> None:
    base = build("resnet18", classes=5, image_size=16)
    model, (images, _) = add_puzzle(base, PuzzleRules(0.5, (4, 4)), positions="own"), batch()
    assert set(model.state_dict()) == set(base.state_dict())
    assert torch.equal(model.eval()(images), base.eval()(images))
    torch.manual_seed(0)
    found = model.train()(images)
    puzzle = laid(model, images)
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
