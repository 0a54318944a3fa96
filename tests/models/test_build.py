from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from keyhole import plugins
from keyhole.errors import BadUpdate, DoesNotFit, UnknownName
from keyhole.models import MODELS, build, is_user_model


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def states_equal(one: nn.Module, two: nn.Module) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(("channels", "size", "parameters"), [(1, 28, 930_816), (3, 32, 2_102_272)])
def test_the_mlp_has_the_papers_parameters(channels: int, size: int, parameters: int) -> None:
    model = build("mlp", classes=10, channels=channels, image_size=size)
    assert count(model) == parameters
    assert not any("bias" in name for name, _ in model.named_parameters())
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 3


@pytest.mark.parametrize(("channels", "size", "patches"), [(1, 28, 49), (3, 32, 64)])
def test_the_small_vit_is_the_papers(channels: int, size: int, patches: int) -> None:
    model = build("vit-small", classes=10, channels=channels, image_size=size)
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 1 + 4 * 4
    assert model.pos_embed.shape == (1, patches + 1, 256)
    assert model.blocks[0].attn.qkv.bias is None
    assert model.pos_embed.std().item() == pytest.approx(1, abs=0.05)
    attention = 4 * 256 * 256 + 256
    block = attention + 2 * (256 * 256 + 256) + 2 * 2 * 256
    embeddings = 256 * (16 * channels + 1) + 256 + 256 * (patches + 1)
    assert count(model) == 4 * block + embeddings + 2 * 256 + 256 * 10 + 10


def test_the_small_vit_drops_at_every_site_while_training() -> None:
    """SPEC 2.2 counts 326,400 unknown mask values for an MNIST image."""
    model = build("vit-small", classes=10, channels=1, image_size=28)
    sizes = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda mod, args, out: sizes.append(out.numel()))
    model(torch.rand(1, 1, 28, 28))
    tokens = 50
    assert sum(sizes) == tokens * 256 + 4 * (16 * tokens**2 + 3 * tokens * 256)
    assert sum(sizes) == 326_400


@pytest.mark.parametrize(("channels", "size", "features"), [(1, 28, 588), (3, 32, 768)])
def test_lenet_ends_in_the_papers_features(channels: int, size: int, features: int) -> None:
    model = build("lenet", classes=10, channels=channels, image_size=size)
    head = list(model.children())[-1]
    assert isinstance(head, nn.Linear)
    assert head.in_features == features
    assert isinstance(list(model.children())[-2], nn.Dropout)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [c.stride for c in convolutions] == [(2, 2), (2, 2), (1, 1)]
    assert all((c.out_channels, c.kernel_size) == (12, (5, 5)) for c in convolutions)


def test_resnet18_keeps_the_resolution_of_small_images() -> None:
    model = build("resnet18", classes=10, image_size=32)
    assert model.conv1(torch.zeros(1, 3, 32, 32)).shape[-1] == 32
    assert isinstance(model.maxpool, nn.Identity)
    assert count(model) == 11_173_962
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 1


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights(name: str, same_rng: Callable[[], bool]) -> None:
    first, again, other = (
        build(name, classes=3, channels=1, image_size=16, seed=seed) for seed in (5, 5, 6)
    )
    assert states_equal(first, again)
    assert not states_equal(first, other)
    assert same_rng()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_a_logit_a_class_at_odd_shapes(name: str) -> None:
    model = build(name, classes=7, channels=2, image_size=(16, 24))
    assert model(torch.zeros(2, 2, 16, 24)).shape == (2, 7)


@pytest.mark.parametrize("name", ["mlp", "resnet18"])
def test_weights_come_from_safetensors(name: str, tmp_path: Path) -> None:
    source = build(name, classes=4, channels=1, image_size=8, seed=1)
    path = tmp_path / "weights.safetensors"
    save_file(source.state_dict(), path)
    loaded = build(name, classes=4, channels=1, image_size=8, seed=2, weights=path)
    assert states_equal(source, loaded)


