"""Data sets: their files, their batches, and what is refused."""

import gzip
import hashlib
import io
import os
import pickle
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from rebasin_cli import datasets
from rebasin_cli.datasets import Data, Normalization, Samples, downloads, once, open_data
from rebasin_cli.datasets.loaders import open_loader
from rebasin_cli.datasets.rotation import rotated, with_rotation
from rebasin_cli.datasets.sets import _cifar, cifar10
from rebasin_cli.errors import DataError, ResourceError, UsageError
from rebasin_cli.registry import references
from rebasin_cli.registry.regular import SMALL
from tests.odd_files import KINDS, lay

MNIST = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """No network, no cache and no data root of the machine that runs the tests."""

    def offline(url, timeout):
        raise OSError("no network")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", offline)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("REBASIN_DATA", raising=False)


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array, code=8):
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_mnist(folder, images, labels, split="train", *, zipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(MNIST[split], (images, labels), strict=True):
        content = idx(array)
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)


def cifar_rows(images, *labels):
    columns = np.stack(labels, 1).astype(np.uint8)
    return np.concatenate([columns, images.reshape(len(images), -1)], 1).tobytes()


def pairs_of(data):
    """Every sample as plain values, so that inputs are compared together with their targets."""
    rows = zip(data.source.inputs.flatten(1).tolist(), data.source.targets.tolist(), strict=True)
    return {(tuple(row), target) for row, target in rows}


# --- digits, batches, normalization ---------------------------------------------------------------------


def test_digits_are_inside_the_package_and_split_by_class():
    train, test = (open_data("digits", split) for split in ("train", "test"))
    assert (train.samples, test.samples, train.classes) == (1437, 360, 10)
    assert test.source.targets.bincount().tolist() == [36] * 10
    assert train.source.inputs.shape[1:] == (1, 8, 8)
    assert (train.source.inputs.min(), train.source.inputs.max()) == (0, 1)


def test_no_digit_is_in_both_splits():
    train, test = (open_data("digits", split).source.inputs.flatten(1) for split in ("train", "test"))
    assert not {tuple(row) for row in train.tolist()} & {tuple(row) for row in test.tolist()}


def test_batches_come_in_the_same_order_every_time_and_cover_everything():
    data = open_data("digits", "test", batch_size=100)
    first, second = list(data), list(data)
    assert [len(targets) for _, targets in first] == [100, 100, 100, 60]
    assert len(data) == 4
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert torch.equal(torch.cat([targets for _, targets in first]), data.source.targets)


def test_a_single_sample_left_over_joins_the_batch_before():
    data = open_data("digits", "test", limit=21, batch_size=10)
    for batches in (data, data.shuffled(torch.Generator())):
        assert [len(targets) for _, targets in batches] == [10, 11]
    assert len(data) == 2 and len(data.with_batch_size(1)) == len(list(data.with_batch_size(1))) == 21
    assert [len(targets) for _, targets in data.subset(1)] == [1]


def test_a_subset_depends_on_the_seed_alone_and_keeps_inputs_with_their_targets():
    data = open_data("digits", "train")
    one, same, other = (data.subset(50, seed) for seed in (1, 1, 2))
    assert one.samples == 50
    assert torch.equal(one.source.inputs, same.source.inputs)
    assert not torch.equal(one.source.inputs, other.source.inputs)
    assert pairs_of(one) < pairs_of(data)
    assert open_data("digits", "train", limit=50, seed=1).samples == 50
    assert data.subset(10**6) is data


def test_shuffling_reorders_pairs_by_its_generator():
    data = open_data("digits", "train", limit=64, batch_size=16)
    epochs = [
        [torch.cat(part) for part in zip(*data.shuffled(torch.Generator().manual_seed(seed)), strict=True)]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(epochs[0][0], epochs[1][0])
    assert not torch.equal(epochs[0][0], epochs[2][0])
    assert epochs[0][1].bincount().tolist() == data.source.targets.bincount().tolist()
    found = (epochs[0][0][0] == data.source.inputs).flatten(1).all(1).nonzero()[0, 0]
    assert data.source.targets[found] == epochs[0][1][0]


def test_bytes_are_divided_by_255_and_then_normalised_by_channel():
    samples = Samples(torch.full((2, 3, 4, 4), 51, dtype=torch.uint8), torch.tensor([0, 1]))
    data = Data("x", "test", samples, Normalization((0.2, 0.1, 0.0), (1.0, 0.5, 2.0)), 2)
    inputs, _ = next(iter(data))
    assert inputs.dtype == torch.float32
    assert torch.allclose(inputs[0, :, 0, 0], torch.tensor([0.0, 0.2, 0.1]))
    assert torch.equal(data.example(1), inputs[:1])


def test_a_normalization_reads_back_what_it_prints():
    for value in (Normalization(), Normalization((0.1307,), (0.3081,)), cifar10.NORMALIZATION):
        assert Normalization.parse(str(value), Normalization((9.0,), (9.0,))) == value
    assert str(Normalization()) == "0.0/1.0"
    assert Normalization.parse("unit", cifar10.NORMALIZATION) == Normalization()
    assert Normalization.parse("dataset", cifar10.NORMALIZATION) == cifar10.NORMALIZATION


@pytest.mark.parametrize("text", ["third", "0.1", "0.1/0", "0.1/-1", "0,0/1", "0/nan", "0/inf", "nan/1", "/"])
def test_a_normalization_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError, match="no normalization"):
        Normalization.parse(text, Normalization())


