"""The whole game on digits: what a malicious client draws in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from keyhole.data import ImageSet
from keyhole.defenses import ClientSide, Defense
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation import Federation
from keyhole.metrics.image import ssim
from keyhole.seeds import generator
from keyhole_studies.csvar.generated import judge_generated
from keyhole_studies.hitaj import Hitaj, Infiltration

TARGET = 3


class OneShuffle(Defense):
    """A toy: all pixels change places, always in the same way."""

    name = "one-shuffle"
    summary = "moves every pixel"
    paper = "none"
    order = torch.randperm(64, generator=generator(0, "order"))

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        return images.flatten(1)[:, self.order].view_as(images)


def of_class(data: ImageSet, wanted: int) -> Tensor:
    return data.images(torch.nonzero(data.labels == wanted).flatten().tolist())


def mean_likeness(images: Tensor, data: ImageSet) -> float:
    """SSIM to the target's mean image, over drawings."""
    centre = of_class(data, TARGET).mean(0, keepdim=True)
    return float(ssim(images, centre.expand_as(images), data_range=1.0).mean())


def test_the_target_is_drawn_and_recognised(
    infiltrate: Callable[..., Infiltration], digits: ImageSet
) -> None:
    game = infiltrate(rounds=20, steps=8)
    *_, last = game.run_rounds()
    means = torch.stack([of_class(digits, c).mean(0) for c in range(10)]).flatten(1)
    others = torch.cat([of_class(digits, c) for c in range(10) if c != TARGET])
    judgement = judge_generated(
        game.draw_final(32).images,
        of_class(digits, TARGET),
        others,
        target=TARGET,
        generator=generator(0),
        classifier=lambda images: -torch.cdist(images.flatten(1), means),
    ).means()
    assert last.accuracy > 0.6
    assert judgement["generated"]["recognised"] > 0.7
    for null in ("noise", "others"):
        assert judgement["generated"]["mean_ssim"] > judgement[null]["mean_ssim"] + 0.1


def test_who_knows_the_shuffle_draws_the_clean_image(
    infiltrate: Callable[..., Infiltration], digits: ImageSet
) -> None:
    defense = OneShuffle()
    found = {}
    for name, known in (("naive", None), ("adaptive", defense.on_images)):
        game = infiltrate(rounds=20, steps=8, defense=defense, known_defense=known)
        list(game.run_rounds())
        found[name] = mean_likeness(game.draw_final(32).images, digits)
    assert found["adaptive"] > found["naive"] + 0.2


def test_gradients_reach_the_generator_through_a_defense(
    infiltrate: Callable[..., Infiltration],
) -> None:
    game = infiltrate(known_defense=OneShuffle().on_images)
    adversary = game.adversary
    before = [p.detach().clone() for p in adversary.generator.parameters()]
    adversary.train_generator(generator(0))
    after = list(adversary.generator.parameters())
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert all(moved)


def test_the_same_seed_repeats_every_round_exactly(
    infiltrate: Callable[..., Infiltration], same_rng: Callable[[], bool]
) -> None:
    def run(seed: int) -> list[tuple[float, float, Tensor]]:
        game = infiltrate(rounds=3, seed=seed)
        seen = [(r.accuracy, r.confidence, r.samples) for r in game.run_rounds()]
        return [*seen, (0.0, 0.0, game.draw_final(4).images)]

    one, two, other = run(0), run(0), run(1)
    assert all(a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[-1][2], other[-1][2])
    assert same_rng()


def test_honest_clients_are_those_of_the_plain_federation(
    infiltrate: Callable[..., Infiltration], federation: Callable[..., Federation]
) -> None:
    """Round one, before any answer of the adversary has reached them."""
    game, plain = infiltrate(), federation()
    here = game.federation.collect_updates(1, [0])[0].update
    there = plain.collect_updates(1, [0])[0].update
    assert all(torch.equal(here.change[name], there.change[name]) for name in there.change)


def test_every_round_is_reported(infiltrate: Callable[..., Infiltration]) -> None:
    game = infiltrate(rounds=3)
    rounds = list(game.run_rounds())
    assert rounds[-1].accuracy == game.federation.evaluate()[0]
    assert [r.number for r in rounds] == [1, 2, 3]
    for r in rounds:
        assert r.samples.shape == (16, 1, 8, 8)
        assert r.seconds > 0
    shown = rounds[-1].samples
    with torch.no_grad():
        true_classes = game.adversary.compute_logits(shown)[:, :10]  # without the one for fakes
    sure = true_classes.softmax(1)[:, TARGET]
    assert rounds[-1].confidence == pytest.approx(float(sure.mean()), rel=1e-4)
    assert sure.tolist() == sorted(sure.tolist(), reverse=True)


def test_a_target_among_the_adversarys_images_can_be_taken_from_it(
    federation: Callable[..., Federation], digits: ImageSet
) -> None:
    made, attack = federation(), Hitaj(target=7)
    with pytest.raises(DoesNotFit, match="class 7"):
        Infiltration(made, attack, client=1)
    allowed = [i for i in made.shares[1] if int(digits.labels[i]) != 7]
    made.shares = [made.shares[0], allowed]
    adversary = Infiltration(made, attack, client=1).adversary
    assert sorted(set(adversary.labels.tolist())) == [5, 6, 8, 9]


@pytest.mark.parametrize(("client", "target"), [(2, 3), (-1, 3), (1, 10)])
def test_clients_and_classes_that_do_not_exist_are_refused(
    federation: Callable[..., Federation], client: int, target: int
) -> None:
    with pytest.raises(BadValue):
        Infiltration(federation(), Hitaj(target=target), client=client)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_game_is_played_on_a_gpu(federation: Callable[..., Federation]) -> None:
    made = federation()
    made.model.cuda()
    game = Infiltration(made, Hitaj(target=TARGET, rounds=2, steps=2), client=1)
    *_, last = game.run_rounds()
    assert last.samples.is_cuda
    assert game.draw_final(4).images.isfinite().all()
