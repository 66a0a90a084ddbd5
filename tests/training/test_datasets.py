"""Readers: small files written by hand, naive oracles, and the published facts of the real sets."""

from __future__ import annotations

import random as pyrandom
import struct

import numpy as np
import pytest
import torch

from slowlink.testbed.training import datasets
from slowlink.testbed.training.datasets import (
    Dataset,
    ImageFiles,
    balanced_subset,
    channel_statistics,
    fewer_words,
    held_out,
    load_dataset,
    read_cifar10,
    read_idx,
    read_imagenet,
    read_mnist,
    read_penn_treebank,
    read_windows,
    windows,
)
from slowlink.testbed.training.fetch import DataUnavailable

rng = np.random.default_rng(11)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


# --- idx -----------------------------------------------------------------------------------------


def test_idx_worked_bytes(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes.fromhex("00000802 00000002 00000003 010203 0405ff"))
    assert read_idx(path).tolist() == [[1, 2, 3], [4, 5, 255]]
    assert read_idx(path).dtype == torch.uint8


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not an idx file"),
        (b"\x1f\x8b\x08\x00", "not an idx file"),
        (b"\x00\x00\x0d\x01" + b"\0" * 8, "not an idx file"),  # floats
        (b"\x00\x00\x08\x00", "names no dimension"),
        (b"\x00\x00\x08\x03" + b"\0" * 8, "cut off"),
        (idx(np.zeros((2, 3)))[:-1], "17 bytes, but header (2, 3) asks for 18"),
        (idx(np.zeros((2, 3))) + b"x", "19 bytes, but header (2, 3) asks for 18"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12 + b"\0", "asks for"),  # must not be allocated
    ],
)
def test_idx_refuses(tmp_path, content, told):
    path = tmp_path / "labels"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_idx(path)
    assert str(path) in str(caught.value) and told in str(caught.value)


def write_mnist(folder, train=30, test=12, size=5):
    parts = {}
    for split, n in (("train", train), ("t10k", test)):
        parts[split] = (
            rng.integers(0, 256, (n, size, size), dtype=np.uint8),
            rng.integers(0, 10, n, dtype=np.uint8),
        )
        (folder / f"{split}-images-idx3-ubyte").write_bytes(idx(parts[split][0]))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx(parts[split][1]))
    return parts


def test_mnist_reader(tmp_path):
    parts = write_mnist(tmp_path)
    data = read_mnist(tmp_path)
    assert np.array_equal(data.train_x[:, 0].numpy(), parts["train"][0])
    assert np.array_equal(data.test_x[:, 0].numpy(), parts["t10k"][0])
    assert data.train_y.tolist() == parts["train"][1].tolist()
    assert data.test_y.tolist() == parts["t10k"][1].tolist()
    assert (data.train_x.dtype, data.train_y.dtype) == (torch.uint8, torch.int64)
    assert (data.shape, data.n_classes) == ((1, 5, 5), 10)
    scaled = parts["train"][0].astype(np.float64) / 255
    prepared = data.prepare(data.train_x).double().numpy()[:, 0]
    np.testing.assert_allclose(prepared, (scaled - scaled.mean()) / scaled.std(), atol=1e-5)


def test_mnist_reader_refuses_what_does_not_fit(tmp_path):
    write_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(29)))
    with pytest.raises(ValueError, match=r"train has images \(30, 5, 5\) and labels \(29,\)"):
        read_mnist(tmp_path)
    labels.write_bytes(idx(np.full(30, 10)))
    with pytest.raises(ValueError, match="label 10, there are 10 classes"):
        read_mnist(tmp_path)


# --- CIFAR-10 ------------------------------------------------------------------------------------


def write_cifar(folder):
    records = []
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        batch = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        batch[:, 0] %= 10
        (folder / name).write_bytes(batch.tobytes())
        records.append(batch)
    return records


def test_cifar_reader_against_byte_by_byte(tmp_path):
    records = write_cifar(tmp_path)
    data = read_cifar10(tmp_path)
    assert data.train_x.shape == (20, 3, 32, 32) and data.test_x.shape == (4, 3, 32, 32)
    for i in range(20):
        record = records[i // 4][i % 4]
        assert data.train_y[i] == record[0]
        for channel, row, column in [(0, 0, 0), (1, 2, 3), (2, 31, 30)]:
            # the homepage: 1,024 red bytes, then green, then blue, each row by row
            expected = record[1 + 1024 * channel + 32 * row + column]
            assert data.train_x[i, channel, row, column] == expected
    assert data.test_y.tolist() == records[5][:, 0].tolist()


def test_cifar_reader_refuses(tmp_path):
    write_cifar(tmp_path)
    batch = tmp_path / "data_batch_3.bin"
    content = batch.read_bytes()
    batch.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="data_batch_3.bin: 12291 bytes are no whole number"):
        read_cifar10(tmp_path)
    batch.write_bytes(b"\x0a" + content[1:])
    with pytest.raises(ValueError, match="label 10"):
        read_cifar10(tmp_path)