def test_a_normalization_with_other_channels_is_refused_before_the_first_epoch():
    with pytest.raises(UsageError, match="3 channels"):
        open_data("digits", "test", normalize="0,0,0/1,1,1")


def test_dataset_is_the_data_sets_own_mean_and_deviation_and_told_where_it_is_listed():
    from rebasin_cli import datasets

    registry = datasets.registry
    for name in registry.names(own=True):
        module, told = registry.get(name), registry.summary(name)
        if module.NORMALIZATION is None:
            continue
        own = datasets.own_normalization(name)
        default = "by default unit" if module.NORMALIZATION == Normalization() else "by default dataset"
        assert default in told and (own is None or f"dataset {own}" in told), name
    digits = open_data("digits", "train", normalize="dataset").example(2000)
    assert abs(digits.mean()) < 0.01 and abs(digits.std() - 1) < 0.01
    assert open_data("digits", "train").example(2000).min() == 0  # as it was


def test_usual_normalisations_have_names():
    data = {name: open_data("digits", "test", normalize=name).example() for name in ("unit", "half", "raw")}
    assert data["half"].min() == -1 and data["raw"].max() == pytest.approx(255)
    with pytest.raises(UsageError, match="3 channels"):
        open_data("digits", "test", normalize="imagenet")


def test_data_of_ones_own_say_no_mean_and_deviation_and_the_message_does(tmp_path):
    images, labels = np.full((4, 2, 2), 51, np.uint8), np.arange(4)
    np.savez(tmp_path / "own.npz", x_test=images, y_test=labels)
    with pytest.raises(UsageError, match="does not say its own mean and deviation") as caught:
        open_data(f"npz:{tmp_path}/own.npz", "test", normalize="dataset")
    assert "4 samples have 0.2/0.0" in caught.value.hint and "--normalize MEAN/STD" in caught.value.hint


def test_normalize_overrides_the_default_of_the_data_set():
    assert open_data("digits", "test", normalize="0.5/2").example().min() == -0.25


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(UsageError) as error:
        open_data("digit", "train")
    assert "Did you mean digits" in str(error.value)


def test_unknown_splits_and_impossible_sizes_are_refused():
    with pytest.raises(UsageError, match="validation"):
        open_data("digits", "validation")
    with pytest.raises(UsageError, match="batch of 0"):
        open_data("digits", "test", batch_size=0)
    with pytest.raises(UsageError, match="limit of 0"):
        open_data("digits", "test", limit=0)


@pytest.mark.parametrize("name", datasets.registry.names())
def test_every_data_set_states_its_defaults(name):
    module = datasets.registry.get(name)
    text = name in ("alice", "text")
    assert module.NORMALIZATION is None if text else isinstance(module.NORMALIZATION, Normalization)
    assert module.CLASSES is None or module.CLASSES > 1
    assert hasattr(module, "load") != hasattr(module, "load_from")
    assert datasets.registry.summary(name)


# --- idx ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", ""])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_read_where_its_publisher_or_torchvision_puts_it(tmp_path, folder, zipped):
    images = pixels(5, 28, 28)
    write_mnist(tmp_path / folder, images, np.array([3, 1, 4, 1, 5], np.uint8), zipped=zipped)
    data = open_data("mnist", "train", root=tmp_path)
    assert torch.equal(data.source.inputs, torch.tensor(images)[:, None])
    assert data.source.targets.tolist() == [3, 1, 4, 1, 5]
    assert data.classes == 10
    inputs, _ = next(iter(data))
    assert torch.equal(inputs, torch.tensor(images)[:, None] / 255)