def lack(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(list(state.items())[1:])


def add(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**state, "9.weight": torch.zeros(1)}


def widen(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: torch.zeros(tensor.shape[0] + 1, tensor.shape[1]) for name, tensor in state.items()
    }


def spoil(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor * float("inf") for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lack, "1.weight missing"),
        (add, "9.weight not the model's"),
        (widen, "1.weight, 4.weight and 2 more of another shape"),
        (spoil, "NaN or infinite values in '1.weight'"),
    ],
)
def test_weights_of_another_model_are_refused_in_one_line(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], words: str, tmp_path: Path
) -> None:
    state = build("mlp", classes=4, channels=1, image_size=8).state_dict()
    path = tmp_path / "weights.safetensors"
    save_file(change(state), path)
    with pytest.raises(BadUpdate) as raised:
        build("mlp", classes=4, channels=1, image_size=8, weights=path)
    assert words in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(build("mlp", classes=4, channels=1, image_size=8).state_dict(), path)
    with pytest.raises(BadUpdate, match="pickles are not read"):
        build("mlp", classes=4, channels=1, image_size=8, weights=path)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("vit_small", "vit-small"),
        ("resnet-18", "resnet18"),
        ("timm:deit_smal_patch16_224", "deit_small_patch16_224"),
        ("torchvision:resnet_18", "resnet18"),
    ],
)
def test_an_unknown_model_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownName, match=rf"did you mean .*{near}"):
        build(name, classes=10)


@pytest.mark.parametrize("name", ["timm:", "timm:no", "torchvision:", "timm:qqqqqqqqqq"])
def test_a_family_without_that_member_is_told(name: str) -> None:
    with pytest.raises(UnknownName, match="has no model"):
        build(name, classes=10)


def test_timm_models_are_made_for_the_images() -> None:
    model = build("timm:vit_tiny_patch16_224", classes=5, channels=1, image_size=64)
    assert model(torch.zeros(1, 1, 64, 64)).shape == (1, 5)
    assert model.pos_embed.shape[1] == 17


def test_timm_models_without_an_image_size_are_made_all_the_same() -> None:
    model = build("timm:resnet10t", classes=5, channels=1, image_size=(32, 48))
    assert model(torch.zeros(2, 1, 32, 48)).shape == (2, 5)


def test_torchvision_models_are_made_for_the_classes() -> None:
    model = build("torchvision:squeezenet1_1", classes=5, image_size=64)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)


def test_torchvision_models_need_colour() -> None:
    with pytest.raises(DoesNotFit, match="3 channels, not 1"):
        build("torchvision:resnet18", classes=5, channels=1, image_size=64)


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("vit-small", 30, "pass --image-size 32x32"),
        ("timm:vit_tiny_patch16_224", 8, "timm:vit_tiny_patch16_224"),
        ("torchvision:squeezenet1_1", 4, "torchvision:squeezenet1_1"),
    ],
)
def test_a_size_that_does_not_fit_is_told_in_one_line(name: str, size: int, words: str) -> None:
    with pytest.raises(DoesNotFit) as raised:
        build(name, classes=10, image_size=size)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_size_below_one_patch_suggests_one_that_works(size: int) -> None:
    with pytest.raises(DoesNotFit, match="pass --image-size") as raised:
        build("vit-small", classes=10, channels=1, image_size=size)
    suggested = str(raised.value).rsplit(" ", 1)[-1]
    height, width = (int(part) for part in suggested.split("x"))
    build("vit-small", classes=10, channels=1, image_size=(height, width))


MINE = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, in_chans, img_size):
        super().__init__(nn.Flatten(), nn.Linear(in_chans * img_size[0] * img_size[1], num_classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 10))

def few(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes - 1))

def spatial(classes, channels):
    return nn.Conv2d(channels, classes, 1)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(192, 10)
    def forward(self, x):
        return self.layer(x.flatten(1)), x

def number():
    return 3

def sized(classes, channels, image_size):
    height, width = image_size
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))

def squared(classes, channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes))

def greedy(classes, secret):
    return None

def wide(classes, channels, image_size, width=4, **more):
    inputs = channels * image_size[0] * image_size[1]
    hidden = nn.Linear(inputs, width, **more)
    return nn.Sequential(nn.Flatten(), hidden, nn.Linear(width, classes))

READY = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))

def double(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes)).double()

constant = 5
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of the user's own in the working folder."""
    name = f"my_models_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize("attribute", ["Net", "fixed"])
