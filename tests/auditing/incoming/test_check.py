"""Architecture, hash, values that are not finite, and what could not be checked."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from altered_models import digits, make, weights_of
from keyhole.auditing import IncomingCheck, check_incoming
from keyhole.auditing.incoming import hash_weights
from keyhole.auditing.incoming.input_shape import build_for_weights
from keyhole.auditing.incoming.subject import guess_last_layer
from keyhole.errors import BadValue, DoesNotFit
from keyhole.models import build


def names(found: IncomingCheck) -> list[str]:
    return [alarm.name for alarm in found.alarms]


def test_added_missing_and_other_tensors_are_alarms() -> None:
    weights = weights_of(make("lenet"))
    own = make("lenet", seed=1)
    added = {**weights, "spy.weight": torch.randn(4, 4)}
    assert names(check_incoming(own, added)) == ["added tensors"]
    missing = {name: tensor for name, tensor in weights.items() if name != "0.bias"}
    assert names(check_incoming(own, missing)) == ["missing tensors"]
    other = {**weights, "0.bias": torch.zeros(13)}
    found = check_incoming(own, other)
    assert names(found) == ["other shape"]
    assert found.alarms[0].sentence == ("its shape is [13], where the client's own model has [12]")
    assert names(check_incoming(None, missing, weights)) == ["missing tensors"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_an_alarm_and_nothing_else_is_run(value: float) -> None:
    weights = weights_of(make("lenet"))
    weights["0.bias"][3] = value
    found = check_incoming(make("lenet", seed=1), weights)
    assert (names(found), found.checked) == (["not finite"], ("values",))
    assert found.suspicious is True


@pytest.mark.parametrize("kind", [torch.int64, torch.complex64, torch.bool])
@pytest.mark.parametrize("has_model", [True, False])
def test_weights_of_another_type_are_an_alarm(kind: torch.dtype, has_model: bool) -> None:
    """A model would load them, and checks of floating tensors would not see them."""
    weights = weights_of(make("lenet"))
    weights["2.weight"] = torch.ones_like(weights["2.weight"]).to(kind)
    found = check_incoming(make("lenet", seed=1) if has_model else None, weights)
    assert (names(found), found.checked) == (["other type"], ("values",))


def test_averaged_integer_buffers_are_honest() -> None:
    weights = weights_of(make("resnet18"))
    counts = {n: t.double() + 0.5 for n, t in weights.items() if n.endswith("tracked")}
    assert counts
    assert check_incoming(make("resnet18", seed=1), {**weights, **counts}).suspicious is False


def test_no_weights_are_an_alarm() -> None:
    assert check_incoming(None, {}).suspicious is True


def test_nobody_knows_where_the_architecture_was_not_checked() -> None:
    weights = weights_of(make("lenet"))
    found = check_incoming(None, weights)
    assert (found.suspicious, found.alarms) == (None, ())
    assert {each.check for each in found.not_checked} == {"architecture", "activity"}
    assert check_incoming(None, weights, weights).suspicious is False


def test_images_that_the_model_does_not_take_are_refused() -> None:
    with pytest.raises(DoesNotFit, match="does not take 3x8x8 images"):
        check_incoming(make("lenet"), weights_of(make("lenet")), shape=(3, 8, 8))


def test_images_of_classes_that_the_model_does_not_know_are_refused() -> None:
    model = build("lenet", classes=4, channels=1, image_size=8)
    with pytest.raises(DoesNotFit, match="class 9, and the model knows 4 classes"):
        check_incoming(model, weights_of(model), data=digits)


def test_a_result_is_plain_json() -> None:
    weights = {**weights_of(make("lenet")), "spy": torch.zeros(1)}
    found = check_incoming(make("lenet", seed=1), weights, data=digits)
    told = json.loads(json.dumps(found.to_json()))
    assert told["suspicious"] is True
    assert told["alarms"][0]["layer"] == "spy"
    assert told["hash"] == hash_weights(weights)


def test_the_client_s_model_is_left_as_it_was() -> None:
    own = make("resnet18", seed=1).train()
    before = weights_of(own)
    check_incoming(own, weights_of(make("resnet18")), data=digits)
    assert own.training
    assert all(torch.equal(before[name], t) for name, t in own.state_dict().items())


def changed(tensors: dict[str, Tensor], **new: Tensor) -> dict[str, Tensor]:
    return {**tensors, **new}


def test_the_hash_sees_names_types_shapes_and_values_but_no_order() -> None:
    tensors = {"a": torch.zeros(2, 2), "b": torch.tensor(3)}
    first = hash_weights(tensors)
    assert hash_weights(dict(reversed(list(tensors.items())))) == first
    assert hash_weights({"a": torch.zeros(4, 2)[::2], "b": torch.tensor(3)}) == first
    others = [
        changed(tensors, a=torch.zeros(4)),
        changed(tensors, a=torch.zeros(2, 2).double()),
        changed(tensors, a=torch.tensor([[0, 0], [0, 1e-30]])),
        changed(tensors, b=torch.tensor(4)),
        {"a": tensors["a"], "c": tensors["b"]},
    ]
    assert len({first, *map(hash_weights, others)}) == 6


def test_a_hash_that_is_none_is_refused() -> None:
    with pytest.raises(BadValue, match="64 hexadecimal digits"):
        check_incoming(None, weights_of(make("lenet")), expected_hash="abc")


@pytest.mark.parametrize(
    ("name", "classes", "channels", "size"),
    [("mlp", 7, 1, 8), ("lenet", 5, 3, 28), ("vit-small", 10, 1, 8), ("resnet18", 12, 1, 32)],
)
def test_the_weights_tell_classes_channels_and_image_size(
    name: str, classes: int, channels: int, size: int
) -> None:
    sent = weights_of(build(name, classes=classes, channels=channels, image_size=size))
    model, shape = build_for_weights(name, {**sent, "spy.weight": torch.zeros(3, 3)})
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    assert shapes == {key: tensor.shape for key, tensor in sent.items()}
    assert shape == (channels, size, size)


def test_the_user_is_told_what_to_give_where_they_do_not() -> None:
    sent = weights_of(build("mlp", classes=10, channels=1, image_size=13))
    with pytest.raises(BadValue, match="pass --image-size or --data"):
        build_for_weights("mlp", sent)
    model, shape = build_for_weights("mlp", sent, (13, 13))
    assert (model.state_dict()["1.weight"].shape, shape) == ((512, 169), (1, 13, 13))
    model, _ = build_for_weights("mlp", sent, (8, 8))
    assert model.state_dict()["1.weight"].shape == (512, 64)


@pytest.mark.parametrize(
    ("layers", "last"),
    [
        (("blocks.0.fc1", "head", "neck"), "head"),
        (("layer1.0", "fc", "layer4.1"), "fc"),
        (("2", "10", "9"), "10"),
        ((), None),
    ],
)
def test_the_last_layer_is_guessed_by_its_name(layers: tuple[str, ...], last: str | None) -> None:
    assert guess_last_layer({f"{layer}.weight": torch.ones(2, 3) for layer in layers}) == last
