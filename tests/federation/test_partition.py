from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from keyhole.data import ImageSet, load
from keyhole.errors import BadValue, DataMissing, DoesNotFit, KeyholeError, UnknownName
from keyhole.federation import PARTITIONS, TrainingPlan, build_federation
from keyhole.federation.partition import Balanced, ByUser, Dirichlet, Iid, Partition
from keyhole.seeds import generator

digits = load("digits")
USERS = 12
owned = replace(digits, users=torch.arange(len(digits)) % USERS)
EVERY = [Iid(), Balanced(), Dirichlet(), Dirichlet(alpha=0.01), Dirichlet(alpha=100), ByUser()]

some_images = st.lists(st.integers(0, len(digits) - 1), unique=True, min_size=40, max_size=80)


def split(
    partition: Partition,
    images: Sequence[int] = range(300),
    clients: int = 7,
    seed: int = 0,
    data: ImageSet = owned,
) -> list[list[int]]:
    return partition(data, images, clients, generator(seed, "partition"))


@pytest.mark.parametrize("partition", EVERY, ids=str)
@settings(max_examples=15)
@given(images=some_images, clients=st.integers(1, 8), seed=st.integers(0, 99))
def test_every_image_has_exactly_one_owner(
    partition: Partition, images: list[int], clients: int, seed: int
) -> None:
    names = {int(owned.users[i]) for i in images}  # type: ignore[index]
    shares = split(partition, images, min(clients, len(names)), seed)
    assert sorted(i for share in shares for i in share) == sorted(images)
    assert all(shares)
    assert all(type(i) is int for share in shares for i in share)


@pytest.mark.parametrize("partition", EVERY, ids=str)
def test_the_same_generator_gives_the_same_split(partition: Partition) -> None:
    torch.manual_seed(1)
    one = split(partition)
    torch.manual_seed(2)
    assert split(partition) == one
    assert split(partition, seed=1) != one


@pytest.mark.parametrize("partition", EVERY[:-1], ids=str)
def test_as_many_clients_as_images_get_one_each(partition: Partition) -> None:
    assert all(len(share) == 1 for share in split(partition, range(9), 9))


@pytest.mark.parametrize("partition", EVERY, ids=str)
def test_a_single_client_gets_everything(partition: Partition) -> None:
    (share,) = split(partition, range(50), 1)
    assert sorted(share) == list(range(50))


@settings(max_examples=20)
@given(count=st.integers(8, 60), clients=st.integers(1, 8))
def test_iid_shares_differ_by_one_image_at_most(count: int, clients: int) -> None:
    sizes = [len(share) for share in split(Iid(), range(count), clients)]
    assert max(sizes) - min(sizes) <= 1


def classes(share: Sequence[int]) -> Counter[int]:
    return Counter(digits.labels[list(share)].tolist())


@settings(max_examples=20)
@given(images=some_images, clients=st.integers(1, 8))
def test_balanced_shares_differ_by_one_image_of_any_class_at_most(
    images: list[int], clients: int
) -> None:
    shares = split(Balanced(), images, clients)
    for label in range(10):
        held = [classes(share)[label] for share in shares]
        assert max(held) - min(held) <= 1
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_the_images_of_a_class_are_mixed_before_they_are_dealt() -> None:
    one, other = split(Balanced(), seed=0), split(Balanced(), seed=1)
    assert [set(share) for share in one] != [set(share) for share in other]


def skew(alpha: float) -> float:
    """How far clients' class shares lie from everyone's, on average over some seeds."""
    everyone = np.bincount(digits.labels.numpy(), minlength=10) / len(digits)
    away = []
    for seed in range(3):
        for share in split(Dirichlet(alpha=alpha), range(len(digits)), 6, seed):
            own = np.bincount(digits.labels[share].numpy(), minlength=10) / len(share)
            away.append(np.abs(own - everyone).sum())
    return float(np.mean(away))


def test_the_smaller_alpha_the_more_clients_differ() -> None:
    measured = [skew(alpha) for alpha in (0.05, 0.5, 5.0, 500.0)]
    assert measured == sorted(measured, reverse=True)
    assert measured[0] > 2 * measured[2]
    assert measured[-1] < 0.15


def test_every_client_has_an_image_however_skewed() -> None:
    for seed in range(5):
        shares = split(Dirichlet(alpha=1e-3), range(100), 10, seed)
        assert min(len(share) for share in shares) >= 1
        assert max(len(share) for share in shares) > 10


def test_users_stay_whole() -> None:
    shares = split(ByUser(), range(300), 5)
    assert owned.users is not None
    found = [{int(owned.users[i]) for i in share} for share in shares]
    assert sum(len(users) for users in found) == USERS
    assert set().union(*found) == set(range(USERS))
    assert {len(users) for users in found} == {2, 3}


def test_clients_as_many_as_users_are_the_users() -> None:
    shares = split(ByUser(), range(120), USERS)
    assert owned.users is not None
    assert sorted({int(owned.users[i]) for i in share}.pop() for share in shares) == list(range(12))
    assert all(len(share) == 10 for share in shares)


