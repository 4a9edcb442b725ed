"""Files of data sets that are broken, hostile or of another kind: exit 6 (5 for memory), one message."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image


def idx(array, *, kind=8, shape=None):
    shape = array.shape if shape is None else shape
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()


IMAGES, LABELS = np.zeros((20, 8, 8), "u1"), np.arange(20, dtype="u1") % 10
NOISE = np.random.default_rng(0).integers(0, 256, (20, 8, 8), "u1")
ZEROS = gzip.compress(bytes(3 << 20), mtime=0)


def grown(header, megabytes):
    """A gzip file that unpacks to so many megabytes of zeros, without making them."""
    packer, parts = zlib.compressobj(9, zlib.DEFLATED, 31), []
    parts.append(packer.compress(header))
    chunk = bytes(1 << 20)
    for _ in range(megabytes):
        parts.append(packer.compress(chunk))
    return b"".join([*parts, packer.flush()])


MNIST = {  # images and labels of the test split: the words; what takes long to make is made when it is needed
    "labels beyond the classes": (
        idx(IMAGES),
        idx(LABELS + 3),
        "a target is 12; expected class numbers, 0…9",
    ),
    "a label of 255": (idx(IMAGES), idx(np.full(20, 255, "u1")), "a target is 255"),
    "signed labels": (idx(IMAGES), idx(np.full(20, -1, "i1"), kind=9), "a target is -1"),
    "labels of 32 bits": (idx(IMAGES), idx(np.full(20, 99, ">i4"), kind=12), "a target is 99"),
    "labels of floats": (idx(IMAGES), idx(np.zeros(20, ">f4"), kind=13), "do not fit"),
    "labels of doubles": (idx(IMAGES), idx(np.zeros(20, ">f8"), kind=14), "do not fit"),
    "images of floats": (idx(np.zeros((20, 8, 8), ">f4"), kind=13), idx(LABELS), "do not fit"),
    "images with four axes": (idx(np.zeros((20, 1, 8, 8), "u1")), idx(LABELS), "do not fit"),
    "labels with two axes": (idx(IMAGES), idx(np.zeros((20, 1), "u1")), "do not fit"),
    "fewer labels": (idx(IMAGES), idx(LABELS[:19]), "do not fit"),
    "no samples": (idx(IMAGES[:0]), idx(LABELS[:0]), "no samples"),
    "images without pixels": (idx(IMAGES[:, :0]), idx(LABELS), "nothing in them"),
    "an empty file": (b"", idx(LABELS), "is not an idx file"),
    "three bytes": (b"\0\0\x08", idx(LABELS), "is not an idx file"),
    "a web page": (b"<!DOCTYPE html><html>", idx(LABELS), "is not an idx file"),
    "an unknown type": (b"\0\0\x07\x01\0\0\0\x01\0", idx(LABELS), "is not an idx file"),
    "a header cut short": (idx(IMAGES)[:9], idx(LABELS), "its header promises"),
    "pixels cut short": (idx(IMAGES)[:-1], idx(LABELS), "1295 bytes, but its header promises 1296"),
    "bytes at the end": (idx(IMAGES) + b"\0", idx(LABELS), "1297 bytes, but its header promises 1296"),
    "no axes": (b"\0\0\x08\0", idx(LABELS), "its header promises 0 axes"),
    "255 axes": (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"\0", idx(LABELS), "promises 255 axes"),
    "sizes of 2^32": (
        idx(IMAGES, shape=(2**32 - 1,) * 3),
        idx(LABELS),
        "promises 79228162458924105385300197391",
    ),
    "gzip cut short": (gzip.compress(idx(IMAGES))[:-20], idx(LABELS), "cannot be read"),
    "gzip with a wrong checksum": (gzip.compress(idx(IMAGES))[:-8] + bytes(8), idx(LABELS), "cannot be read"),
    "gzip and nothing else": (b"\x1f\x8b", idx(LABELS), "cannot be read"),
    "gzip broken inside": (gzip.compress(idx(NOISE))[:90] + b"\xff" * 99, idx(LABELS), "cannot be read"),
    "gzip within gzip": (gzip.compress(gzip.compress(idx(IMAGES))), idx(LABELS), "is not an idx file"),
    "gzip of fewer bytes": (
        gzip.compress(idx(IMAGES)[:-9]),
        idx(LABELS),
        "promises 1296 bytes, and there are only",
    ),
    "gzip of more bytes": (gzip.compress(idx(IMAGES) + b"\0"), idx(LABELS), "there are more than that"),
    "a gzip bomb behind a small header": (
        lambda: grown(idx(IMAGES), 300),
        idx(LABELS),
        "there are more than that",
    ),
    "a gzip bomb that says so": (
        lambda: grown(b"\0\0\x08\3" + struct.pack(">3I", 2**20, 2**6, 2**6), 8),
        idx(LABELS),
        "and would unpack to 4,294,967,296",
    ),
    "a gzip bomb of nothing": (ZEROS, idx(LABELS), "is not an idx file"),
}


@pytest.mark.parametrize("case", MNIST)
def test_broken_idx_files_are_told(case, ends, two, tmp_path):
    images, labels, says = MNIST[case]
    images = images() if callable(images) else images
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(labels)
    ends(6, "eval", "a.safetensors", "--data", "mnist", "--data-root", ".", says=says)


ROW = bytes(3072)
BATCHES = {
    "a label of 10": (b"\x0a" + ROW, "a target is 10; expected class numbers, 0…9"),
    "a label of 255": (b"\xff" + ROW, "a target is 255"),
    "cut short": (b"\0" + ROW[:-1], "expected a multiple of 3073"),
    "empty": (b"", "0 bytes"),
    "a byte more": (b"\0" + ROW + b"\0", "3074 bytes"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_broken_cifar_files_are_told(case, ends, two, tmp_path):
    content, says = BATCHES[case]
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(content)
    ends(6, "eval", "a.safetensors", "--data", "cifar10", "--data-root", ".", says=says)


class Runs:
    """What a pickle may do."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