def test_channel_statistics_are_those_of_all_pixels():
    images = rng.integers(0, 256, (50, 3, 7, 9), dtype=np.uint8)
    images[:, 1] //= 3
    mean, std = channel_statistics(torch.from_numpy(images))
    scaled = images.astype(np.float64) / 255
    np.testing.assert_allclose(mean.numpy(), scaled.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), scaled.std((0, 2, 3)), rtol=1e-6)


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 40, 99, 200])
def test_balanced_subset_is_as_even_as_the_classes_allow(limit):
    labels = torch.tensor([0] * 100 + [1] * 5 + [2] * 60 + [3] * 35)
    labels = labels[torch.randperm(200, generator=torch.Generator().manual_seed(1))]
    chosen = balanced_subset(labels, limit, seed=3)
    assert len(chosen) == len(set(chosen.tolist())) == limit
    assert chosen.tolist() == sorted(chosen.tolist())
    # fill class after class, one sample at a time, as long as each has some left
    left, expected = torch.bincount(labels).tolist(), [0] * 4
    while sum(expected) < limit:
        for label in range(4):
            if left[label] and sum(expected) < limit:
                left[label] -= 1
                expected[label] += 1
    assert torch.bincount(labels[chosen], minlength=4).tolist() == expected


def test_balanced_subsets_are_seeded_and_nested():
    labels = torch.arange(1000) % 10
    few, many = balanced_subset(labels, 50, 5), balanced_subset(labels, 333, 5)
    assert torch.equal(few, balanced_subset(labels, 50, 5))
    assert not torch.equal(few, balanced_subset(labels, 50, 6))
    assert set(few.tolist()) < set(many.tolist())


