"""Texts on which a language model is fine-tuned, as rows of data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.errors import require


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, one row each.

    Attributes:
        texts: The texts; none is empty.
        name: Name of the data, for reports.
    """

    texts: tuple[str, ...]
    name: str = "texts"

    def __post_init__(self) -> None:
        require(all(self.texts), "every text must have at least one character", do="remove empty texts")

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: ArrayLike) -> Texts:
        """Return the texts selected by integer positions (in that order) or by a boolean mask."""
        where = np.asarray(rows)
        where = np.flatnonzero(where) if where.dtype == np.bool_ else where
        return replace(self, texts=tuple(self.texts[place] for place in where.tolist()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the texts, part of every unit's key."""
        hasher = hashlib.sha256()
        for text in self.texts:
            content = text.encode(errors="surrogatepass")
            hasher.update(len(content).to_bytes(8, "little") + content)
        return hasher.hexdigest()