class Grows:
    def __reduce__(self):
        return np.ndarray, ((1 << 45,), "u1")


PICTURES = np.zeros((2, 3072), np.uint8)
PICKLES = {
    "code": ({b"data": PICTURES, b"labels": Runs()}, "it asks for"),
    "an array that fills memory": ({b"data": Grows(), b"labels": [0, 1]}, "is not a plain pickle of arrays"),
    "a label of 10": ({b"data": PICTURES, b"labels": [0, 10]}, "a target is 10"),
    "a negative label": ({b"data": PICTURES, b"labels": [0, -1]}, "a target is -1"),
    "a huge label": ({b"data": PICTURES, b"labels": [0, 10**30]}, "its labels are not whole numbers"),
    "labels of floats": ({b"data": PICTURES, b"labels": [0, 1.5]}, "its labels are not whole numbers"),
    "labels of text": ({b"data": PICTURES, b"labels": ["0", "1"]}, "its labels are not whole numbers"),
    "nested labels": ({b"data": PICTURES, b"labels": [[0], [1]]}, "its labels are not whole numbers"),
    "labels in a tuple": ({b"data": PICTURES, b"labels": (0, 1)}, "and as many labels"),
    "fewer labels": ({b"data": PICTURES, b"labels": [0]}, "and as many labels"),
    "no labels": ({b"data": PICTURES}, "and as many labels"),
    "images of floats": ({b"data": PICTURES.astype("f4"), b"labels": [0, 1]}, "expected 'data'"),
    "images of objects": ({b"data": PICTURES.astype(object)[:, :2], b"labels": [0, 1]}, "expected 'data'"),
    "one number": ({b"data": np.array(3, "u1"), b"labels": [0]}, "expected 'data'"),
    "a list": ([1, 2], "expected a dictionary"),
    "a number": (3, "expected a dictionary"),
}


@pytest.mark.parametrize("case", PICKLES)
def test_pickles_that_are_no_plain_arrays_are_told(case, ends, two, tmp_path):
    content, says = PICKLES[case]
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    ends(6, "eval", "a.safetensors", "--data", "cifar10", "--data-root", ".", says=says)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"garbage", b"\x80\x02}q\x00.", b"(" * 10_000, b"cos\nsystem\n(S'x'\ntR."]
)
def test_broken_pickles_are_told(content, ends, two, tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    ends(6, "eval", "a.safetensors", "--data", "cifar10", "--data-root", ".", says="test_batch")


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name + ".npy", content)
    return file.getvalue()