def test_the_environment_names_the_data_root(tmp_path, monkeypatch):
    write_mnist(tmp_path, pixels(2, 28, 28), np.array([0, 1], np.uint8), "test")
    monkeypatch.setenv("REBASIN_DATA", str(tmp_path))
    assert open_data("mnist", "test").samples == 2


def test_fashion_mnist_never_takes_the_files_of_mnist(tmp_path):
    write_mnist(tmp_path, pixels(2, 28, 28), np.array([0, 1], np.uint8))
    with pytest.raises(DataError, match="Fashion-MNIST is not here"):
        open_data("fashion-mnist", "train", root=tmp_path)
    write_mnist(tmp_path / "fashion-mnist", pixels(3, 28, 28), np.array([0, 1, 2], np.uint8))
    assert open_data("fashion-mnist", "train", root=tmp_path).samples == 3


def test_missing_files_are_an_error_that_says_where_what_and_why(tmp_path):
    with pytest.raises(DataError) as error:
        open_data("mnist", "train", root=tmp_path)
    text = str(error.value)
    assert "no network" in text
    assert str(tmp_path / "mnist") in text and str(tmp_path / "MNIST/raw") in text
    assert "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz" in text
    assert "REBASIN_DATA" in text


def test_a_data_root_that_does_not_exist_is_named_and_not_made(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        open_data("mnist", "train", root=tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"PK\3\4 not idx", "not an idx file"),
        (b"", "not an idx file"),
        (idx(pixels(5, 28, 28))[:-1], "broken"),
        (idx(pixels(5, 28, 28)) + b"\0", "broken"),
        (b"\0\0\x08\x03\0\0", "broken"),
        (gzip.compress(idx(pixels(5, 28, 28)))[:-9], "cannot be read"),
        (idx(pixels(5, 28)), "do not fit"),
        (idx(pixels(4, 28, 28)), "do not fit"),
    ],
)
def test_broken_idx_files_are_refused(tmp_path, content, message):
    write_mnist(tmp_path, pixels(5, 28, 28), np.arange(5, dtype=np.uint8))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_data("mnist", "train", root=tmp_path)


# --- downloads ------------------------------------------------------------------------------------------


def serve(monkeypatch, files):
    """A network that has `files` by the end of their url; the urls asked for."""
    asked = []

    def urlopen(url, timeout):
        asked.append(url)
        for name, content in files.items():
            if url.endswith(name):
                return io.BytesIO(content)
        raise OSError("404")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", urlopen)
    return asked


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_download_is_checked_kept_and_not_repeated(tmp_path, monkeypatch):
    from rebasin_cli.datasets.sets import mnist

    arrays = dict(zip(MNIST["test"], (pixels(3, 28, 28), np.array([7, 8, 9], np.uint8)), strict=True))
    files = {f"{name}.gz": gzip.compress(idx(array)) for name, array in arrays.items()}
    asked = serve(monkeypatch, files)
    monkeypatch.setattr(mnist, "MD5", {name.removesuffix(".gz"): md5(c) for name, c in files.items()})
    assert open_data("mnist", "test").source.targets.tolist() == [7, 8, 9]
    assert sorted(os.listdir(tmp_path / "cache/rebasin/mnist")) == sorted(files)
    assert len(asked) == 2
    open_data("mnist", "test")
    assert len(asked) == 2


def test_a_download_with_another_checksum_is_not_kept(tmp_path, monkeypatch):
    serve(monkeypatch, {f"{name}.gz": b"a login page" for name in MNIST["test"]})
    with pytest.raises(DataError, match="checksum is not the publisher's"):
        open_data("mnist", "test", root=tmp_path)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_download_is_announced_and_never_endless(monkeypatch, capsys):
    from rebasin_cli.cli.screen import screen

    serve(monkeypatch, {"file": b"content"})
    monkeypatch.setattr(downloads, "LARGEST", 3)
    with screen(), pytest.raises(downloads.NotDownloaded, match="checksum"):
        downloads.download(["https://a/file"], md5(b"content"))
    assert capsys.readouterr().err == "downloading https://a/file\n"
    assert downloads.download(["https://a/file"], md5(b"con")) == b"con"
    assert capsys.readouterr().err == ""


