"""MNIST and Fashion-MNIST in their idx files."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.files import existing, fault, find, read_at_most, reading
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

IMAGES, LABELS = 0x803, 0x801  # unsigned bytes in 3 and in 1 dimensions
PARTS = ("train", "t10k")
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class IdxImages:
    """What both data sets share: pictures of ten classes.

    Attributes:
        path: The folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` or the t10k pair.
        part: "train" or "t10k" (the official test part).
        rows: At most this many images, from the start; all when None.
    """

    path: str = field(metadata=PATH)
    part: str = "train"
    rows: int | None = None
    title: ClassVar[str]
    class_names: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        require(self.part in PARTS, "part must be 'train' or 't10k'", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def load(self, *, seed: int = 0) -> Examples:
        """The images in the order of the file; `seed` is not used.

        Raises: DataError naming the file and what is wrong with it.
        """
        return _load(self.path, self.part, self.rows, self.title, self.class_names)


@register("data", "mnist", source="LeCun, Cortes, Burges (1998)")
@dataclass(frozen=True)
class Mnist(IdxImages):
    """Handwritten digits, images (n, 1, 28, 28) in [0, 1] from idx files, plain, .gz or .xz."""

    title: ClassVar[str] = "mnist"
    class_names: ClassVar[tuple[str, ...]] = DIGITS


@register("data", "fashion-mnist", source="Xiao, Rasul, Vollgraf (2017)")
@dataclass(frozen=True)
class FashionMnist(IdxImages):
    """Pictures of clothes, images (n, 1, 28, 28) in [0, 1] from idx files, plain, .gz or .xz."""

    title: ClassVar[str] = "fashion-mnist"
    class_names: ClassVar[tuple[str, ...]] = CLOTHES


def read_idx(path: Path, magic: int, *, rows: int | None = None) -> tuple[NDArray[np.uint8], int]:
    """The first `rows` items of an idx file of unsigned bytes, and the number of items its header promises.

    Raises: DataError when the magic number is another one or the file is shorter or longer than its header says.
    """
    dimensions = magic & 0xFF
    with reading(path) as file:
        head = file.read(4 + 4 * dimensions)
        found = int.from_bytes(head[:4], "big")
        if len(head) >= 4 and found != magic:
            raise fault(path, f"must begin with the idx magic number 0x{magic:08x}, begins with 0x{found:08x}")
        if len(head) < 4 + 4 * dimensions:
            raise fault(path, f"ends inside its header, after {len(head)} bytes", do="fetch it again")
        promised, *shape = struct.unpack(f">{dimensions}I", head[4:])
        wanted = promised if rows is None else min(rows, promised)
        item = math.prod(shape)
        if not item:
            raise fault(path, f"must hold items of at least 1 byte, its header says {shape}", do="fetch it again")
        data = read_at_most(file, wanted * item)
        if len(data) < wanted * item:
            problem = f"must hold {promised:,} items of {item:,} bytes, ends in item {len(data) // item + 1:,}"
            raise fault(path, problem, do="fetch it again")
        if wanted == promised and file.read(1):
            raise fault(path, f"must end after {promised:,} items of {item:,} bytes, goes on", do="fetch it again")
    return np.frombuffer(data, np.uint8).reshape(wanted, *shape), promised


def _load(path: str, part: str, rows: int | None, name: str, class_names: tuple[str, ...]) -> Examples:
    folder = existing(path)
    if not folder.is_dir():
        raise fault(folder, "must be the folder of the idx files, got a file", do=f"set `path` to {folder.parent}")
    of_images = find(folder, f"{part}-images-idx3-ubyte", f"{part}-images.idx3-ubyte")
    of_labels = find(folder, f"{part}-labels-idx1-ubyte", f"{part}-labels.idx1-ubyte")
    labels, promised_labels = read_idx(of_labels, LABELS, rows=rows)
    images, promised = read_idx(of_images, IMAGES, rows=rows)
    if promised != promised_labels:
        problem = f"must have one label for each of the {promised:,} images, has {promised_labels:,}"
        raise fault(of_labels, problem, do="take both files from one place")
    if not promised:
        raise fault(of_images, "has no rows")
    if labels.max() > 9:
        row = int((labels > 9).argmax())
        raise fault(of_labels, f"labels must be in 0..9, got {labels[row]}", row=row + 1)
    pixels = images[:, None].astype(np.float32) / np.float32(255)
    return Examples(pixels, labels.astype(np.int64), 10, name, class_names=class_names)