@pytest.fixture
def toy(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    monkeypatch.setattr(datasets, "fetch", lambda name, cache_dir: tmp_path)


def test_limits_leave_the_constants_alone(toy):
    whole, part = load_dataset("mnist"), load_dataset("mnist", limit=11, test_limit=5)
    assert len(part.train_x) == len(part.train_y) == 11
    assert len(part.test_x) == len(part.test_y) == 5
    assert torch.equal(whole.mean, part.mean) and torch.equal(whole.std, part.std)
    assert part.name == "mnist"
    for image, label in zip(part.train_x, part.train_y, strict=True):
        same = (whole.train_x == image).flatten(1).all(1).nonzero().flatten()
        assert [int(whole.train_y[i]) for i in same] == [int(label)], "image and label together"
    assert len(load_dataset("mnist", limit=10**9).train_x) == 30


def test_reading_leaves_global_random_states_alone(toy):
    before = torch.get_rng_state(), pyrandom.getstate(), np.random.get_state()[1].copy()
    load_dataset("mnist", limit=11)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == pyrandom.getstate()
    assert np.array_equal(before[2], np.random.get_state()[1])


def test_bad_requests(toy):
    for key in ("limit", "test_limit", "steps", "words"):
        with pytest.raises(ValueError, match=f"mnist: {key} must be at least 1, not 0"):
            load_dataset("mnist", **{key: 0})
    with pytest.raises(ValueError, match="no reader for data set 'other'"):
        load_dataset("other")


# --- text ----------------------------------------------------------------------------------------


def write_text(folder, train=" a b a \n c a b \n", valid=" a c \n", test=" b \n b \n"):
    for split, text in (("train", train), ("valid", valid), ("test", test)):
        (folder / f"ptb.{split}.txt").write_text(text)


def test_text_worked_example(tmp_path):
    write_text(tmp_path)
    corpus = read_penn_treebank(tmp_path)
    # a 3 times; <eos> and b twice, '<' before 'b'; c once
    assert corpus.words == ("a", "<eos>", "b", "c")
    assert corpus.train.tolist() == [0, 2, 0, 1, 3, 0, 2, 1]
    assert corpus.valid.tolist() == [0, 3, 1]
    assert corpus.test.tolist() == [2, 1, 2, 1]


def test_text_with_a_new_word_is_refused(tmp_path):
    write_text(tmp_path, test=" z \n")
    with pytest.raises(ValueError, match=r"test has words that train lacks: \['z'\]"):
        read_penn_treebank(tmp_path)


@pytest.mark.parametrize(
    ("train", "words", "names", "tokens"),
    [
        # a 3 times, <eos> and b twice, c once; the rare ones become <unk>, which comes last.
        (" a b a \n c a b \n", 3, ("a", "<eos>", "<unk>"), [0, 2, 0, 1, 2, 0, 2, 1]),
        (" a b a \n c a b \n", 1, ("<unk>",), [0] * 8),
        # <unk> is a word of the text already, and does not count among the frequent ones.
        (" <unk> a <unk> \n c a \n", 3, ("<eos>", "a", "<unk>"), [2, 1, 2, 0, 2, 1, 0]),
    ],
)
def test_fewer_words(tmp_path, train, words, names, tokens):
    write_text(tmp_path, train=train, valid=" a a \n", test=" a c \n")
    corpus = fewer_words(read_penn_treebank(tmp_path), words)
    assert corpus.words == names
    assert corpus.train.tolist() == tokens
    assert int(corpus.test.max()) < words


def test_windows_of_fewer_words(tmp_path):
    write_text(tmp_path)
    assert read_windows(tmp_path, steps=2, words=3).n_classes == 3
    assert read_windows(tmp_path, steps=2, words=9).n_classes == 4


def test_windows_predict_the_next_token():
    x, y = windows(torch.arange(11), 3)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert torch.equal(y, x + 1)
    assert [len(windows(torch.arange(n), 3)[0]) for n in (4, 6, 7)] == [1, 1, 2]
    with pytest.raises(ValueError, match="3 tokens are too few for one window of 3"):
        windows(torch.arange(3), 3)


def test_text_as_a_data_set(tmp_path, monkeypatch):
    write_text(tmp_path)
    monkeypatch.setattr(datasets, "fetch", lambda name, cache_dir: tmp_path)
    data = load_dataset("penn_treebank", steps=2, limit=2)
    assert data.train_x.tolist() == [[0, 2], [0, 1]] and data.train_y.tolist() == [[2, 0], [1, 3]]
    assert (data.n_classes, data.shape, data.mean) == (4, (2,), None)
    assert data.prepare(data.train_x) is data.train_x


# --- image folders -------------------------------------------------------------------------------


@pytest.fixture
def image_folder(tmp_path):
    """Three classes of one colour each, in several shapes and both formats."""
    image = pytest.importorskip("PIL.Image")
    colours = {"n01": (200, 10, 20), "n02": (30, 210, 40), "n03": (50, 60, 220)}
    for split, n in (("train", 4), ("val", 2)):
        for name, colour in colours.items():
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            (folder / "notes.txt").write_text("not an image")
            for i in range(n):
                size, suffix = [((40, 30), "png"), ((20, 64), "JPEG")][i % 2]
                image.new("RGB", size, colour).save(folder / f"{i}.{suffix}")
    return tmp_path, colours


def test_imagenet_reader(image_folder):
    folder, colours = image_folder
    data = read_imagenet(folder, size=16)
    assert isinstance(data.train_x, ImageFiles)
    assert data.train_x.shape == (12, 3, 16, 16) and data.test_x.shape == (6, 3, 16, 16)
    assert data.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    images = data.train_x[torch.tensor([11, 0, 5])]
    assert images.shape == (3, 3, 16, 16) and images.dtype == torch.uint8
    for image, name in zip(images, ("n03", "n01", "n02"), strict=True):
        seen = image.float().mean((1, 2))
        assert (seen - torch.tensor(colours[name]).float()).abs().max() < 4  # jpeg is lossy
    mean = torch.tensor(list(colours.values())).float().mean(0) / 255
    assert (data.mean - mean).abs().max() < 0.02
    assert data.train_x[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 16, 16)


def test_imagenet_is_decoded_when_indexed_only(image_folder, monkeypatch):
    folder, _ = image_folder
    monkeypatch.setattr(datasets, "fetch", lambda name, cache_dir: folder)
    decoded, decode = [], ImageFiles._decode
    monkeypatch.setattr(
        ImageFiles, "_decode", lambda self, path: decoded.append(path) or decode(self, path)
    )
    data = load_dataset("imagenet", limit=6, test_limit=3)
    decoded.clear()
    assert data.train_y.tolist() == [0, 0, 1, 1, 2, 2] and data.test_y.tolist() == [0, 1, 2]
    assert decoded == []
    assert data.train_x[torch.tensor([2])].shape == (1, 3, 224, 224)
    assert [path.parent.name for path in decoded] == ["n02"]


def test_image_is_resized_then_cut_from_its_centre(tmp_path):
    image = pytest.importorskip("PIL.Image")
    # 112 x 64: 32 black columns, 48 white ones, 32 black; 64 = 56 * 8 / 7, so nothing is resized
    pixels = np.zeros((64, 112, 3), np.uint8)
    pixels[:, 32:80] = 255
    image.fromarray(pixels).save(tmp_path / "x.png")
    seen = ImageFiles([tmp_path / "x.png"], size=56)[torch.tensor([0])][0, 0]
    assert seen.shape == (56, 56)
    assert torch.equal(seen, torch.from_numpy(pixels[4:60, 28:84, 0].copy()))


def test_imagenet_refuses(image_folder):
    folder, _ = image_folder
    broken = folder / "train/n02/0.png"
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="train/n02/0.png: not a readable image"):
        read_imagenet(folder, size=16)
    for path in (folder / "val/n03").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="val/n03: no images"):
        read_imagenet(folder, size=16)
    (folder / "val/n03").rmdir()
    with pytest.raises(ValueError, match=r"same class folders; differ in \['n03'\]"):
        read_imagenet(folder, size=16)