def test_nothing_is_fetched_for_a_strangers_recipe_unless_the_command_line_says_so(monkeypatch):
    asked = serve(monkeypatch, {"file": b"content"})
    for fetched in (False, True):
        with references.only(SimpleNamespace(references=(), unsafe_load=False, downloads=fetched)):
            if fetched:
                assert downloads.download(["https://a/file"], md5(b"content")) == b"content"
                continue
            with pytest.raises(downloads.NotDownloaded, match="--untrusted"):
                downloads.download(["https://a/file"], md5(b"content"))
            assert asked == []


def test_the_next_mirror_is_asked_when_one_fails(monkeypatch):
    asked = serve(monkeypatch, {"b/file": b"content"})
    assert downloads.download(["https://a/file", "https://b/file"], md5(b"content")) == b"content"
    assert asked == ["https://a/file", "https://b/file"]


def test_a_folder_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be written"):
        downloads.write_atomically(tmp_path / "file" / "inside", b"content")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ResourceError, match="cannot be written"):
        downloads.write_atomically(tmp_path / "taken", b"content")
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


def test_an_archive_cannot_write_outside_its_folder(tmp_path, monkeypatch):
    rows = cifar_rows(pixels(2, 3, 32, 32), np.array([0, 1]))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        names = ["../../evil.bin", "x/readme.html", "../test_batch.bin"]
        for name in [*names, *(f"x/{name}" for name in cifar10.LAYOUT.binary["train"])]:
            member = tarfile.TarInfo(name)
            member.size = len(rows)
            archive.addfile(member, io.BytesIO(rows))
    content = packed.getvalue()
    serve(monkeypatch, {".tar.gz": content})
    monkeypatch.setattr(cifar10, "LAYOUT", _cifar.Layout(**{**vars(cifar10.LAYOUT), "md5": md5(content)}))
    root = tmp_path / "a" / "root"
    root.mkdir(parents=True)
    assert open_data("cifar10", "train", root=root).samples == 10
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    folder = "a/root/cifar-10-batches-bin"
    assert written == [*(f"{folder}/data_batch_{i}.bin" for i in range(1, 6)), f"{folder}/test_batch.bin"]


# --- CIFAR ----------------------------------------------------------------------------------------------


def test_cifar10_is_read_from_the_binary_files_in_their_order(tmp_path):
    images = pixels(10, 3, 32, 32)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i, chunk in enumerate(np.split(np.arange(10), 5), start=1):
        (folder / f"data_batch_{i}.bin").write_bytes(cifar_rows(images[chunk], chunk))
    data = open_data("cifar10", "train", root=tmp_path)
    assert torch.equal(data.source.inputs, torch.tensor(images))
    assert data.source.targets.tolist() == list(range(10))


def test_cifar100_takes_the_fine_label(tmp_path):
    (tmp_path / "cifar-100-binary").mkdir()
    rows = cifar_rows(pixels(2, 3, 32, 32), np.array([4, 1]), np.array([99, 29]))
    (tmp_path / "cifar-100-binary/test.bin").write_bytes(rows)
    data = open_data("cifar100", "test", root=tmp_path)
    assert data.source.targets.tolist() == [99, 29]
    assert data.classes == 100


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_pickles_are_read_as_plain_arrays(tmp_path, protocol):
    (tmp_path / "cifar-10-batches-py").mkdir()
    images = pixels(2, 3, 32, 32)
    content = {b"data": images.reshape(2, -1), b"labels": [6, 9], b"filenames": [b"a.png", b"b.png"]}
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(pickle.dumps(content, protocol))
    data = open_data("cifar10", "test", root=tmp_path)
    assert torch.equal(data.source.inputs, torch.tensor(images))
    assert data.source.targets.tolist() == [6, 9]


def as_python_2(images, labels):
    """As the publisher's file was pickled: bytes are strings."""
    rows, data = len(images), images.tobytes()
    kind = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01"
    array += b"K" + bytes([rows]) + b"M\x00\x0c\x86" + kind + b"\x89T" + len(data).to_bytes(4, "little")
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(U\x04data" + array + data + b"tbU\x06labels](" + numbers + b"eu."


def test_cifar_pickles_of_python_2_are_read(tmp_path):
    images = pixels(2, 3, 32, 32)
    (tmp_path / "test_batch").write_bytes(as_python_2(images.reshape(2, -1), [6, 9]))
    data = open_data("cifar10", "test", root=tmp_path)
    assert torch.equal(data.source.inputs, torch.tensor(images)) and data.source.targets.tolist() == [6, 9]


@pytest.mark.parametrize(
    "data, name",
    [
        ("cifar10", "test_batch"),
        ("cifar10", "test_batch.bin"),
        ("mnist", "t10k-images-idx3-ubyte"),
        ("npz:{}", "x.npz"),
        ("imagefolder:.?size=8", "val/a/x.png"),
    ],
)
def test_only_a_regular_file_of_a_possible_size_is_read(tmp_path, monkeypatch, data, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("t10k"):
        np.array([0x01080000, 1], ">u4").tofile("t10k-labels-idx1-ubyte")
    for kind in KINDS:
        lay(path, kind)
        with pytest.raises((DataError, UsageError)):
            open_data(data.format(path), "test", root=tmp_path)
        path.unlink()


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    content = {b"data": Malicious(tmp_path / "ran"), b"labels": [0]}
    (folder / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=r"mkdir, which is refused"):
        open_data("cifar10", "test", root=tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"not a pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": [1, 2], b"labels": [0, 1]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [0, 1]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}),
    ],
)
def test_broken_pickles_are_refused(tmp_path, content):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(content)
    with pytest.raises(DataError):
        open_data("cifar10", "test", root=tmp_path)


