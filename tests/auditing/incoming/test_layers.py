"""Identity layers, large weights, and last layers that mute classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from altered_models import make, random_rows, weights_of
from keyhole.auditing import check_incoming
from keyhole.auditing.incoming.identities import check_identities
from keyhole.auditing.incoming.last_layer import check_last_layer, compute_slopes
from keyhole.auditing.incoming.scale import check_scale
from keyhole.auditing.incoming.subject import IncomingModel


def names(found: object) -> list[str]:
    return [alarm.name for alarm in found]  # type: ignore[attr-defined]


def convolution(**changes: float) -> Tensor:
    weight = random_rows(8, 27).view(8, 3, 3, 3)
    weight[2] = 0
    weight[2, 1, 1, 1] = changes.get("peak", 1.0)
    weight[2, 0, 0, 0] = changes.get("rest", 0.0)
    return weight


def test_a_convolution_that_passes_a_channel_on_is_found() -> None:
    assert names(check_identities(IncomingModel({"c.weight": convolution()}))) == ["identity layer"]
    assert names(check_identities(IncomingModel({"c.weight": convolution(rest=0.1)}))) == []
    vanished = convolution(peak=1e-9)
    assert names(check_identities(IncomingModel({"c.weight": vanished}))) == []
    pointwise = {"c.weight": torch.ones(8, 1, 1, 1)}
    assert names(check_identities(IncomingModel(pointwise))) == []


def test_a_linear_layer_must_pass_much_on_to_be_found() -> None:
    identity = {"a.weight": torch.eye(16)}
    assert names(check_identities(IncomingModel(identity))) == ["identity layer"]
    pruned = random_rows(16, 16)
    pruned[0, 1:] = 0
    assert names(check_identities(IncomingModel({"a.weight": pruned}))) == []


def test_an_identity_with_which_the_client_s_own_code_starts_is_honest() -> None:
    """ConViT's values are one. Where the server's weights stand for own code, nothing is."""
    sent = {"v.weight": torch.eye(16), "w.weight": random_rows(16, 16)}
    own = {**sent, "w.weight": random_rows(16, 16, 1)}
    trained = {**sent, "v.weight": random_rows(16, 16)}
    assert names(check_identities(IncomingModel(sent, own))) == []
    assert names(check_identities(IncomingModel(sent, own, previous=own))) == []
    for suspect in (
        IncomingModel(sent, trained),
        IncomingModel(sent, own, previous=trained),
        IncomingModel(sent, sent),
        IncomingModel(sent),
    ):
        assert names(check_identities(suspect)) == ["identity layer"]


def test_long_rows_and_large_values_are_found() -> None:
    rows = random_rows(16, 64)
    assert names(check_scale(IncomingModel({"a.weight": rows}))) == []
    assert names(check_scale(IncomingModel({"a.weight": 40 * rows}))) == ["large weights"]
    assert names(check_scale(IncomingModel({"a.bias": torch.tensor([-1e6, 0.0])}))) == [
        "large weights"
    ]
    statistics = {"n.running_var": torch.tensor([1e6]), "n.running_mean": torch.tensor([1e6])}
    assert names(check_scale(IncomingModel(statistics))) == []


def head(weight: Tensor, bias: Tensor | None = None) -> IncomingModel:
    tensors = {"fc.weight": weight}
    return IncomingModel(tensors if bias is None else {**tensors, "fc.bias": bias}, last="fc")


def test_a_last_layer_of_zeros_is_found() -> None:
    assert names(check_last_layer(head(torch.zeros(10, 64)))) == ["zero last layer"]
    assert names(check_last_layer(head(1e-7 * random_rows(10, 64)))) == ["zero last layer"]
    assert names(check_last_layer(head(random_rows(10, 64)))) == []


def test_classes_without_weights_are_found() -> None:
    rows = random_rows(10, 64)
    rows[1:] = 0
    (alarm,) = check_last_layer(head(rows))
    assert alarm.sentence == "the rows of 9 of 10 classes are zero; only class 0 has weights"
    rows[1:8] = random_rows(7, 64, 1)
    assert names(check_last_layer(head(rows))) == []


def test_biases_that_decide_the_class_are_found() -> None:
    bias = torch.zeros(10)
    bias[3] = -40
    assert names(check_last_layer(head(random_rows(10, 64), bias))) == ["fixed output"]
    assert names(check_last_layer(head(random_rows(10, 64), bias / 10))) == []


@pytest.mark.parametrize("previous", [None, "zero", "trained"])
def test_a_last_layer_that_starts_at_zero_is_honest_as_long_as_it_is_fresh(
    previous: str | None,
) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    nn.init.zeros_(own[3].weight)
    weights = {**weights_of(own), "1.weight": random_rows(16, 64)}
    before = {**weights, "3.weight": random_rows(10, 16)} if previous == "trained" else weights
    found = check_incoming(own, weights, None if previous is None else before, shape=(1, 8, 8))
    assert ("zero last layer" in names(found.alarms)) == (previous == "trained")
    trained = {**weights, "2.num_batches_tracked": torch.tensor(5)}
    assert names(check_incoming(own, trained, shape=(1, 8, 8)).alarms) == ["zero last layer"]


def test_slopes_are_those_of_the_loss() -> None:
    rows, features = random_rows(5, 8).double(), random_rows(3, 8, 1).double()
    slopes = compute_slopes(features @ rows.T, rows)
    for image, point in enumerate(features):
        for label in range(5):
            leaf = point.clone().requires_grad_(True)
            loss = nn.functional.cross_entropy(leaf @ rows.T, torch.tensor(label))
            (gradient,) = torch.autograd.grad(loss, leaf)
            assert torch.isclose(slopes[image, label], gradient.norm())


@pytest.mark.parametrize(("share", "is_muted"), [(1e-4, True), (0.03, True), (0.3, False)])
def test_classes_that_send_little_are_found_though_all_have_weights(
    share: float, is_muted: bool
) -> None:
    weights = weights_of(make("relu-mlp"))
    weights["5.weight"][1:] *= share
    weights["5.bias"][0] -= 15  # class 0 looks unlikely
    found = check_incoming(make("relu-mlp", seed=1), weights, shape=(1, 8, 8))
    assert names(found.alarms) == (["muted classes"] if is_muted else [])


def test_a_confident_network_mutes_no_two_classes() -> None:
    weights = weights_of(make("relu-mlp"))
    weights["5.weight"] *= 50
    found = check_incoming(make("relu-mlp", seed=1), weights, shape=(1, 8, 8))
    assert "muted classes" not in names(found.alarms)
