"""CIFAR-10 in strips of images: read exactly, as the binary batches are, and errors name the file."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dpaudit.engine.data.images import Cifar10
from dpaudit.errors import DataError
from papers.data.picture_strips import Cifar10Strips, cifar10

SIDE = 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two strips of three images and one of two; labels 0 to 7."""
    write_strips(tmp_path / "train", pictures(8), (3, 3, 2))
    (tmp_path / "train_labels.csv.gz").write_bytes(gzip.compress(table(range(8)).encode()))
    return tmp_path


def pictures(count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


def table(labels: range) -> str:
    return "index,label,class\n" + "".join(f"{place},{label},x\n" for place, label in enumerate(labels))


def write_strips(folder: Path, images: NDArray[np.uint8], heights: tuple[int, ...]) -> None:
    folder.mkdir()
    for number, strip in enumerate(np.split(images, np.cumsum(heights)[:-1])):
        Image.fromarray(strip.reshape(-1, SIDE, 3)).save(folder / f"{number:03}.webp", lossless=True)


def test_strips_and_batches_are_the_same_images(folder: Path) -> None:
    strips = cifar10(folder)
    assert isinstance(strips, Cifar10Strips)
    examples = strips.load()
    planes = pictures(8).transpose(0, 3, 1, 2).reshape(8, -1)
    (folder / "batches").mkdir()
    np.column_stack([np.arange(8, dtype=np.uint8), planes]).tofile(folder / "batches" / "data_batch_1.bin")
    batches = cifar10(folder / "batches")
    assert isinstance(batches, Cifar10)
    assert examples.digest == batches.load().digest
    assert np.asarray(examples.features).flags.c_contiguous
    few = cifar10(folder, rows=4).load()
    assert (few.labels.tolist(), few.class_names[3]) == ([0, 1, 2, 3], "cat")
    assert np.array_equal(few.features, np.asarray(examples.features)[:4])


def test_what_is_wrong_with_strips_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"must hold test_labels\.csv"):
        cifar10(folder, part="test").load()
    with pytest.raises(DataError, match="must be the folder of the strips, got a file"):
        Cifar10Strips(str(folder / "train_labels.csv.gz")).load()
    (folder / "train_labels.csv.gz").write_bytes(gzip.compress(table(range(9)).encode()))
    with pytest.raises(DataError, match=r"one label for each image of train/\*\.webp, has 9 for 8 images"):
        cifar10(folder).load()
    (folder / "train_labels.csv.gz").write_bytes(gzip.compress(table(range(3, 11)).encode()))
    with pytest.raises(DataError, match=r"row 8, column 'label': must be a label from 0 to 9, got '10'"):
        cifar10(folder).load()
    (folder / "train_labels.csv.gz").write_bytes(gzip.compress(table(range(8)).encode()))
    (folder / "train" / "002.webp").write_bytes(b"RIFF")
    with pytest.raises(DataError, match=r"002\.webp: is not a whole WebP picture"):
        cifar10(folder).load()
    Image.new("RGB", (SIDE, 40)).save(folder / "train" / "002.webp", lossless=True)
    with pytest.raises(DataError, match="must be 32 pixels wide and a multiple of 32 high, is 32 x 40"):
        cifar10(folder).load()


def test_strips_that_end_early_are_found(folder: Path) -> None:
    (folder / "train" / "002.webp").unlink()
    with pytest.raises(DataError, match="has 8 for 6 images"):
        cifar10(folder).load()
    assert len(cifar10(folder, rows=6).load()) == 6
