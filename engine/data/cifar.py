"""CIFAR-10 in its official binary batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.files import COMPRESSIONS, existing, fault, find, read_at_most, reading
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples
from dpaudit.registry import register

RECORD = 1 + 3 * 32 * 32  # the label, then a red, a green and a blue plane
BATCHES = {"train": tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)), "test": ("test_batch.bin",)}
ARCHIVE = "the binary version, cifar-10-binary.tar.gz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@register("data", "cifar-10", source="Krizhevsky (2009)")
@dataclass(frozen=True)
class Cifar10:
    """Small colour pictures, images (n, 3, 32, 32) in [0, 1] from the binary version's batches, plain, .gz or .xz.

    Attributes:
        path: The folder with `data_batch_1.bin`, ... (or its parent), or one batch.
        part: "train" (every data batch there is) or "test"; a path that is a file is read whatever the part.
        rows: At most this many images, from the start; all when None.
    """

    path: str = field(metadata=PATH)
    part: str = "train"
    rows: int | None = None

    def __post_init__(self) -> None:
        require(self.part in BATCHES, "part must be 'train' or 'test'", part=self.part)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def load(self, *, seed: int = 0) -> Examples:
        """The images in the order of the batches; `seed` is not used.

        Raises: DataError naming the file and what is wrong with it.
        """
        parts: list[NDArray[np.uint8]] = []
        left = self.rows
        for path in self._batches(existing(self.path)):
            if left == 0:
                break
            parts.append(_records(path, left))
            left = None if left is None else left - len(parts[-1])
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
        first, *others = BATCHES[self.part]
        more = [folder / (name + compression) for name in others for compression in COMPRESSIONS]
        return [find(folder, first), *(batch for batch in more if batch.is_file())]


def _records(path: Path, rows: int | None) -> NDArray[np.uint8]:
    """The records of one batch, shape (n, 3073), at most `rows` of them."""
    with reading(path) as file:
        data = file.read() if rows is None else read_at_most(file, rows * RECORD)
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