def npy(header):
    text = (header + " " * (-len(header) - 11 & 63) + "\n").encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


X, Y = np.zeros((4, 8, 8)), np.arange(4)
GOOD = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s,), }"
NPZ = {
    "a huge label": (npz(x_test=X, y_test=np.array([0, 1, 2, 1 << 62])), "a target is 4611686018427387904"),
    "a large label": (
        npz(x_test=X, y_test=np.array([0, 1, 2, 1 << 20])),
        "expected class numbers, 0…1048575",
    ),
    "a label beyond int64": (npz(x_test=X, y_test=np.array([0, 1, 2, 1 << 63], "u8")), "a target is -"),
    "a label beyond the network": (
        npz(x_test=X, y_test=np.array([0, 1, 2, 10])),
        "the network knows 10 classes",
    ),
    "a number for inputs": (npz(x_test=np.array(1.0), y_test=np.array([0])), "inputs have the shape ()"),
    "a row for inputs": (npz(x_test=np.zeros(4), y_test=Y), "inputs have the shape (4,)"),
    "a number for targets": (npz(x_test=X, y_test=np.array(3)), "targets are int64 ()"),
    "inputs without pixels": (npz(x_test=np.zeros((4, 0)), y_test=Y), "nothing in them"),
    "infinite inputs": (npz(x_test=X + np.inf, y_test=Y), "NaN or infinite"),
    "inputs beyond float32": (npz(x_test=X + 1e300, y_test=Y), "NaN or infinite"),
    "complex inputs": (npz(x_test=X + 1j, y_test=Y), "inputs are complex128"),
    "text": (npz(x_test=np.array([["a"]] * 4), y_test=Y), "inputs are <U1"),
    "times": (npz(x_test=np.zeros((4, 2), "M8[s]"), y_test=Y), "inputs are datetime64[s]"),
    "records": (npz(x_test=np.zeros((4, 2), "i4,f4"), y_test=Y), "inputs are [("),
    "targets of booleans": (npz(x_test=X, y_test=Y > 1), "targets are bool"),
    "another split": (npz(x_train=X, y_train=Y), "has no test split"),
    "no arrays": (zipped(), "has no test split"),
    "an empty member": (zipped(x_test=b"", y_test=b""), "are no array"),
    "members that are no arrays": (zipped(x_test=b"hello", y_test=b"you"), "are no array"),
    "a header of code": (zipped(x_test=npy("__import__('os').mkdir('ran')"), y_test=b""), "cannot be read"),
    "a header without a shape": (zipped(x_test=npy("{'descr': '|u1'}"), y_test=b""), "cannot be read"),
    "a header of 60,000 brackets": (zipped(x_test=npy("(" * 60_000), y_test=b""), "cannot be read"),
    "a header that ends": (zipped(x_test=npy(GOOD % "4, 4")[:20], y_test=b""), "cannot be read"),
    "a shape beyond the file": (zipped(x_test=npy(GOOD % "1000, 4"), y_test=b""), "cannot be read"),
    "a shape beyond memory": (zipped(x_test=npy(GOOD % f"{1 << 50}, 4"), y_test=b""), "cannot be read"),
    "a shape beyond numbers": (zipped(x_test=npy(GOOD % f"{1 << 70}, 4"), y_test=b""), "cannot be read"),
    "a shape of 5,000 digits": (zipped(x_test=npy(GOOD % ("9" * 5000)), y_test=b""), "cannot be read"),
    "a negative shape": (zipped(x_test=npy(GOOD % "-1, 4"), y_test=b""), "cannot be read"),
    "a pickled array": (npz(x_test=np.array([[None]] * 4), y_test=Y), "cannot be read"),
    "cut short": (npz(x_test=X, y_test=Y)[:-30], "is no .npz file"),
    "broken inside": ((lambda b: b[:60] + b"\xff" * 40 + b[100:])(npz(x_test=X, y_test=Y)), "cannot be read"),
    "one array": (npy(GOOD % "0, 4"), "is no .npz file"),
    "a pickle": (pickle.dumps(Runs()), "is no .npz file"),
    "empty": (b"", "is no .npz file"),
}


