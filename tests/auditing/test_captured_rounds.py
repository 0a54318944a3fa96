"""Earlier rounds of captured clients reach the attacks, each with its own global weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from keyhole.auditing.attack_setting import AttackSetting
from keyhole.auditing.captured import build_captured_settings
from keyhole.auditing.observed_client import ObservedClient, observe_client
from keyhole.auditing.plan import Stage
from keyhole.federation import Capture, TrainingPlan, train

ROUNDS = 5


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rounds")
    plan = TrainingPlan(
        model="lenet", data="digits", clients=2, images=2, batch_size=2, rounds=ROUNDS, lr=0.1
    )
    train(plan, out=root / "run", capture=root / "seen")
    return root / "seen"


def observed(folder: Path, rounds: str, **about: object) -> list[ObservedClient]:
    stage = Stage(
        model="lenet", data="digits", captured=folder, attacks=("ig",), rounds=rounds, **about
    )
    settings, _ = build_captured_settings(stage, seed=0, data_dir=None, device=torch.device("cpu"))
    opened: list[AttackSetting] = [setting.with_server() for setting in settings]
    return [observe_client(each, victim) for each in opened for victim in range(2)]


def test_the_last_three_rounds_before_come_with_their_own_weights(captured: Path) -> None:
    for client in observed(captured, str(ROUNDS)):
        seen = client.observation.rounds
        assert [each.number for each in seen] == [2, 3, 4]
        for each in seen:
            sent = Capture.open(captured).rounds[each.number - 1].read_weights()
            assert all(torch.equal(each.weights[name], sent[name]) for name in sent)
            model = client.observation.in_round(each.number).model
            assert torch.equal(model.state_dict()[next(iter(sent))], sent[next(iter(sent))])
        assert not torch.equal(
            next(iter(seen[0].weights.values())), next(iter(seen[1].weights.values()))
        )


def test_the_first_round_has_none_before(captured: Path) -> None:
    assert all(not client.observation.rounds for client in observed(captured, "1"))


def test_rounds_that_cannot_be_used_are_passed_over(captured: Path, tmp_path: Path) -> None:
    copy = tmp_path / "seen"
    shutil.copytree(captured, copy)
    rounds = Capture.open(copy).rounds
    shutil.rmtree(rounds[2].folder)
    broken = rounds[3].folder / str(rounds[3].clients[0]["file"])
    broken.write_bytes(b"nothing")
    first, second = observed(copy, str(ROUNDS))
    numbers = [[r.number for r in each.observation.rounds] for each in (first, second)]
    assert sorted(numbers) == [[1, 2], [1, 2, 4]]


def test_rounds_after_another_training_are_not_the_same_images(captured: Path) -> None:
    (client, _) = observed(captured, "2", steps=3, batch_size=1)
    assert client.observation.rounds == ()