def test_groups_stand_in_for_users() -> None:
    grouped = replace(digits, groups=torch.arange(len(digits)) // 10)
    shares = split(ByUser(), range(100), 10, data=grouped)
    assert sorted({i // 10 for i in share}.pop() for share in shares) == list(range(10))
    assert all(len({i // 10 for i in share}) == 1 for share in shares)


@pytest.mark.parametrize(
    ("partition", "clients", "data", "words"),
    [
        (Iid(), 31, digits, "too few for 31 clients: pass fewer --clients"),
        (Dirichlet(), 31, digits, "pass fewer --clients"),
        (ByUser(), 3, digits, "USER/CLASS/IMAGE, or another --partition"),
        (ByUser(), 13, owned, "12 users, too few for 13 clients"),
    ],
    ids=["iid", "dirichlet", "no users", "few users"],
)
def test_a_split_that_cannot_be_is_told_in_a_line(
    partition: Partition, clients: int, data: ImageSet, words: str
) -> None:
    with pytest.raises(DoesNotFit) as raised:
        split(partition, range(30), clients, data=data)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_too_few_users_is_told_with_what_to_do() -> None:
    with pytest.raises(DoesNotFit, match="--clients"):
        split(ByUser(), range(30), 13)


def test_a_partition_that_leaves_a_client_without_images_is_told() -> None:
    class Greedy(Iid):
        name = "greedy"

        def split(
            self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
        ) -> list[list[int]]:
            return [list(images), *([] for _ in range(clients - 1))]

    with pytest.raises(DoesNotFit, match="'greedy' leaves client 1 without images: pass fewer"):
        split(Greedy())


def test_partitions_are_asked_for_by_name() -> None:
    assert [member.name for member in PARTITIONS] == ["iid", "balanced", "dirichlet", "by-user"]
    assert PARTITIONS.parse("dirichlet(alpha=0.1)") == Dirichlet(alpha=0.1)
    with pytest.raises(UnknownName, match="did you mean dirichlet"):
        PARTITIONS.parse("dirichlt")
    for value in ("0", "-1", "'much'", "1e400"):
        with pytest.raises(BadValue, match="alpha"):
            PARTITIONS.parse(f"dirichlet(alpha={value})")


def picture(file: Path, tone: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), tone).save(file)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Three users; not everyone has images of both classes."""
    tone = 0
    for user, held in {"eve": ("cat", "dog"), "ada": ("dog",), "bob": ("cat", "dog")}.items():
        for kind in held:
            for number in range(3):
                picture(tmp_path / user / kind / f"{number}.png", tone := tone + 10)
    return tmp_path


def test_a_folder_of_users_is_read_by_user(people: Path) -> None:
    data = load(str(people), by_user=True)
    assert data.classes == ("cat", "dog")
    assert Counter(data.labels.tolist()) == {0: 6, 1: 9}
    assert data.users is not None
    assert Counter(data.users.tolist()) == {0: 3, 1: 6, 2: 6}
    whose = {}
    for index in range(len(data)):
        tone = round(float(data.images([index]).mean()) * 255)
        whose[tone] = (int(data.users[index]), data.classes[data.labels[index]])
    assert {whose[tone] for tone in (10, 20, 30)} == {(2, "cat")}
    assert {whose[tone] for tone in (40, 50, 60)} == {(2, "dog")}
    assert {whose[tone] for tone in (70, 80, 90)} == {(0, "dog")}
    assert {whose[tone] for tone in (100, 110, 120)} == {(1, "cat")}
    assert {whose[tone] for tone in (130, 140, 150)} == {(1, "dog")}


def test_the_same_folder_read_plainly_knows_no_users(people: Path) -> None:
    data = load(str(people))
    assert data.users is None
    assert data.classes == ("ada", "bob", "eve")


def test_a_user_without_class_folders_has_one_class(tmp_path: Path) -> None:
    for user in ("ada", "bob"):
        picture(tmp_path / user / "1.png", 50)
    data = load(str(tmp_path), by_user=True)
    assert data.classes == ("images",)
    assert data.users is not None
    assert data.users.tolist() == [0, 1]


def test_an_image_of_nobody_is_named(people: Path) -> None:
    picture(people / "stray.png", 5)
    with pytest.raises(DataMissing, match=r"stray\.png belongs to no user: name it USER/CLASS"):
        load(str(people), by_user=True)


def test_clients_of_a_training_are_whole_users(people: Path) -> None:
    plan = TrainingPlan(
        data=str(people), partition="by-user", clients=3, held_out=0.1, together="no"
    )
    federation = build_federation(plan, data_dir=None)
    assert federation.data.users is not None
    found = [{int(federation.data.users[i]) for i in share} for share in federation.shares]
    assert all(len(users) == 1 for users in found)
    assert set().union(*found) == {0, 1, 2}
    kept = federation.test[1]
    assert not {i for share in federation.shares for i in share} & set(kept)
    assert len(kept) + sum(len(share) for share in federation.shares) == 15


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partition": "by-user"}, "USER/CLASS/IMAGE"),
        ({"clients": 5000}, "pass fewer --clients"),
        ({"partition": "nobody"}, "unknown partition"),
        ({"held_out": 1e-6}, "too few to hold out"),
        ({"held_out": 1 - 1e-9}, "too few to hold out"),
    ],
)
def test_a_training_that_cannot_be_shared_out_is_told(
    values: dict[str, object], words: str
) -> None:
    with pytest.raises(KeyholeError) as raised:
        build_federation(TrainingPlan(**{"data": "digits", **values}), data_dir=None)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_partition_may_be_spelled_with_brackets(people: Path) -> None:
    plan = TrainingPlan(data=str(people), partition="by-user()", clients=3, held_out=0.1)
    assert build_federation(plan, data_dir=None).data.users is not None


def test_no_client_has_more_images_than_allowed() -> None:
    federation = build_federation(TrainingPlan(clients=4, images=7), data_dir=None)
    assert [len(share) for share in federation.shares] == [7] * 4