@pytest.mark.parametrize("case", NPZ)
def test_broken_npz_files_are_told(case, ends, two, tmp_path):
    content, says = NPZ[case]
    (tmp_path / "a.npz").write_bytes(content)
    ends(6, "eval", "a.safetensors", "--data", "npz:a.npz", "--skip-checks", says=says)
    assert not (tmp_path / "ran").exists()


def test_an_npz_bomb_is_not_unpacked(ends, two, tmp_path):
    """Its directory says how much there would be; here the directory alone is made to say so."""
    content = bytearray(zipped(x_test=npy(GOOD % "4, 4") + bytes(16), y_test=b""))
    where = content.index(b"PK\x01\x02") + 24
    content[where : where + 4] = struct.pack("<I", 3 << 30)
    (tmp_path / "a.npz").write_bytes(content)
    ends(6, "eval", "a.safetensors", "--data", "npz:a.npz", says="would unpack to 3,221,225,472")


def test_classes_that_training_samples_do_not_have_are_told_before_training(ends, tmp_path):
    (tmp_path / "a.npz").write_bytes(npz(x_train=X, y_train=Y, x_test=X, y_test=Y + 1))
    arguments = ("train", "mlp", "--data", "npz:a.npz", "--width", "4", "-o", "out.safetensors")
    ends(6, *arguments, says="test samples are of 5 classes, training samples of 4")


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, data=b""):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def saved(kind, size=(8, 8), mode="L"):
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), "u1")
    (Image.fromarray(noise) if mode == "noise" else Image.new(mode, size)).save(file, kind)
    return file.getvalue()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(ran) (w) file\nshowpage\n%%EOF\n"
PICTURE = {
    "a png of 2^31 × 2^31": (png(2**31, 2**31), "1.png"),
    "a png of 2^31 - 1": (png(2**31 - 1, 2**31 - 1), "1.png"),
    "a png of 2^32 - 1": (png(2**32 - 1, 1), "1.png"),
    "a png bomb": (png(20_000, 20_000, bytes(1000)), "decompression bomb"),
    "a smaller png bomb": (png(10_000, 10_000, bytes(1000)), "decompression bomb"),
    "a png without pixels": (png(0, 0), "1.png"),
    "a png cut short": (saved("PNG", mode="noise")[:-2000], "1.png is broken"),
    "a png with a wrong checksum": (saved("PNG")[:30] + bytes(4) + saved("PNG")[34:], "1.png"),
    "a png that says text": (b"\x89PNG\r\n\x1a\n" + b"hello" * 9, "1.png"),
    "a png with a text bomb": (
        saved("PNG")[:33] + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80 << 20))) + saved("PNG")[33:],
        "1.png is broken",
    ),
    "a jpeg cut short": (saved("JPEG")[:-200], "1.png is broken"),
    "a jpeg of a header": (b"\xff\xd8\xff\xe0", "1.png"),
    "a gif cut short": (saved("GIF")[:20], "1.png"),
    "a tiff cut short": (saved("TIFF")[:40], "1.png"),
    "a webp cut short": (saved("WEBP")[:20], "1.png"),
    "postscript": (EPS, "1.png is not an image: expected PNG, JPEG"),
    "an icon": (saved("ICO"), "1.png is not an image"),
    "text": (b"hello", "1.png is not an image"),
    "nothing": (b"", "1.png is not an image"),
    "a netpbm of words": (b"P5 a b 255\n", "1.png"),
    "a netpbm of 10^30": (b"P5 " + b"9" * 30 + b" 8 255\n", "1.png"),
    "a bmp of 2^31": (saved("BMP")[:18] + b"\xff\xff\xff\x7f" * 2 + saved("BMP")[26:], "1.png"),
}


@pytest.fixture
def images(tmp_path):
    """A folder with one good image a class and split, and one in the test split to be changed."""
    for split in ("train", "test"):
        for name in "01":
            (tmp_path / "p" / split / name).mkdir(parents=True)
            (tmp_path / "p" / split / name / "0.png").write_bytes(saved("PNG"))
    return tmp_path / "p"