def test_binary_files_of_another_length_are_refused(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3074)
    with pytest.raises(DataError, match="multiple of 3073"):
        open_data("cifar10", "test", root=tmp_path)


def test_one_missing_part_is_named(tmp_path):
    for i in (1, 2, 4, 5):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(b"\0" * 3073)
    with pytest.raises(DataError, match="only data_batch_3.bin is missing"):
        open_data("cifar10", "train", root=tmp_path)


def test_augmentation_crops_within_the_padding_and_mirrors_half():
    images = torch.tensor(pixels(400, 3, 32, 32))
    out = _cifar.crop_and_flip(images, torch.Generator().manual_seed(0))
    again = _cifar.crop_and_flip(images, torch.Generator().manual_seed(0))
    assert out.shape == images.shape and out.dtype == torch.uint8
    assert torch.equal(out, again)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    mirrored = 0
    for image, result in zip(padded, out, strict=True):
        crops = [image[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
        plain = any(torch.equal(crop, result) for crop in crops)
        flipped = any(torch.equal(crop.flip(2), result) for crop in crops)
        assert plain != flipped
        mirrored += flipped
    assert 150 < mirrored < 250


def test_images_are_turned_about_their_middle_each_by_an_angle_of_its_own():
    image = torch.zeros(1, 1, 8, 12)
    image[..., 2:6, 4:8] = 200.0
    images = image.repeat(50, 1, 1, 1)
    out = rotated(images, 30, torch.Generator().manual_seed(0))
    again = rotated(images, 30, torch.Generator().manual_seed(0))
    white = rotated(torch.full((9, 1, 8, 12), 255, dtype=torch.uint8), 30, torch.Generator())
    assert (white[..., 3:5, 5:7] == 255).all()  # not 254, which 254.9999 is cut to
    assert torch.equal(out, again) and len({tuple(it.flatten().tolist()) for it in out}) == 50
    torch.testing.assert_close(rotated(images, 0, torch.Generator()), images, atol=1e-3, rtol=0)
    ys, xs = torch.meshgrid(torch.arange(8.0) - 3.5, torch.arange(12.0) - 5.5, indexing="ij")
    corner = torch.zeros(1, 1, 8, 12)
    corner[..., 1, 6] = 200.0  # 2½ above the middle, ½ right of it
    seen = rotated(corner.repeat(200, 1, 1, 1), 90, torch.Generator().manual_seed(1))
    whole = seen.sum(dim=(1, 2, 3)).clamp_min(1e-9)
    x, y = ((seen[:, 0] * at).sum(dim=(1, 2)) / whole for at in (xs, ys))
    angles = torch.atan2(x, -y).rad2deg() - 11.3
    assert angles.min() < -70 and angles.max() > 70 and angles.abs().max() < 95
    assert (x.hypot(y) - 6.5**0.5).abs().max() < 0.3  # no farther from the middle, although it is not square


def test_only_images_are_turned_and_only_for_training():
    data = open_data("digits", "train", limit=20)
    turned = with_rotation(data, 15.0)
    assert with_rotation(data, None) is with_rotation(data, 0.0) is data
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(data, turned, strict=True))
    rngs = [torch.Generator().manual_seed(0) for _ in range(2)]
    (one, _), (other, _) = next(data.shuffled(rngs[0])), next(turned.shuffled(rngs[1]))
    assert one.shape == other.shape and not torch.equal(one, other)
    with pytest.raises(UsageError, match="has no images that could be turned"):
        with_rotation(open_data("alice", "train"), 15.0)


# --- npz and image folders ------------------------------------------------------------------------------


@pytest.mark.parametrize("x, y", [("x_{}", "y_{}"), ("{}_inputs", "{}_targets"), ("{}_images", "{}_labels")])
def test_npz_arrays_are_found_by_their_usual_names(tmp_path, x, y):
    images = pixels(4, 6, 5, 3)
    labels = np.array([[0], [1], [2], [1]])
    np.savez(tmp_path / "a.npz", **{x.format("train"): images, y.format("train"): labels})
    data = open_data(f"npz:{tmp_path}/a.npz", "train")
    assert torch.equal(data.source.inputs, torch.tensor(images).permute(0, 3, 1, 2))
    assert data.source.targets.tolist() == [0, 1, 2, 1]
    assert data.classes == 3
    with pytest.raises(DataError, match="no test split"):
        open_data(f"npz:{tmp_path}/a.npz", "test")


def test_npz_inputs_keep_channels_first_and_gain_a_channel_where_they_have_none(tmp_path):
    shapes = {(4, 3, 8, 8): (3, 8, 8), (4, 3, 8, 3): (3, 8, 3), (4, 8, 8): (1, 8, 8), (4, 7): (7,)}
    for given, expected in shapes.items():
        np.savez(tmp_path / "a.npz", x_test=np.ones(given), y_test=np.arange(4))
        source = open_data(f"npz:{tmp_path}/a.npz", "test").source
        assert source.inputs.shape[1:] == expected
        assert source.inputs.dtype == torch.float32


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"x_test": np.array([object()]), "y_test": np.array([0])}, "cannot be read"),
        ({"x_test": np.ones((2, 3), int), "y_test": np.array([0, 1])}, "inputs are int64"),
        ({"x_test": np.ones((2, 3)), "y_test": np.array([0.0, 1.0])}, "targets are float64"),
        ({"x_test": np.ones((2, 3)), "y_test": np.array([0])}, "2 inputs and 1 targets"),
        ({"x_test": np.full((2, 3), np.nan), "y_test": np.array([0, 1])}, "NaN"),
        ({"x_test": np.ones((2, 3)), "y_test": np.array([0, -1])}, "target is -1"),
        ({"x_test": np.ones((0, 3)), "y_test": np.array([], int)}, "no samples"),
    ],
)
def test_npz_arrays_that_cannot_be_used_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        open_data(f"npz:{tmp_path}/a.npz", "test")


