"""Readers: from the checked files of a data set to tensors.

Images stay uint8 until a batch is prepared, so that a worker holds a quarter of the bytes. What
standardises them is computed from the training images, never typed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slowlink.testbed.cache import cached, state
from slowlink.testbed.training.augmentation import standardise
from slowlink.testbed.training.fetch import fetch

UNKNOWN = "<unk>"
IMAGE_SUFFIXES = {".jpeg", ".jpg", ".png"}


@dataclass(frozen=True)
class Dataset:
    """A data set in memory (or, for ImageNet, in files that are decoded when they are indexed).

    Attributes
    ----------
    train_x, test_x: images (n, channels, height, width) uint8, or windows (n, steps) of tokens.
    train_y, test_y: classes (n,) int64, or for text the next token at each step (n, steps) int64.
    n_classes: number of classes or of words.
    shape: shape of one sample.
    mean, std: (channels,) float32 of the whole training set scaled to [0, 1]; None for text.
    """

    name: str
    train_x: Tensor | ImageFiles
    train_y: Tensor
    test_x: Tensor | ImageFiles
    test_y: Tensor
    n_classes: int
    shape: tuple[int, ...]
    mean: Tensor | None = None
    std: Tensor | None = None

    def prepare(self, samples: Tensor) -> Tensor:
        """The input of a model: standardised float32 images; tokens stay as they are."""
        if self.mean is None or self.std is None:
            return samples
        return standardise(samples, self.mean, self.std)


def load_dataset(
    name: str,
    cache_dir: str | Path | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    seed: int = 0,
    steps: int = 35,
    words: int | None = None,
) -> Dataset:
    """Fetch and read a data set.

    Parameters
    ----------
    name: one of ``data/sources.yaml``.
    cache_dir: see :func:`testbed.training.fetch.obtain`.
    limit, test_limit: at most so many samples of either split, all if None. Images are drawn from
        every class as evenly as possible, the same ones for the same seed, and a smaller limit
        draws a subset of what a larger one draws; of text it is the first windows.
    steps: tokens a window of text.
    words: size of the vocabulary of text; all others than the most frequent become ``<unk>``.

    Raises
    ------
    ValueError
        Unknown name, a limit below 1, or files that are not what they should be.
    DataUnavailable
        The files could not be found or fetched.
    """
    for key, value in {
        "limit": limit,
        "test_limit": test_limit,
        "steps": steps,
        "words": words,
    }.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}: {key} must be at least 1, not {value}")
    directory = fetch(name, cache_dir)
    readers: dict[str, Callable[[Path], Dataset]] = {
        "mnist": read_mnist,
        "fashion_mnist": read_mnist,
        "cifar10": read_cifar10,
        "imagenet": read_imagenet,
        "penn_treebank": partial(read_windows, steps=steps, words=words),
    }
    if name not in readers:
        raise ValueError(f"no reader for data set {name!r}; there are: {', '.join(readers)}")
    dataset = readers[name](directory)
    train_x, train_y = _limited(dataset.train_x, dataset.train_y, limit, seed)
    test_x, test_y = _limited(dataset.test_x, dataset.test_y, test_limit, seed)
    return replace(
        dataset, name=name, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y
    )


def _limited(
    samples: Tensor | ImageFiles, labels: Tensor, limit: int | None, seed: int
) -> tuple[Tensor | ImageFiles, Tensor]:
    if limit is None or limit >= len(labels):
        return samples, labels
    if labels.ndim > 1:
        return samples[:limit], labels[:limit]
    chosen = balanced_subset(labels, limit, seed)
    kept = samples.subset(chosen) if isinstance(samples, ImageFiles) else samples[chosen]
    return kept, labels[chosen]


def balanced_subset(labels: Tensor, limit: int, seed: int = 0) -> Tensor:
    """Indices, ascending, of ``limit`` samples drawn from all classes as evenly as possible.

    No class gives two samples more than another unless the other has none left.
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    grouped = shuffled[torch.argsort(labels[shuffled], stable=True)]
    counts = torch.bincount(labels)
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(labels)) - first[labels[grouped]]
    # everyone's first sample, then everyone's second, and so on
    return grouped[torch.argsort(rank, stable=True)[:limit]].sort().values


def held_out(dataset: Dataset, count: int, seed: int = 0) -> tuple[Dataset, Dataset]:
    """The data set without ``count`` of its training images, and the same with these to test on.

    They are drawn from every class as evenly as possible, the same ones for the same seed. Images
    are standardised by all training images as before.

    Raises
    ------
    ValueError
        The data set is text, or no image would be left to train on.
    """
    if dataset.train_y.ndim > 1:
        raise ValueError(f"validation: {dataset.name} is text, only images are held out")
    if count >= len(dataset.train_y):
        raise ValueError(
            f"validation: {count} images of {dataset.name} held out leave none of "
            f"{len(dataset.train_y)} to train on"
        )
    out = balanced_subset(dataset.train_y, count, seed)
    kept = torch.ones(len(dataset.train_y), dtype=torch.bool).index_fill(0, out, False)

    def images(which: Tensor) -> Tensor | ImageFiles:
        one = dataset.train_x
        return one.subset(which) if isinstance(one, ImageFiles) else one[which]

    left = kept.nonzero().flatten()
    train = replace(dataset, train_x=images(left), train_y=dataset.train_y[left])
    return train, replace(train, test_x=images(out), test_y=dataset.train_y[out])


