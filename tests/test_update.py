from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from keyhole.errors import BadUpdate
from keyhole.threat import Knowledge, Server
from keyhole.update import Update, read_safetensors

values = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1)


def bits(tensor: Tensor) -> list[int]:
    return tensor.view(torch.int32).tolist()


@pytest.fixture
def mixed() -> Update:
    return Update(
        {
            "w": torch.tensor([[1.5, -2.0], [0.0, 4.0]]),
            "d": torch.tensor([0.5], dtype=torch.float64),
            "count": torch.tensor([3, 4]),
        },
        steps=2,
        lr=0.25,
        batch_size=4,
        examples=8,
    )


@given(values)
def test_a_gradient_comes_back_bit_for_bit(numbers: list[float]) -> None:
    gradient = torch.tensor(numbers, dtype=torch.float32)
    update = Update.from_gradient({"w": gradient}, batch_size=3)
    assert bits(update.gradient()["w"]) == bits(gradient)
    assert (update.steps, update.lr, update.batch_size, update.examples) == (1, 1.0, 3, 3)


def test_a_gradient_is_a_step_downhill() -> None:
    assert Update.from_gradient({"w": torch.tensor([2.0])}).change["w"].item() == -2.0


def test_an_update_from_a_graph_is_detached_from_it() -> None:
    weight = torch.ones(3, requires_grad=True)
    update = Update.from_gradient({"w": weight * 2})
    assert update.change["w"].grad_fn is None
    assert not update.change["w"].requires_grad


def test_several_steps_give_the_mean_gradient_of_the_floats(mixed: Update) -> None:
    gradient = mixed.gradient()
    assert set(gradient) == {"w", "d"}
    assert torch.equal(gradient["w"], mixed.change["w"] / -0.5)


def test_map_leaves_integers_and_the_original_alone(mixed: Update) -> None:
    names = []

    def double(name: str, tensor: Tensor) -> Tensor:
        names.append(name)
        return tensor * 2

    doubled = mixed.map(double)
    assert names == ["w", "d"]
    assert doubled.change["count"] is mixed.change["count"]
    assert doubled.change["count"].tolist() == [3, 4]
    assert doubled.change["w"].tolist() == [[3.0, -4.0], [0.0, 8.0]]
    assert mixed.change["w"].tolist() == [[1.5, -2.0], [0.0, 4.0]]
    assert (doubled.steps, doubled.lr, doubled.batch_size, doubled.examples) == (2, 0.25, 4, 8)


def test_the_norm_runs_over_all_floats(mixed: Update) -> None:
    assert mixed.norm() == pytest.approx((1.5**2 + 2**2 + 4**2 + 0.5**2) ** 0.5)
    assert Update({"count": torch.tensor([3])}).norm() == 0.0
    assert Update({}).norm() == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named(mixed: Update, bad: float) -> None:
    mixed.change["w"][0, 1] = bad
    mixed.change["w"][1, 1] = bad
    with pytest.raises(BadUpdate, match="2 NaN or infinite values in 'w'"):
        mixed.check()


def test_a_finite_update_passes_its_checks(mixed: Update) -> None:
    weights = {name: torch.zeros_like(tensor) for name, tensor in mixed.change.items()}
    assert mixed.check() is mixed
    assert mixed.check_against({**weights, "more": torch.zeros(1)}) is mixed


def test_a_name_the_model_lacks_is_told(mixed: Update) -> None:
    with pytest.raises(BadUpdate, match="'count', which the model does not have"):
        mixed.check_against({"w": torch.zeros(2, 2), "d": torch.zeros(1)})


def test_a_shape_of_another_model_is_told(mixed: Update) -> None:
    weights = {"w": torch.zeros(2, 3), "d": torch.zeros(1), "count": torch.zeros(2)}
    with pytest.raises(BadUpdate, match=r"'w' has shape \(2, 2\), the model's \(2, 3\)"):
        mixed.check_against(weights)


def test_an_update_is_read_as_it_was_saved(mixed: Update, tmp_path: Path) -> None:
    mixed.change["w"].t_()
    path = tmp_path / "client.safetensors"
    mixed.save(path)
    loaded = Update.load(path)
    assert set(loaded.change) == set(mixed.change)
    for name, tensor in mixed.change.items():
        assert torch.equal(loaded.change[name], tensor)
        assert loaded.change[name].dtype == tensor.dtype
    assert (loaded.steps, loaded.lr, loaded.batch_size, loaded.examples) == (2, 0.25, 4, 8)