def test_files_that_are_no_npz_are_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "text.npz").write_text("hello")
    for name in ("one.npy", "text.npz", "absent.npz"):
        with pytest.raises(DataError, match=name):
            open_data(f"npz:{tmp_path}/{name}", "train")
    with pytest.raises(UsageError, match="npz:PATH"):
        datasets.open_data("npz", "train")


def write_images(folder, sizes, mode="RGB"):
    for i, (name, size) in enumerate(sizes.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, (10 * i,) * 3 if mode == "RGB" else 10 * i).save(path)


def test_an_image_folder_has_a_class_for_each_folder_and_one_size(tmp_path):
    write_images(tmp_path / "train", {"cat/a.png": (6, 4), "cat/b.png": (12, 8), "dog/c.PNG": (6, 4)})
    write_images(tmp_path / "val", {"dog/x.png": (3, 3)})
    (tmp_path / "train/cat/notes.txt").write_text("")
    (tmp_path / "train/.cache").mkdir()
    train = open_data(f"imagefolder:{tmp_path}", "train")
    assert train.source.inputs.shape == (3, 3, 4, 6)
    assert train.source.inputs[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert train.source.targets.tolist() == [0, 0, 1]
    test = open_data(f"imagefolder:{tmp_path}", "test")
    assert test.source.inputs.shape == (1, 3, 4, 6)
    assert test.source.targets.tolist() == [1]
    assert open_data(f"imagefolder:{tmp_path}?size=5x7", "test").source.inputs.shape == (1, 3, 5, 7)


def tiny_imagenet(folder):
    """Two classes, as the archive lays them out."""
    write_images(folder / "train", {"n2/images/n2_0.JPEG": (4, 4), "n1/images/n1_0.JPEG": (4, 4)})
    write_images(folder / "val/images", {"val_0.JPEG": (4, 4), "val_10.JPEG": (4, 4), "val_2.JPEG": (4, 4)})
    (folder / "wnids.txt").write_text("n2\nn1\n")
    lines = [f"val_{k}.JPEG\t{name}\t0\t0\t3\t3\n" for k, name in ((0, "n2"), (2, "n1"), (10, "n1"))]
    (folder / "val/val_annotations.txt").write_text("".join(lines))


def test_tiny_imagenet_is_read_as_it_is_published(tmp_path):
    tiny_imagenet(tmp_path)
    train, test = (open_data(f"imagefolder:{tmp_path}", split) for split in ("train", "test"))
    assert train.source.inputs.shape == (2, 3, 4, 4) and train.source.targets.tolist() == [0, 1]
    assert test.source.targets.tolist() == [1, 0, 0] and train.classes == 2  # by name: 0, 10, 2
    lines = (tmp_path / "val/val_annotations.txt").read_text().replace("val_2.JPEG\tn1", "val_2.JPEG\tn2")
    (tmp_path / "val/val_annotations.txt").write_text(lines)
    assert open_data(f"imagefolder:{tmp_path}", "test").source.targets.tolist() == [1, 0, 1]
    write_images(
        tmp_path / "train", {"n1/images/n1_0.JPEG": (4, 4)}, mode="L"
    )  # some are grey, the first too
    assert open_data(f"imagefolder:{tmp_path}", "train").source.inputs.shape == (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda at: (at / "wnids.txt").write_text("n1\nn3\n"), "other classes than"),
        (lambda at: (at / "wnids.txt").write_text("n1\n"), "other classes than"),
        (lambda at: (at / "val/images/val_2.JPEG").unlink(), "line 2  val_2.JPEG  no image of that name"),
        (lambda at: write_images(at / "val/images", {"new.JPEG": (4, 4)}), "new.JPEG  has no line"),
        (lambda at: (at / "val/val_annotations.txt").write_text("val_0.JPEG\n"), "no class: train has no"),
        (lambda at: (at / "val/val_annotations.txt").write_text("val_0.JPEG\tn1\n" * 2), "named twice"),
        (lambda at: (at / "val/val_annotations.txt").write_text("../wnids.txt\tn1\n"), "no image of that"),
        (lambda at: (at / "val/val_annotations.txt").write_bytes(b"\xff\xfe"), "it is not UTF-8"),
        (lambda at: os.truncate(at / "val/val_annotations.txt", SMALL + 1), "at most 67,108,864 are read"),
    ],
)
def test_a_tiny_imagenet_that_is_damaged_is_refused(tmp_path, change, says):
    tiny_imagenet(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError, match=says):
        open_data(f"imagefolder:{tmp_path}", "test")