LOOK = ("eval", "a.safetensors", "--skip-checks", "--data")


@pytest.mark.parametrize("case", PICTURE)
def test_images_that_cannot_be_read_are_told(case, ends, two, images):
    content, says = PICTURE[case]
    (images / "test" / "1" / "1.png").write_bytes(content)
    ends(6, *LOOK, "imagefolder:p", says=says)


OPTIONS = {
    "?size=": "unknown option 'size='",
    "?size=0": "expected 1 to 16384 pixels",
    "?size=16385": "expected 1 to 16384 pixels",
    "?size=1x99999": "expected 1 to 16384 pixels",
    "?size=9999999999": "unknown option",
    "?size=" + "9" * 5000: "unknown option",
    "?size=-1": "unknown option",
    "?size=8x": "unknown option",
    "?size=8x8x8": "unknown option",
    "?size=8.5": "unknown option",
    "?size=٣٢": "unknown option",
    "?size=8\n": "unknown option",
    "?width=8": "unknown option",
    "?": "unknown option ''",
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda text: text[:20])
def test_options_of_an_image_folder_that_make_no_sense_are_told(option, ends, two, images):
    ends(2, *LOOK, f"imagefolder:p{option}", says=OPTIONS[option])


def test_images_that_no_memory_holds_are_told_before_they_are_read(ends, two, images, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 20_000)  # pages and their bytes: 400 MB
    ends(5, *LOOK, "imagefolder:p?size=16384", says=("2 images of 16384×16384", "bytes of memory"))


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing", "link to itself", "link to a pipe"])
def test_what_is_no_file_but_has_an_images_name_is_told(kind, ends, two, images, tmp_path):
    odd = images / "test" / "0" / "odd.png"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        odd.symlink_to({"link to nothing": "nowhere", "link to itself": odd}.get(kind, tmp_path / "pipe"))
    ends(6, *LOOK, "imagefolder:p", says=("holds what is no file", "odd.png"))


FOLDERS = {
    "nothing there": (lambda p: None, "has no folder train"),
    "a file": (lambda p: p.write_text(""), "has no folder train"),
    "no test split": (lambda p: (p / "train" / "0").mkdir(parents=True), "has no folder test"),
    "no classes": (
        lambda p: [(p / s).mkdir(parents=True) for s in ("train", "test")],
        "has no class folders",
    ),
    "no images": (lambda p: [(p / s / "0").mkdir(parents=True) for s in ("train", "test")], "has no images"),
    "other classes": (
        lambda p: [(p / s).mkdir(parents=True) for s in ("train/0", "test/1")],
        "classes that p/train does not have",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_that_hold_no_data_set_are_told(case, ends, two, tmp_path):
    make, says = FOLDERS[case]
    make(tmp_path / "p")
    ends(6, *LOOK, "imagefolder:p", says=says)


REFERENCES = {  # what --data may say: the exit code and the words
    "": (2, "is empty"),
    "nothing": (2, "unknown data set 'nothing'"),
    "npz": (2, "npz needs to know where"),
    "npz:": (6, "no such file"),
    "npz:nowhere.npz": (6, "nowhere.npz: no such file"),
    "npz:/": (6, "no such file"),
    "npz:" + "a" * 5000: (5, "File name too long"),
    "imagefolder:": (6, "has no folder train"),
    "imagefolder:" + "a/" * 3000: (5, "File name too long"),
    "mine.py:loader": (2, "mine.py: no such file"),
    "mine.py:": (2, "unknown data set"),
    "nowhere.mine:loader": (6, "importing nowhere.mine failed"),
    "../up:loader": (2, ""),
    "digits:train": (6, "importing digits failed"),
    "rebasin_cli.datasets.sets.digits:load": (6, "failed on 'test': TypeError"),
    "os:getcwd": (6, "os:getcwd takes no arguments, and gives str"),
    "\0": (2, "unknown data set"),
    "npz:\0": (6, "no such file"),
}


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda text: repr(text[:20]))
def test_data_that_is_not_there_is_told(reference, ends, two):
    code, says = REFERENCES[reference]
    ends(code, *LOOK, reference, says=says)