@given(lr=st.floats(min_value=1e-12, max_value=1e6))
def test_the_learning_rate_survives_exactly(
    lr: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lr") / "u.safetensors"
    Update({"w": torch.ones(1)}, lr=lr).save(path)
    assert Update.load(path).lr == lr


def test_safetensors_without_history_are_one_gradient(tmp_path: Path) -> None:
    path = tmp_path / "plain.safetensors"
    save_file({"w": torch.tensor([1.0])}, path)
    loaded = Update.load(path)
    assert (loaded.steps, loaded.lr, loaded.batch_size, loaded.examples) == (1, 1.0, 1, 1)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"w": [1.0]}))


def torch_saved(path: Path) -> None:
    torch.save({"w": torch.ones(2)}, path)


def text(path: Path) -> None:
    path.write_text("these are no tensors, but this line is long enough for a header\n" * 4)


def empty(path: Path) -> None:
    path.touch()


def truncated(path: Path) -> None:
    save_file({"w": torch.rand(100)}, path)
    path.write_bytes(path.read_bytes()[:-200])


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("write", [pickled, torch_saved, text, empty, truncated, folder])
def test_what_is_not_safetensors_is_refused_in_one_line(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "upload.safetensors"
    write(path)
    with pytest.raises(BadUpdate, match="is not a safetensors file") as raised:
        Update.load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
            return Path.touch, (tmp_path / "exploded",)

    path = tmp_path / "bomb.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BadUpdate):
        read_safetensors(path)
    assert not (tmp_path / "exploded").exists()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadUpdate, match="does not exist"):
        Update.load(tmp_path / "nowhere.safetensors")


def test_a_file_with_nan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nan.safetensors"
    save_file({"w": torch.tensor([float("nan")])}, path)
    with pytest.raises(BadUpdate, match="1 NaN or infinite values in 'w'"):
        Update.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("steps", "two"), ("lr", "fast"), ("steps", "0"), ("lr", "0.0"), ("lr", "nan")],
)
def test_a_history_that_makes_no_sense_is_refused(key: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    save_file({"w": torch.ones(1)}, path, {key: value})
    with pytest.raises(BadUpdate):
        Update.load(path)


def test_tensors_that_are_read_lie_as_torchs_own_do(tmp_path: Path) -> None:
    """Elsewhere in memory, matrix kernels round otherwise."""
    for length in range(1, 9):
        tensors = {"n" * length: torch.randn(5), "odd": torch.randn(3), "wide": torch.randn(7, 3)}
        save_file(tensors, tmp_path / "file")
        found = read_safetensors(tmp_path / "file")[0]
        assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values())


def gradient_of(model: nn.Module, *, unused: bool = False) -> tuple[Tensor, ...]:
    loss = model(torch.ones(1, 2)).square().sum()
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad(loss, trained, allow_unused=unused)


def test_a_bare_gradient_gets_the_names_of_its_model() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    bare = gradient_of(model)
    update = Update.from_gradient(bare, model=model, batch_size=4)
    names = [name for name, _ in model.named_parameters()]
    assert list(update.change) == names
    assert all(torch.equal(update.change[n], -g) for n, g in zip(names, bare, strict=True))
    assert (update.batch_size, update.examples) == (4, 4)
    named = Update.from_gradient(dict(zip(names, bare, strict=True)), model=model)
    assert all(torch.equal(named.change[n], update.change[n]) for n in names)


def test_a_bare_gradient_may_leave_frozen_parameters_out() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    assert list(Update.from_gradient(gradient_of(model), model=model).change) == [
        "1.weight",
        "1.bias",
    ]


def test_a_parameter_without_a_gradient_reports_nothing() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1, bias=False), "other": nn.Linear(2, 1)})
    loss = model["used"](torch.ones(1, 2)).sum()
    bare = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert list(Update.from_gradient(bare, model=model).change) == ["used.weight"]
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not Update.from_gradient(named).change


def test_a_bare_gradient_is_refused_in_words_where_it_cannot_be_named() -> None:
    model = nn.Linear(2, 1)
    bare = list(gradient_of(model))
    advice = r"Update\.from_gradient\(gradients, model=model\)"
    for attempt in (
        lambda: Update.from_gradient(bare),
        lambda: Update(bare),  # type: ignore[arg-type]
        lambda: Server(model).receive(bare, KNOWLEDGE),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadUpdate, match=advice):
            attempt()
    with pytest.raises(BadUpdate, match="1 gradients for a model of 2 parameters"):
        Update.from_gradient(bare[:1], model=model)
    with pytest.raises(BadUpdate, match="another model"):
        Update.from_gradient(bare[::-1], model=model)


KNOWLEDGE = Knowledge(shape=(1, 1, 2), classes=1, mean=(0.0,), std=(1.0,))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "update.safetensors")
    with pytest.raises(BadUpdate, match="not a regular file"):
        Update.load(tmp_path / "update.safetensors")