def test_grey_images_have_one_channel(tmp_path):
    write_images(tmp_path / "train", {"a/a.png": (4, 4), "b/b.png": (4, 4)}, mode="L")
    assert open_data(f"imagefolder:{tmp_path}?size=2", "train").source.inputs.shape == (2, 1, 2, 2)


def test_image_folders_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(DataError, match="has no folder train"):
        open_data(f"imagefolder:{tmp_path}", "train")
    (tmp_path / "train/cat").mkdir(parents=True)
    with pytest.raises(DataError, match="has no images"):
        open_data(f"imagefolder:{tmp_path}", "train")
    write_images(tmp_path / "train", {"cat/a.png": (4, 4)})
    with pytest.raises(DataError, match="has no folder test or val"):
        open_data(f"imagefolder:{tmp_path}", "test")
    write_images(tmp_path / "test", {"cow/a.png": (4, 4)})
    with pytest.raises(DataError, match="classes that") as error:
        open_data(f"imagefolder:{tmp_path}", "test")
    assert error.value.problems == ("cow",)
    with pytest.raises(UsageError, match="crop"):
        open_data(f"imagefolder:{tmp_path}?crop=3", "train")
    (tmp_path / "train/cat/b.png").write_bytes((tmp_path / "train/cat/a.png").read_bytes()[:40])
    with pytest.raises(DataError, match="b.png"):
        open_data(f"imagefolder:{tmp_path}", "train")


# --- a user's own loader --------------------------------------------------------------------------------


def write_loader(tmp_path, body):
    (tmp_path / "mine.py").write_text(f"import torch\n{body}")
    return f"{tmp_path}/mine.py:loader"


