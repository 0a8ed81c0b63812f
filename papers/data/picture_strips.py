"""CIFAR-10 in strips: lossless WebP pictures that hold many images one under another, with the labels in a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.engine.data.columns import fault
from dpaudit.engine.data.files import PublishedParts, existing, find, reading
from dpaudit.engine.data.images import CLASSES, Cifar10
from dpaudit.mechanisms.examples import Examples

SIDE = 32


@dataclass(frozen=True)
class Cifar10Strips(PublishedParts):
    """CIFAR-10's images (n, 3, 32, 32) in [0, 1] from strips 32 pixels wide, `train/*.webp` and `test/*.webp`.

    Attributes:
        path: The folder of `train`, `test`, `train_labels.csv` and `test_labels.csv` (plain, .gz or .xz). A table has a
            column `label`, 0 to 9, with the rows in the order of the strips' names and of the images in a strip.
    """

    parts: ClassVar[Any] = {"train": ("train_labels.csv",), "test": ("test_labels.csv",)}

    def load(self, *, seed: int = 0) -> Examples:
        """Return the images in the order of the table; `seed` is not used.

        Raises: DataError that names the file and its fault.
        """
        folder = existing(self.path)
        if not folder.is_dir():
            raise fault(folder, "must be the folder of the strips, got a file", do=f"give {folder.parent}")
        table = find(folder, *self.parts[self.part])
        labels = _labels(table)
        wanted = len(labels) if self.rows is None else min(self.rows, len(labels))
        strips = sorted((folder / self.part).glob("*.webp"))
        images = _images(strips, wanted)
        if len(images) < wanted or (self.rows is None and len(images) > wanted):
            problem = f"must have one label for each image of {self.part}/*.webp, has {len(labels):,}"
            raise fault(table, f"{problem} for {len(images):,} images", do="take both from one place")
        planes = np.ascontiguousarray(images[:wanted].transpose(0, 3, 1, 2))  # else training copies them at every step
        pixels = planes.astype(np.float32) / np.float32(255)
        return Examples(pixels, np.array(labels[:wanted], np.int64), 10, "cifar-10", class_names=CLASSES)


def cifar10(folder: Path, *, part: str = "train", rows: int | None = None) -> Cifar10 | Cifar10Strips:
    """Return CIFAR-10 in a folder, as strips where it holds any, else as the official binary batches."""
    kind = Cifar10Strips if any(folder.glob("*/*.webp")) else Cifar10
    return kind(str(folder), part=part, rows=rows)


def _labels(table: Path) -> list[int]:
    with reading(table) as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")))
    if not rows:
        raise fault(table, "has no rows")
    labels = []
    for number, row in enumerate(rows, start=1):
        text = row.get("label") or ""
        if text not in _DIGITS:
            raise fault(table, f"must be a label from 0 to 9, got {text!r}", row=number, column="label")
        labels.append(int(text))
    return labels


_DIGITS = tuple("0123456789")


def _images(strips: Sequence[Path], wanted: int) -> NDArray[np.uint8]:
    """Return the images of the first strips, at least `wanted` where there are that many; shape (n, 32, 32, 3)."""
    pieces = [np.zeros((0, SIDE, SIDE, 3), np.uint8)]
    while sum(map(len, pieces)) < wanted and len(pieces) <= len(strips):
        pieces.append(_strip(strips[len(pieces) - 1]))
    return np.concatenate(pieces)


def _strip(path: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError, features

    if not features.check("webp"):
        raise fault(path, "cannot be read: this Pillow has no WebP", do="install Pillow from PyPI")
    try:
        with Image.open(path, formats=["WEBP"]) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError) as err:
        raise fault(path, f"is not a whole WebP picture ({err})", do="fetch it again") from err
    if pixels.shape[1] != SIDE or pixels.shape[0] % SIDE:
        high, wide = pixels.shape[:2]
        raise fault(path, f"must be {SIDE} pixels wide and a multiple of {SIDE} high, is {wide} x {high}")
    return pixels.reshape(-1, SIDE, SIDE, 3)