def test_a_model_of_ones_own_is_found_from_the_working_folder(mine: str, attribute: str) -> None:
    model = build(f"{mine}:{attribute}", classes=10, channels=3, image_size=8)
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_model_of_ones_own_is_initialised_by_the_seed(mine: str, seed: int) -> None:
    weights = [
        build(f"{mine}:fixed", classes=10, image_size=8, seed=s)[1].weight for s in (3, seed)
    ]
    assert torch.equal(*weights) == (seed == 3)


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("few", r"returns \(1, 9\), not logits for 10 classes"),
        ("spatial", r"returns \(1, 10, 8, 8\), not logits"),
        ("Pair", "returns tuple, not logits"),
        ("number", "returned int, not a torch.nn.Module"),
        ("greedy", "cannot be built for 3x8x8 images"),
    ],
)
def test_what_is_no_classifier_is_refused(mine: str, attribute: str, words: str) -> None:
    with pytest.raises(DoesNotFit, match=words) as raised:
        build(f"{mine}:{attribute}", classes=10, image_size=8)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [8, (8, 8), (6, 9)])
def test_a_model_of_ones_own_is_told_height_and_width(
    mine: str, size: int | tuple[int, int]
) -> None:
    model = build(f"{mine}:sized", classes=10, channels=3, image_size=size)
    assert model[1].in_features == 3 * (54 if size == (6, 9) else 64)


def test_a_model_that_takes_the_size_for_a_number_is_told(mine: str) -> None:
    words = r"squared\(classes=10, channels=3, image_size=\(8, 8\)\) fails .* \(height, width\)$"
    with pytest.raises(DoesNotFit, match=words):
        build(f"{mine}:squared", classes=10, channels=3, image_size=8)


def test_a_model_of_ones_own_takes_parameters(mine: str) -> None:
    model = build(f"{mine}:wide(width=7, bias=False)", classes=10, channels=1, image_size=8)
    assert (model[1].out_features, model[1].bias) == (7, None)
    private = build(f"dp:{mine}:wide(width=6)", classes=10, channels=1, image_size=8)
    assert private[1].out_features == 6
    with pytest.raises(UnknownName, match=r"parameter of model .*:sized 'width'"):
        build(f"{mine}:sized(width=7)", classes=10, channels=1, image_size=8)


def test_a_ready_model_is_copied(mine: str) -> None:
    model = build(f"{mine}:READY", classes=10, image_size=8)
    again = build(f"{mine}:READY", classes=10, image_size=8)
    assert model is not again
    assert torch.equal(model[1].weight, again[1].weight)
    with pytest.raises(UnknownName, match="has nothing to call by the name 'READY'"):
        build(f"{mine}:READY(width=3)", classes=10, image_size=8)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package whose entry point ``wide-net`` is a function of the user's module."""
    folder = Path.cwd()
    (name,) = (path.stem for path in folder.glob("my_models_*.py"))
    monkeypatch.syspath_prepend(folder)
    entries = [EntryPoint("wide-net", f"{name}:wide", "keyhole.models")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    plugins.find_entry_points.cache_clear()
    yield
    plugins.find_entry_points.cache_clear()


@pytest.mark.usefixtures("mine", "installed")
def test_an_installed_package_adds_a_model_by_name() -> None:
    model = build("wide-net(width=5)", classes=10, channels=1, image_size=8)
    assert model[1].out_features == 5
    assert is_user_model("wide-net(width=5)")
    assert not is_user_model("mlp")
    with pytest.raises(UnknownName, match=r"unknown model 'wide-nt': did you mean wide-net"):
        build("wide-nt", classes=10, image_size=8)


def test_a_model_for_other_images_is_refused(mine: str) -> None:
    with pytest.raises(DoesNotFit, match="does not take 3x9x9 images"):
        build(f"{mine}:fixed", classes=10, image_size=9)


@pytest.mark.parametrize("attribute", ["constant", "absent", ""])
def test_what_cannot_be_called_is_told(mine: str, attribute: str) -> None:
    with pytest.raises(UnknownName, match="has nothing to call by the name"):
        build(f"{mine}:{attribute}", classes=10, image_size=8)


def test_a_module_that_cannot_be_imported_is_told() -> None:
    with pytest.raises(UnknownName, match="cannot import 'no_such_module_here'"):
        build("no_such_module_here:Net", classes=10)


def test_a_model_in_double_precision_can_be_built(mine: str) -> None:
    model = build(f"{mine}:double", classes=10, image_size=8)
    assert model[1].weight.dtype == torch.float64


def test_building_leaves_the_model_in_training_mode() -> None:
    assert build("mlp", classes=10, image_size=8).training
