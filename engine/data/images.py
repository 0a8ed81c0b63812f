"""Published images: MNIST and Fashion-MNIST in their idx files, CIFAR-10 in its official binary batches."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.data.columns import fault
from dpaudit.engine.data.files import COMPRESSIONS, PublishedParts, existing, find, reading
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

CHUNK_BYTES = 64 << 20
IMAGES, LABELS = 0x803, 0x801  # unsigned bytes in 3 and in 1 dimensions
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataclass(frozen=True)
class IdxImages(PublishedParts):
    """Base of both idx data sets: images of ten classes.

    Attributes:
        path: The folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` or the t10k pair.
        part: "train" or "t10k" (the official test part).
        rows: Largest number of images, from the start; None for all.
    """

    parts: ClassVar[Any] = {
        part: (f"{part}-images-idx3-ubyte", f"{part}-images.idx3-ubyte") for part in ("train", "t10k")
    }
    title: ClassVar[str]
    class_names: ClassVar[tuple[str, ...]]

    def load(self, *, seed: int = 0) -> Examples:
        """Return the images in the order of the file; `seed` is not used.

        Raises: DataError that names the file and its fault.
        """
        folder = existing(self.path)
        if not folder.is_dir():
            raise fault(folder, "must be the folder of the idx files, got a file", do=f"set `path` to {folder.parent}")
        image_file = self.file()
        label_file = find(folder, f"{self.part}-labels-idx1-ubyte", f"{self.part}-labels.idx1-ubyte")
        labels, promised_labels = read_idx(label_file, LABELS, rows=self.rows)
        images, promised = read_idx(image_file, IMAGES, rows=self.rows)
        if promised != promised_labels:
            problem = f"must have one label for each of the {promised:,} images, has {promised_labels:,}"
            raise fault(label_file, problem, do="take both files from one place")
        if not promised:
            raise fault(image_file, "has no rows")
        if labels.max() > 9:
            row = int((labels > 9).argmax())
            raise fault(label_file, f"labels must be in 0..9, got {labels[row]}", row=row + 1)
        pixels = images[:, None].astype(np.float32) / np.float32(255)
        return Examples(pixels, labels.astype(np.int64), 10, self.title, class_names=self.class_names)


@register("data", "mnist", source="LeCun, Cortes, Burges (1998)")
@dataclass(frozen=True)
class Mnist(IdxImages):
    """Handwritten digits, images (n, 1, 28, 28) in [0, 1] from idx files, plain, .gz or .xz."""

    title: ClassVar[str] = "mnist"
    class_names: ClassVar[tuple[str, ...]] = tuple(map(str, range(10)))


@register("data", "fashion-mnist", source="Xiao, Rasul, Vollgraf (2017)")
@dataclass(frozen=True)
class FashionMnist(IdxImages):
    """Images of clothes, shape (n, 1, 28, 28) in [0, 1] from idx files, plain, .gz or .xz."""

    title: ClassVar[str] = "fashion-mnist"
    class_names: ClassVar[tuple[str, ...]] = CLOTHES


def read_idx(path: Path, magic: int, *, rows: int | None = None) -> tuple[NDArray[np.uint8], int]:
    """Return the first `rows` items of an idx file of unsigned bytes, and the number of items in its header."""
    dimensions = magic & 0xFF
    with reading(path) as file:
        head = file.read(4 + 4 * dimensions)
        file_magic = int.from_bytes(head[:4], "big")
        if len(head) >= 4 and file_magic != magic:
            raise fault(path, f"must begin with the idx magic number 0x{magic:08x}, begins with 0x{file_magic:08x}")
        if len(head) < 4 + 4 * dimensions:
            raise fault(path, f"ends inside its header, after {len(head)} bytes", do="fetch it again")
        promised, *shape = struct.unpack(f">{dimensions}I", head[4:])
        wanted = promised if rows is None else min(rows, promised)
        item = math.prod(shape)
        if not item:
            raise fault(path, f"must hold items of at least 1 byte, its header says {shape}", do="fetch it again")
        data = _read_at_most(file, wanted * item)
        if len(data) < wanted * item:
            problem = f"must hold {promised:,} items of {item:,} bytes, ends in item {len(data) // item + 1:,}"
            raise fault(path, problem, do="fetch it again")
        if wanted == promised and file.read(1):
            raise fault(path, f"must end after {promised:,} items of {item:,} bytes, goes on", do="fetch it again")
    return np.frombuffer(data, np.uint8).reshape(wanted, *shape), promised


RECORD = 1 + 3 * 32 * 32  # the label, then a red, a green and a blue plane
ARCHIVE = "the binary version, cifar-10-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@register("data", "cifar-10", source="Krizhevsky (2009)")
@dataclass(frozen=True)
class Cifar10(PublishedParts):
    """Small colour images (n, 3, 32, 32) in [0, 1] from the batches of the binary version, plain, .gz or .xz.

    Attributes:
        path: The folder with `data_batch_1.bin`, ... (or its parent), or one batch.
        part: "train" (all data batches in the folder) or "test"; ignored if the path is a file.
        rows: Largest number of images, from the start; None for all.
    """

    parts: ClassVar[Any] = {
        "train": tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
        "test": ("test_batch.bin",),
    }

    def load(self, *, seed: int = 0) -> Examples:
        """Return the images in the order of the batches; `seed` is not used.

        Raises: DataError that names the file and its fault.
        """
        parts: list[NDArray[np.uint8]] = []
        rows_left = self.rows
        for path in self._batches(existing(self.path)):
            if rows_left == 0:
                break
            parts.append(_records(path, rows_left))
            rows_left = None if rows_left is None else rows_left - len(parts[-1])
        records = np.concatenate(parts)
        images = records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)
        return Examples(images, records[:, 0].astype(np.int64), 10, "cifar-10", class_names=CLASSES)

    def _batches(self, path: Path) -> list[Path]:
        if path.is_file():
            return [path]
        inner = path / "cifar-10-batches-bin"
        folder = inner if inner.is_dir() else path
        if (folder / "data_batch_1").is_file():
            raise fault(folder, "holds the Python version of CIFAR-10", do=f"fetch {ARCHIVE}")
        first, *others = self.parts[self.part]
        more = [folder / (name + compression) for name in others for compression in COMPRESSIONS]
        return [find(folder, first), *(batch for batch in more if batch.is_file())]


def _records(path: Path, rows: int | None) -> NDArray[np.uint8]:
    """Return at most `rows` records of one batch, shape (n, 3073)."""
    with reading(path) as file:
        data = file.read() if rows is None else _read_at_most(file, rows * RECORD)
    count, rest = divmod(len(data), RECORD)
    if rest or not count:
        problem = f"must hold whole records of {RECORD:,} bytes, got {count:,} records and {rest:,} bytes"
        raise fault(path, problem, do=f"fetch {ARCHIVE}, again")
    records = np.frombuffer(data, np.uint8).reshape(count, RECORD)
    odd = records[:, 0] > 9
    if odd.any():
        row = int(odd.argmax())
        raise fault(path, f"labels must be in 0..9, got {records[row, 0]}", row=row + 1, do="is it CIFAR-10's?")
    return records


def _read_at_most(file: BinaryIO, count: int) -> bytes:
    """Return the next `count` bytes, or fewer at the end of the file; in chunks, as headers may lie."""
    pieces: list[bytes] = []
    while count > 0 and (piece := file.read(min(count, CHUNK_BYTES))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
