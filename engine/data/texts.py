"""Texts with classes: SST-2, the base class of such data, and texts as vectors."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpaudit.engine.data.columns import fault
from dpaudit.engine.data.delimited import Layout, first_record, read_texts
from dpaudit.engine.data.files import PublishedParts
from dpaudit.errors import require
from dpaudit.mechanisms.compute import limited_threads
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.models.pretrained import texts_of
from dpaudit.registry import register


@dataclass(frozen=True)
class LabelledTexts(PublishedParts, ABC):
    """Texts with classes, as rows of word numbers (n, length) or as raw texts.

    Attributes:
        length: Number of words of a text, >= 1; longer texts are cut, shorter ones padded with 0.
        vocabulary: Number of word numbers including 0 for padding, in 2 .. 2^24; must be that of the model.
        raw: True for a table with a single text column `text`, for models with a tokenizer.
    """

    length: int = 64
    vocabulary: int = 16384
    raw: bool = False
    title: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    column: ClassVar[str] = "text"  # of raw texts

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length >= 1, "length must be >= 1", length=self.length)
        require(2 <= self.vocabulary <= 2**24, "vocabulary must be in 2..2^24", vocabulary=self.vocabulary)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the rows in the order of the file; `seed` is not used.

        Raises: DataError that names the file and, if known, the line and column.
        """
        texts, labels = self._texts_and_labels(self.file())
        features: Features
        if self.raw:
            features = pa.table({self.column: texts})
        else:
            features = word_numbers(texts.to_pylist(), length=self.length, vocabulary=self.vocabulary)
        numbers = labels.cast(pa.int64()).to_numpy()
        categorical = (self.column,) if self.raw else ()
        return Examples(features, numbers, len(self.classes), self.title, categorical, self.classes)

    @abstractmethod
    def _texts_and_labels(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Return the texts and the numbers of their classes."""

    def _table(
        self, path: Path, layout: Layout, text: str, label: str, class_codes: Sequence[str], rule_for_labels: str
    ) -> tuple[pa.Table, pa.ChunkedArray]:
        """Return the rows, and their classes as indices in `class_codes`; DataError for other labels or empty texts."""
        rows, names = read_texts(path, layout, rows=self.rows), pa.array(class_codes)
        table = rows.columns
        for column, good, rule in (
            (text, pc.is_valid(table[text]), "must be a text, is empty"),
            (label, pc.is_in(table[label], value_set=names), rule_for_labels),
        ):
            odd = pc.index(good, False).as_py()
            if odd >= 0:
                got = "" if column == text else f", got {table[label][odd].as_py()!r}"
                raise rows.refuse(odd, column, f"{rule}{got}", "correct the row")
        return table, pc.index_in(table[label], value_set=names)


def word_numbers(texts: list[str], *, length: int, vocabulary: int) -> NDArray[np.float32]:
    """Return hashes of the words of texts, 1 .. vocabulary - 1, padded with 0; shape (n, length).

    Words are separated by blanks and in lower case. A word's number depends on no other text, but two words may share
    a number.
    """
    numbers = np.zeros((len(texts), length), np.float32)
    numbers_by_word: dict[str, int] = {}
    for row, text in enumerate(texts):
        for place, word in enumerate(text.lower().split()[:length]):
            number = numbers_by_word.get(word)
            if number is None:
                number = numbers_by_word[word] = 1 + zlib.crc32(word.encode()) % (vocabulary - 1)
            numbers[row, place] = number
    return numbers


@register("data", "sst-2", source="Socher et al. (2013); the form of GLUE")
@dataclass(frozen=True)
class Sst2(LabelledTexts):
    """Phrases of film reviews, positive or negative, as rows of word numbers (n, length).

    Words are separated by blanks and in lower case. A word's number is a hash, so there is no vocabulary from the data,
    which DP-SGD's claim would not cover. Two words may share a number.

    Attributes:
        path: The folder with `train.tsv`, `dev.tsv` or `test.tsv`, plain, .gz or .xz, or one of the files. A header
            `sentence, label` is optional; quotes have no special meaning.
        part: "train", "dev" or "test" (with labels, which GLUE's test part lacks); ignored if the path is a file.
        raw: True for a table with a single text column `sentence`, for models with a tokenizer.
    """

    length: int = 32
    vocabulary: int = 4096
    parts: ClassVar[Any] = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
    title: ClassVar[str] = "sst-2"
    classes: ClassVar[tuple[str, ...]] = ("negative", "positive")
    column: ClassVar[str] = "sentence"

    def _texts_and_labels(self, path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        columns = ("sentence", "label")
        cells, end = first_record(path, delimiter="\t", quoted=False)
        headed = tuple(cells) == columns
        if "sentence" in cells and not headed:
            do = "GLUE's own test part has no labels; take train or dev"
            raise fault(path, f"must have the columns sentence and label, has {', '.join(cells)}", line=end, do=do)
        layout = Layout(columns, delimiter="\t", quoted=False, skip=end if headed else 0)
        table, labels = self._table(path, layout, *columns, ("0", "1"), "must be 0 or 1")
        return table["sentence"], labels


@register("data", "counted-words", source="Deerwester et al. (1990), latent semantic analysis; scikit-learn")
@dataclass(frozen=True)
class CountedWords:
    """Texts as unit vectors of their leading singular directions of weighted word counts (TF-IDF, SVD).

    Weights and directions are learned from `public` texts. If they were learned from the texts themselves, each vector
    would depend on all records, which no predictor's claim covers.

    Attributes:
        texts: Raw texts to convert.
        public: Raw public texts from which weights and directions are learned.
        dimensions: Number of directions, >= 2.
        words: Number of most frequent words and pairs of words, > dimensions.
    """

    texts: Any = field(metadata={"kind": "data"})
    public: Any = field(metadata={"kind": "data"})
    dimensions: int = 64
    words: int = 20_000

    def __post_init__(self) -> None:
        require(self.dimensions >= 2, "dimensions must be >= 2", dimensions=self.dimensions)
        require(self.words > self.dimensions, "words must be > dimensions", words=self.words)

    def load(self, *, seed: int = 0) -> Examples:
        """Return the texts, loaded with this seed, as float32 vectors of shape (n, dimensions).

        Raises: InputError if there are too few public words or texts.
        """
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        examples: Examples = self.texts.load(seed=seed)
        words = TfidfVectorizer(max_features=self.words, ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
        counts = words.fit_transform(texts_of(self.public.load(seed=seed).features))
        enough = min(counts.shape) > self.dimensions
        require(enough, "dimensions must be < the words and texts of public", dimensions=self.dimensions)
        with limited_threads(1):  # a fixed order of summation on all machines
            directions = TruncatedSVD(self.dimensions, random_state=0).fit(counts)
            vectors = directions.transform(words.transform(texts_of(examples.features)))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return as_vectors(examples, vectors / np.where(lengths > 0, lengths, 1))


def as_vectors(examples: Examples, vectors: Any) -> Examples:
    """Return the examples with vectors instead of their texts."""
    return replace(examples, features=np.asarray(vectors, np.float32), categorical=())