# --- images --------------------------------------------------------------------------------------


def read_idx(path: str | Path) -> Tensor:
    """Read an idx file of unsigned bytes: magic 00 00 08 ndim, big-endian sizes, values.

    Source: the MNIST homepage, "File formats for the MNIST database".

    Raises
    ------
    ValueError
        Not such a file, or shorter or longer than its header says.
    """
    content = _bytes(path)
    if len(content) < 4 or bytes(content[:3]) != b"\x00\x00\x08":
        raise ValueError(
            f"{path}: not an idx file of unsigned bytes (magic {content[:4].tobytes()!r})"
        )
    ndim = int(content[3])
    start = 4 + 4 * ndim
    if ndim == 0 or len(content) < start:
        raise ValueError(f"{path}: idx header is cut off or names no dimension")
    shape = tuple(int(size) for size in content[4:start].view(">u4"))
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise ValueError(f"{path}: {len(content)} bytes, but header {shape} asks for {expected}")
    return torch.from_numpy(content[start:].reshape(shape))


def _bytes(path: str | Path) -> np.ndarray:
    """A file's bytes, read where they are looked at: few of the images may be wanted."""
    if Path(path).stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, mode="c"))


def read_mnist(directory: Path) -> Dataset:
    """Read MNIST or Fashion-MNIST from its four idx files."""
    tensors = []
    for split in ("train", "t10k"):
        images = read_idx(directory / f"{split}-images-idx3-ubyte")
        labels = read_idx(directory / f"{split}-labels-idx1-ubyte")
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise ValueError(
                f"{directory}: {split} has images {tuple(images.shape)} "
                f"and labels {tuple(labels.shape)}"
            )
        tensors += [images[:, None], _checked(labels, 10, directory)]
    return _images([directory / "train-images-idx3-ubyte"], *tensors)


def read_cifar10(directory: Path) -> Dataset:
    """Read CIFAR-10's binary version: records of 1 label byte and 3x32x32 pixel bytes.

    Source: the CIFAR-10 homepage, "Binary version".
    """
    batches = [directory / f"data_batch_{i}.bin" for i in range(1, 6)]
    train = _cifar_records(batches)
    test = _cifar_records([directory / "test_batch.bin"])
    return _images(batches, *train, *test)


def _cifar_records(paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    parts = []
    for path in paths:
        content = _bytes(path)
        if len(content) == 0 or len(content) % 3073:
            raise ValueError(
                f"{path}: {len(content)} bytes are no whole number of 3,073-byte records"
            )
        parts.append(content.reshape(-1, 3073))
    records = np.concatenate(parts)
    labels = _checked(torch.from_numpy(records[:, 0].copy()), 10, paths[0].parent)
    # A view, for few of the images may be wanted: their labels lie between them.
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)), labels


def _checked(labels: Tensor, n_classes: int, directory: Path) -> Tensor:
    if len(labels) and int(labels.max()) >= n_classes:
        raise ValueError(f"{directory}: label {int(labels.max())}, there are {n_classes} classes")
    return labels.long()