def test_the_batches_of_a_users_loader_are_used_as_they_are(tmp_path):
    reference = write_loader(
        tmp_path,
        "def loader(split):\n"
        "    x = torch.full((3, 2), 1.0 if split == 'train' else 2.0)\n"
        "    batch = lambda n: ({'ids': x, 'n': n}, torch.arange(3) + 3 * n)\n"
        "    return [batch(0), batch(1)]\n",
    )
    data = open_data(reference, "test")
    assert (data.samples, data.normalization, data.classes, data.split) == (6, None, None, "test")
    assert [inputs["n"] for inputs, _ in data] == [0, 1]
    assert data.example()["ids"].tolist() == [[2.0, 2.0]] * 2
    assert data.with_batch_size(1) is data
    assert [targets.tolist() for _, targets in data.subset(4)] == [[0, 1, 2], [3]]
    assert [targets.tolist() for _, targets in data.subset(3)] == [[0, 1, 2]]
    assert data.subset(4).samples == open_data(reference, "test", limit=4).samples == 4
    assert len(list(data.shuffled(torch.Generator()))) == 2
    with pytest.raises(UsageError, match="--normalize"):
        open_data(reference, "test", normalize="unit")


@pytest.mark.parametrize(
    "body, message",
    [
        ("loader = 3\n", "expected a function"),
        ("def loader(split):\n    raise KeyError(split)\n", "failed on 'train': KeyError"),
        ("def loader(split):\n    return 3\n", "not iterable"),
        ("def loader(split):\n    yield 1\n", "read only once"),
        ("def loader(batch_size=8):\n    return range(batch_size)\n", "and gets it as its batch_size"),
        ("def loader():\n    return []\n", "takes no arguments, and gives list of 0"),
        ("def loader(split, root):\n    return []\n", r"yours takes \(split, root\)"),
        ("def loader(train):\n    return []\n", "takes a truth value"),
        ("def loader(train=True):\n    return []\n", "takes a truth value"),
        ("def loader(split):\n    return range(3), range(3)\n", "several splits at once"),
        ("def loader(split):\n    return {'train': [], 'test': []}\n", "several splits at once"),
        ("raise ValueError('broken')\n", "ValueError: broken"),
    ],
)
def test_a_users_loader_that_does_not_open_is_a_data_error(tmp_path, body, message):
    with pytest.raises(DataError, match=message):
        open_data(write_loader(tmp_path, body), "train")


def test_a_loader_may_have_a_split_by_default_and_call_it_as_it_likes(tmp_path):
    body = "def loader(train='train'):\n    return [(torch.ones(2, 2), torch.tensor([0, 1]))]\n"
    assert len(list(open_data(write_loader(tmp_path, body), "test"))) == 1


@pytest.mark.parametrize(
    "second, message",
    [
        ("1 / 0", "batch 1: ZeroDivisionError"),
        ("(x, y, y)", "batch 1 of the data is tuple of 3"),
        ("x", "batch 1 of the data is float32"),
        ("(x / 0, y)", "batch 1 of the data has NaN or infinite"),
        ("({'a': (x * float('nan'),)}, y)", "batch 1 of the data has NaN or infinite"),
    ],
)
def test_a_users_loader_that_fails_is_a_data_error_with_the_batch(tmp_path, second, message):
    body = f"""
class Batches:
    def __iter__(self):
        x, y = torch.ones(2, 2), torch.tensor([0, 1])
        yield x, y
        yield {second}

def loader(split):
    return Batches()
"""
    data = open_data(write_loader(tmp_path, body), "train")
    with pytest.raises(DataError, match=message):
        _ = data.samples


# --- the real files -------------------------------------------------------------------------------------

REAL = os.environ.get("REBASIN_DATA")


@pytest.mark.skipif(not REAL, reason="REBASIN_DATA is not set")
def test_the_real_files_have_the_published_sizes(monkeypatch):
    monkeypatch.setenv("REBASIN_DATA", REAL)
    for name, shape in (("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))):
        data = open_data(name, "test")
        assert data.source.inputs.shape == (10_000, *shape)
        assert data.source.targets.unique().tolist() == list(range(10))
    mean = data.source.inputs.double().mean((0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor(data.normalization.mean).double(), atol=0.01)


def test_a_split_that_is_read_often_is_made_once(monkeypatch):
    data = open_data("digits", "test").with_batch_size(100)
    kept = once(data)
    for _ in range(2):
        for (inputs, targets), (made, labels) in zip(data, kept, strict=True):
            assert torch.equal(inputs, made) and torch.equal(targets, labels)
    assert all(one[0] is other[0] for one, other in zip(kept, kept, strict=True))
    loader = open_loader("mine", lambda split: [(torch.rand(4, 3), torch.arange(4))], "test")
    assert once(loader) is loader  # its batches may be others each time
    monkeypatch.setattr("rebasin_cli.datasets.KEPT", 4 * 64 * len(data.source) - 1)
    assert once(data) is data
