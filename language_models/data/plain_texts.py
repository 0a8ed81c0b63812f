"""Texts without labels: from files, or from the bundled grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpaudit.consent import PATH
from dpaudit.engine.data.columns import fault
from dpaudit.engine.data.files import existing_file
from dpaudit.engine.data.generated import require_size
from dpaudit.engine.data.table_files import read_parquet
from dpaudit.errors import require, shortened
from dpaudit.field_checks import check_fields
from dpaudit.language_models.mechanisms.base_models import made_sentences
from dpaudit.mechanisms.examples import Texts
from dpaudit.plain_files import read_bytes
from dpaudit.registry import register


@register("data", "texts", source="JSON lines; Apache Parquet; lines of text")
@dataclass(frozen=True)
class TextsFile:
    """Texts of a file, to fine-tune a language model on. Empty texts are left out.

    Attributes:
        path: The file. `.jsonl` and `.json`: one JSON object or string a line. `.parquet`: a table. Any other name: one
            text a line.
        column: Key of the objects or column of the table that holds the text.
        rows: Largest number of texts, from the start; None for all.
    """

    path: str = field(metadata=PATH)
    column: str = "text"
    rows: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.rows is None or self.rows >= 1, "rows must be >= 1", rows=self.rows)

    def load(self, *, seed: int = 0) -> Texts:
        """Return the texts in the order of the file; `seed` is not used. Raises: DataError that names the place."""
        path = existing_file(self.path)
        content = read_bytes(path)
        readers = {".jsonl": self._json_lines, ".json": self._json_lines, ".parquet": self._parquet}
        texts: list[str] = []
        for text in readers.get(path.suffix, self._lines)(path, content):
            texts += [text] if text.strip() else []
            if len(texts) == self.rows:
                break
        if not texts:
            raise fault(path, "must hold at least one text that is not empty")
        return Texts(tuple(texts), path.name)

    def _lines(self, path: Path, content: bytes) -> Iterator[str]:
        for number, line in enumerate(content.splitlines(), 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as err:
                raise fault(path, "must be text in UTF-8", line=number) from err

    def _json_lines(self, path: Path, content: bytes) -> Iterator[str]:
        for number, line in enumerate(self._lines(path, content), 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                raise fault(path, "must hold JSON in each line", line=number) from None
            text = value.get(self.column) if isinstance(value, dict) else value
            if not isinstance(text, str):
                keys = f"; its keys are {shortened(', '.join(map(str, value)))}" if isinstance(value, dict) else ""
                raise fault(
                    path, f"must hold a text under {self.column!r}{keys}", line=number, do="set `column` of the data"
                )
            yield text

    def _parquet(self, path: Path, content: bytes) -> Iterator[str]:
        table = read_parquet(path)
        kind = table.schema.field(self.column).type if self.column in table.column_names else pa.null()
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            names = shortened(", ".join(table.column_names))
            raise fault(
                path, f"must have a column of texts {self.column!r}, has {names}", do="set `column` of the data"
            )
        yield from (text or "" for text in table[self.column].to_pylist())


@register("data", "made-sentences", source="Ours: sentences of a small grammar")
@dataclass(frozen=True)
class MadeSentences:
    """Generated sentences of some 25 words, such as notes of a clinic, for runs without real texts.

    Attributes:
        rows: Number of sentences, >= 1.
    """

    rows: int = 1_000

    def __post_init__(self) -> None:
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require_size(self.rows, 25)

    def load(self, *, seed: int = 0) -> Texts:
        """Return the sentences that `seed` determines."""
        rng = np.random.default_rng(np.random.SeedSequence([seed, 0x5E47]))
        return Texts(tuple(made_sentences(self.rows, rng)), "made-sentences")