# --- the real sets -------------------------------------------------------------------------------


def real(name: str, **options):
    try:
        return load_dataset(name, **options)
    except DataUnavailable as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "sizes", "mean", "std"),
    [
        ("mnist", (1, 28, 28), (60_000, 10_000), [0.1307], [0.3081]),
        ("fashion_mnist", (1, 28, 28), (60_000, 10_000), [0.2860], [0.3530]),
        (
            "cifar10",
            (3, 32, 32),
            (50_000, 10_000),
            [0.4914, 0.4822, 0.4465],
            [0.2470, 0.2435, 0.2616],
        ),
    ],
)
def test_real_images(name, shape, sizes, mean, std):
    data = real(name)
    assert data.train_x.shape == (sizes[0], *shape) and data.test_x.shape == (sizes[1], *shape)
    assert data.train_y.shape == (sizes[0],) and data.test_y.shape == (sizes[1],)
    # the constants that the field uses, to the digits it prints
    assert [round(v, 4) for v in data.mean.tolist()] == mean
    assert [round(v, 4) for v in data.std.tolist()] == std
    counts = torch.bincount(data.train_y).tolist()
    if name == "mnist":
        assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert data.train_y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    else:
        assert counts == [sizes[0] // 10] * 10
        assert torch.bincount(data.test_y).tolist() == [1000] * 10
    # standardised, every channel has mean 0 and variance 1
    moments = torch.zeros(2, shape[0], dtype=torch.float64)
    for chunk in data.train_x.split(5_000):
        prepared = data.prepare(chunk)
        for power, total in enumerate(moments, start=1):
            total += (prepared**power).sum((0, 2, 3), dtype=torch.float64)
    moments /= data.train_x[:, 0].numel()
    torch.testing.assert_close(moments[0], torch.zeros_like(moments[0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(moments[1], torch.ones_like(moments[1]), atol=1e-5, rtol=0)


def test_real_text():
    data = real("penn_treebank")
    assert data.n_classes == 10_000
    corpus = read_penn_treebank(datasets.fetch("penn_treebank"))
    assert [len(corpus.train), len(corpus.valid), len(corpus.test)] == [929_589, 73_760, 82_430]
    assert corpus.words[:2] == ("the", "<unk>")
    assert corpus.train.bincount().tolist() == sorted(corpus.train.bincount().tolist())[::-1]
    assert data.train_x.shape == ((929_589 - 1) // 35, 35)
    assert torch.equal(data.train_x[:, 1:], data.train_y[:, :-1])


def test_validation_images_are_none_of_training_and_of_every_class():
    labels = torch.arange(100) % 10
    images = torch.arange(100, dtype=torch.uint8).view(100, 1, 1, 1)
    whole = Dataset("made", images, labels, images[:7], labels[:7], 10, (1, 1, 1))
    train, judged = held_out(whole, 30)
    assert train.test_x is whole.test_x and judged.train_x is train.train_x
    kept, out = (one.flatten().tolist() for one in (train.train_x, judged.test_x))
    assert sorted(kept + out) == list(range(100)) and len(out) == 30
    assert torch.equal(judged.test_y, labels[out])
    assert torch.bincount(judged.test_y).tolist() == [3] * 10
    assert torch.equal(held_out(whole, 30)[1].test_x, judged.test_x)
    with pytest.raises(ValueError, match="100 images of made held out leave none of 100"):
        held_out(whole, 100)
