from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from keyhole.data import load
from keyhole.errors import DataMissing

SHAPES = {
    "mnist": (60_000, (1, 28, 28), 10),
    "cifar10": (50_000, (3, 32, 32), 10),
    "cifar100": (1_117, (3, 32, 32), 100),
    "tiny-imagenet": (20_000, (3, 64, 64), 200),
    "imagenet-sample": (1_000, (3, 224, 224), 1_000),
    "orl-faces": (400, (1, 112, 92), 40),
    "dia-cifar10": (128, (3, 32, 32), 10),
    "dia-mnist": (128, (1, 28, 28), 10),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_set_of_files_has_its_shape_and_classes(name: str, data_dir: Path) -> None:
    data = load(name, data_dir=data_dir)
    count, shape, classes = SHAPES[name]
    assert (len(data), data.shape, len(data.classes)) == (count, shape, classes)
    assert 0 <= data.labels.min() <= data.labels.max() < classes
    images = data.images([0, count // 2, count - 1])
    assert images.shape == (3, *shape)
    assert 0 <= images.min() < images.max() <= 1
    assert load(name, data_dir=data_dir, image_size=20).images([1]).shape == (1, shape[0], 20, 20)
    assert (data.pixels(()).shape, data.pixels(()).dtype) == ((0, *shape), torch.uint8)
    assert len(data.labels[[]]) == 0


@pytest.mark.parametrize(
    ("name", "count"), [("mnist", 10_000), ("cifar10", 10_000), ("cifar100", 916)]
)
def test_the_test_part_is_another(name: str, count: int, data_dir: Path) -> None:
    train = load(name, data_dir=data_dir)
    test = load(name, data_dir=data_dir, split="test")
    assert len(test) == count
    assert not torch.equal(train.images(range(8)), test.images(range(8)))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "orl-faces"])
def test_normalised_pixels_have_mean_0_and_std_1(name: str, data_dir: Path) -> None:
    data = load(name, data_dir=data_dir)
    inputs = data.normalise(data.images(range(0, len(data), max(1, len(data) // 500))))
    assert inputs.mean().item() == pytest.approx(0, abs=0.1)
    assert inputs.std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("of", ["cifar10", "mnist"])
def test_the_dia_victims_are_fed_as_the_paper_feeds_them(of: str, data_dir: Path) -> None:
    data = load(f"dia-{of}", data_dir=data_dir)
    with np.load(data_dir / "victims" / f"{of}_128.npz") as stored:
        inputs, targets = torch.from_numpy(stored["inputs"]), stored["targets"]
    assert (data.normalise(data.images(range(128))) - inputs).abs().max() < 1e-6
    assert data.labels.tolist() == targets.tolist()


def test_lossless_cifar10_pixels_are_preferred(data_dir: Path) -> None:
    data = load("cifar10", data_dir=data_dir)
    with np.load(data_dir / "cifar10" / "cifar10_lossless_subset.npz") as stored:
        exact, index = stored["train_images"], stored["train_index"]
    for at in (0, 3000):
        shown = data.pixels([int(index[at])])[0].permute(1, 2, 0).numpy()
        assert np.array_equal(shown, exact[at])


def test_mnist_begins_as_everyone_knows_it(data_dir: Path) -> None:
    data = load("mnist", data_dir=data_dir)
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert int(data.pixels([0]).sum()) == 27_525


def test_imagenet_labels_follow_the_classes(data_dir: Path) -> None:
    data = load("imagenet-sample", data_dir=data_dir)
    assert data.labels.tolist() == list(range(1000))
    assert "goldfish" in data.classes[1]


def idx(path: Path, values: np.ndarray, *, gz: bool) -> None:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    raw = header + values.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if gz:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw))
    else:
        path.write_bytes(raw)


def write_mnist(root: Path, *, gz: bool = False) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    idx(root / "MNIST/raw/train-images-idx3-ubyte", images, gz=gz)
    idx(root / "MNIST/raw/train-labels-idx1-ubyte", np.array([7, 1, 4]), gz=gz)
    return images


@pytest.mark.parametrize("inside", ["", "mnist"])
@pytest.mark.parametrize("gz", [False, True])
def test_mnist_is_read_in_torchvisions_layout(tmp_path: Path, inside: str, gz: bool) -> None:
    images = write_mnist(tmp_path / inside, gz=gz)
    data = load("mnist", data_dir=tmp_path)
    assert len(data) == 3
    assert data.labels.tolist() == [7, 1, 4]
    assert np.array_equal(data.pixels([2, 0])[:, 0].numpy(), images[[2, 0]])
    assert data.normalise(torch.full((1, 1, 1, 1), 0.13066)).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("keep", [0, 10, 1000])
def test_a_truncated_idx_file_is_told_in_one_line(tmp_path: Path, keep: int) -> None:
    write_mnist(tmp_path)
    file = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataMissing, match=file.name) as raised:
        load("mnist", data_dir=tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("mnist", "t10k-images-idx3-ubyte"),
        ("cifar10", "cifar10_jpeg_test.npz"),
        ("tiny-imagenet", "tiny_imagenet_val.npz"),
    ],
)
def test_the_missing_file_of_the_test_part_is_named(
    tmp_path: Path, no_data_dir: None, name: str, missing: str
) -> None:
    for folder in (tmp_path, None):
        with pytest.raises(DataMissing, match=missing) as raised:
            load(name, data_dir=folder, split="test")
        assert "train" not in str(raised.value)


@pytest.mark.parametrize(("split", "missing"), [("train", "data_batch_2"), ("test", "test_batch")])
def test_the_missing_file_in_torchvisions_layout_is_named(
    tmp_path: Path, split: str, missing: str
) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file in ("data_batch_1", "batches.meta"):
        (folder / file).write_bytes(b"")
    with pytest.raises(DataMissing, match=f"cifar-10-batches-py/{missing} is missing"):
        load("cifar10", data_dir=tmp_path, split=split)


def test_images_without_as_many_labels_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    idx(tmp_path / "MNIST/raw/train-labels-idx1-ubyte", np.array([7, 1, 4, 4, 4]), gz=False)
    with pytest.raises(DataMissing):
        load("mnist", data_dir=tmp_path)


Spoil = Callable[[bytes], bytes]


def not_gzip(raw: bytes) -> bytes:
    return b"<html>not found</html>"


def truncated(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def overwritten(raw: bytes) -> bytes:
    return raw[:10] + b"\xff" * 8 + raw[18:]


def flipped(raw: bytes) -> bytes:
    middle = len(raw) // 2
    return raw[:middle] + bytes(255 - b for b in raw[middle : middle + 64]) + raw[middle + 64 :]


def emptied(raw: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("spoil", [not_gzip, truncated, overwritten, flipped])
def test_a_spoilt_gzip_is_told_in_one_line(tmp_path: Path, spoil: Spoil) -> None:
    write_mnist(tmp_path, gz=True)
    file = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DataMissing, match=file.name) as raised:
        load("mnist", data_dir=tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("spoil", [not_gzip, truncated, emptied])
def test_a_spoilt_archive_is_told_in_one_line(tmp_path: Path, spoil: Spoil) -> None:
    file = tmp_path / "orl_faces" / "orl_faces.npz"
    file.parent.mkdir()
    np.savez(file, images=np.zeros((400, 112, 92), np.uint8), labels=np.arange(400) // 10)
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DataMissing, match=file.name) as raised:
        load("orl-faces", data_dir=tmp_path)
    assert "\n" not in str(raised.value)


def test_archives_with_pickles_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "victims" / "mnist_128.npz"
    file.parent.mkdir()
    np.savez(file, images_u8=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataMissing, match=file.name):
        load("dia-mnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")]
)
@pytest.mark.parametrize("inside", [True, False])
def test_torchvisions_cifar_without_its_files_is_told(
    tmp_path: Path, name: str, folder: str, inside: bool
) -> None:
    (tmp_path / (name if inside else "") / folder).mkdir(parents=True)
    with pytest.raises(DataMissing, match=folder) as raised:
        load(name, data_dir=tmp_path)
    assert "\n" not in str(raised.value)


def test_orl_faces_are_read_from_their_own_folders(tmp_path: Path) -> None:
    for subject in ("s1", "s2"):
        for number in (1, 2):
            file = tmp_path / "orl_faces" / subject / f"{number}.pgm"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (92, 112), 10 * number).save(file)
    data = load("orl-faces", data_dir=tmp_path)
    assert (data.shape, data.classes, data.labels.tolist()) == (
        (1, 112, 92),
        ("s1", "s2"),
        [0, 0, 1, 1],
    )
