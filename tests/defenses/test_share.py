"""Sharing a part of the model: what is missing from the update, and who says so."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from keyhole import audit
from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide, NoDefense, Share
from keyhole.errors import BadUpdate, DoesNotFit
from keyhole.federation import Federation, LocalTraining, train_client
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


def trained(defense: Share | NoDefense, memory: dict | None = None) -> tuple[Update, ClientSide]:
    side = ClientSide(memory={} if memory is None else memory)
    update, _ = train_client(
        net(),
        digits.images(range(8)),
        digits.labels[:8],
        data=digits,
        defense=defense,
        generator=generator(0),
        training=LocalTraining(lr=0.1, steps=2),
        memory=side.memory,
    )
    return update, side


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        ("head", {"4.weight", "4.bias"}),
        (
            "body",
            {
                "0.weight",
                "0.bias",
                "1.weight",
                "1.bias",
                "1.running_mean",
                "1.running_var",
                "1.num_batches_tracked",
            },
        ),
        ("no-norm", {"0.weight", "0.bias", "4.weight", "4.bias"}),
    ],
)
def test_only_the_shared_part_leaves(part: str, sent: set[str]) -> None:
    update, _ = trained(Share(part=part))
    whole, _ = trained(NoDefense())
    assert set(update.change) == sent
    assert set(update.change) | Share(part=part).unshared(net()) == set(whole.change)
    if part != "head":  # whose body is not trained
        assert all(torch.equal(update.change[n], whole.change[n]) for n in sent)


def test_what_stays_with_a_client_is_trained_on() -> None:
    defense = Share(part="body")
    _, side = trained(defense)
    whole, _ = trained(NoDefense())
    kept = defense.on_model(net(), side).state_dict()
    for name, start in net().state_dict().items():
        moved = name in ("4.weight", "4.bias")
        torch.testing.assert_close(kept[name], start + whole.change[name] if moved else start)
    first = copy.deepcopy(side.memory)
    trained(defense, side.memory)
    assert side.memory != first


def test_a_head_alone_is_trained_on_a_frozen_body() -> None:
    local = Share(part="head").on_model(net())
    assert [n for n, p in local.named_parameters() if p.requires_grad] == ["4.weight", "4.bias"]


def test_the_server_averages_what_it_gets_and_leaves_the_rest() -> None:
    model = net()
    start = copy.deepcopy(model.state_dict())
    federation = Federation(
        model,
        digits,
        [list(range(8)), list(range(8, 16))],
        (digits, range(100, 120)),
        LocalTraining(lr=0.1, steps=1),
        Share(part="body"),
    )
    list(federation.run_rounds(1, 2))
    after = model.state_dict()
    assert torch.equal(after["4.weight"], start["4.weight"])
    assert not torch.equal(after["0.weight"], start["0.weight"])
    assert federation.memory[0] != federation.memory[1]


def test_attacks_that_need_what_is_missing_say_so() -> None:
    result = audit(
        model="mlp", data="digits", defenses=["share(part='head')"], attacks=["linear", "labels"]
    )
    assert {f.attack for f in result.findings} == {"labels"}
    [skipped] = result.skipped
    assert "which clients do not report" in skipped.why


def test_it_goes_with_other_defenses() -> None:
    made = DEFENSES.parse("share(part='body') + topk(k=0.1)")
    assert made.unshared(net()) == {"4.weight", "4.bias"}
    update, side = trained(made)
    assert "4.weight" not in update.change
    assert set(side.memory) == {"1-share"}


def test_models_without_such_a_part_are_refused() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    for part in ("head", "body", "no-norm"):
        with pytest.raises(DoesNotFit, match="share"):
            Share(part=part).validate(plain)
    with pytest.raises(DoesNotFit, match=r"ClientSide\(model"):
        Share().on_update(Update({"w": torch.ones(2)}))
    with pytest.raises(BadUpdate, match="nothing that is shared"):
        Share().on_update(Update({"0.weight": torch.ones(4, 1, 3, 3)}), ClientSide(model=net()))