def _images(
    files: Sequence[Path], train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor
) -> Dataset:
    """Images of ten classes; ``files`` hold those to train on."""
    key = f"channel statistics of {state(*files)}"
    mean, std = cached(key, lambda: [one.tolist() for one in channel_statistics(train_x)])
    return Dataset(
        name=files[0].parent.name,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        n_classes=10,
        shape=tuple(train_x.shape[1:]),
        mean=torch.tensor(mean),
        std=torch.tensor(std),
    )


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 ``images`` scaled to [0, 1].

    Exact up to the last rounding: computed from a histogram, over all pixels of all images.
    """
    histograms = torch.stack(
        [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    ).double()
    share = histograms / histograms.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ values
    variance = (share * (values - mean[:, None]) ** 2).sum(1)
    return mean.float(), variance.sqrt().float()


class ImageFiles:
    """Image files that act like a (n, 3, size, size) uint8 tensor, decoded when indexed.

    An image is resized so that its shorter side is 8/7 of ``size`` (256 for 224), then the centre
    is taken.
    """

    def __init__(self, paths: Sequence[Path], size: int = 224) -> None:
        self.paths, self.size = list(paths), size

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), 3, self.size, self.size)

    def subset(self, indices: Tensor) -> ImageFiles:
        """The images at ``indices``, still undecoded."""
        return ImageFiles([self.paths[index] for index in indices.tolist()], self.size)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Decode the images at a 1-D tensor of indices: (len(indices), 3, size, size) uint8."""
        if len(indices) == 0:
            return torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)
        return torch.stack([self._decode(self.paths[index]) for index in indices.tolist()])

    def _decode(self, path: Path) -> Tensor:
        from PIL import Image  # comes with torchvision; only image folders need it

        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{path}: not a readable image ({error})") from error
        scale = self.size * 8 / 7 / min(image.size)
        width, height = (max(self.size, round(side * scale)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        image = image.crop((left, top, left + self.size, top + self.size))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def read_imagenet(directory: Path, size: int = 224) -> Dataset:
    """Read a folder of classes: ``train/<class>/*`` and ``val/<class>/*`` (the test split).

    Classes are numbered in the alphabetical order of their folders, as ILSVRC2012's are. Mean and
    std are those of at most 1,000 training images, evenly spaced through all of them.

    Raises
    ------
    ValueError
        No classes, classes without images, or classes that differ between the splits.
    """
    classes = sorted(folder.name for folder in (directory / "train").iterdir() if folder.is_dir())
    held_out = sorted(folder.name for folder in (directory / "val").iterdir() if folder.is_dir())
    if not classes or classes != held_out:
        odd = sorted(set(classes) ^ set(held_out))
        raise ValueError(f"{directory}: train and val need the same class folders; differ in {odd}")
    train_x, train_y = _image_folder(directory / "train", classes, size)
    test_x, test_y = _image_folder(directory / "val", classes, size)
    spaced = torch.linspace(0, len(train_x) - 1, min(1000, len(train_x))).round().long()
    mean, std = channel_statistics(train_x[spaced])
    return Dataset(
        directory.name, train_x, train_y, test_x, test_y, len(classes), (3, size, size), mean, std
    )


def _image_folder(root: Path, classes: Sequence[str], size: int) -> tuple[ImageFiles, Tensor]:
    paths, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(p for p in (root / name).iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        if not found:
            raise ValueError(f"{root / name}: no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
        paths += found
        labels += [label] * len(found)
    return ImageFiles(paths, size), torch.tensor(labels)


# --- text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """A text as word numbers: (n,) int64 for each split, and the word of each number."""

    train: Tensor
    valid: Tensor
    test: Tensor
    words: tuple[str, ...]


def read_penn_treebank(directory: Path) -> Corpus:
    """Read the three texts [@mikolov2010recurrent]; every line ends with the word ``<eos>``.

    The vocabulary is that of the training text, most frequent word first, ties alphabetical.

    Raises
    ------
    ValueError
        A word that the training text does not have.
    """
    texts = {}
    for split in ("train", "valid", "test"):
        lines = (directory / f"ptb.{split}.txt").read_text(encoding="utf-8").splitlines()
        texts[split] = [word for line in lines for word in (*line.split(), "<eos>")]
    counts = Counter(texts["train"])
    words = tuple(sorted(counts, key=lambda word: (-counts[word], word)))
    number = {word: index for index, word in enumerate(words)}
    for split, text in texts.items():
        unknown = set(text) - number.keys()
        if unknown:
            raise ValueError(
                f"{directory}: {split} has words that train lacks: {sorted(unknown)[:5]}"
            )
    tokens = {split: torch.tensor([number[w] for w in text]) for split, text in texts.items()}
    return Corpus(**tokens, words=words)


def fewer_words(corpus: Corpus, words: int) -> Corpus:
    """The corpus with a vocabulary of ``words``: the most frequent, and ``<unk>``, the last one."""
    others = [number for number, word in enumerate(corpus.words) if word != UNKNOWN]
    kept = torch.tensor(others[: words - 1], dtype=torch.int64)
    number = torch.full((len(corpus.words),), len(kept))
    number[kept] = torch.arange(len(kept))
    names = tuple(corpus.words[old] for old in kept.tolist()) + (UNKNOWN,)
    splits = (number[tokens] for tokens in (corpus.train, corpus.valid, corpus.test))
    return Corpus(*splits, words=names)


def windows(tokens: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Cut (n,) tokens into consecutive (k, steps) inputs and the (k, steps) tokens that follow.

    ``k = (n - 1) // steps``; what remains at the end is left out.
    """
    k = (len(tokens) - 1) // steps
    if k < 1:
        raise ValueError(f"{len(tokens)} tokens are too few for one window of {steps}")
    return tokens[: k * steps].view(k, steps), tokens[1 : k * steps + 1].view(k, steps)


def read_windows(directory: Path, steps: int = 35, words: int | None = None) -> Dataset:
    """Penn Treebank as windows of ``steps`` tokens with the next token at each step to predict."""
    corpus = read_penn_treebank(directory)
    if words is not None and words < len(corpus.words):
        corpus = fewer_words(corpus, words)
    train, test = windows(corpus.train, steps), windows(corpus.test, steps)
    return Dataset(directory.name, *train, *test, len(corpus.words), (steps,))
