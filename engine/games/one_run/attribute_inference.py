"""Attribute inference (Algorithm 2): are these the record's own protected attributes, or others? Training untouched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.actors.work import Work
from dpaudit.claims import Relation
from dpaudit.engine.games.one_run.answers import CanaryView
from dpaudit.engine.games.one_run.label_inference import LabelInference
from dpaudit.engine.games.protocol import LEARNERS, GameTraits, Played, Setting, every_row
from dpaudit.engine.games.proxies.model import Predictor
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

MAX_VALUES = 200
"""Combinations of values of the protected columns at most; the model is asked about each, for every record."""
LABEL = "label of the record"
"""Column that holds the label where the proxy predicts the attribute."""


@register("game", "attribute-inference", source="arXiv:2511.14084, section 5, Algorithm 2")
@dataclass(frozen=True)
class AttributeInference(LabelInference):
    """Observational: shows training records with their own protected attributes or with a proxy's; training untouched.

    Everything else about a record is public, its label too: the proxy predicts the protected columns from it. What is
    at stake is the combined value of the columns, a number column by the bin it lies in. Of the trained model the
    adversary learns which probability it gives the record's label with each value put in; for a bin, its middle value.

    Which values there are, and the bins, come from the reference part; a value it does not hold counts as its most
    frequent one. The proxy is trained on the reference part, with the attribute as label.

    Attributes:
        columns: Names of the protected columns of a table; of an array, their numbers from 0 as text.
        bins: Bins of a number column, equally full on the reference part, >= 2.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.REPLACE,
        assumes="Given the rest of the record, the proxy's attributes must follow the same distribution as the true "
        "ones, as far as the adversary can tell before it sees the model; a proxy that differs adds to the bound what "
        "it gives away itself (the shift tau).",
        views={LEARNERS: CanaryView},
        attack="attribute-inference",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        helps="more rows in the target part, or columns that the rest of the record tells less about",
    )

    needs_reference: ClassVar[bool] = True  # the values and bins come from it

    columns: tuple[str, ...] = ()
    bins: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.columns) > 0, "columns must name at least one protected column")
        require(len(set(self.columns)) == len(self.columns), "columns must differ", columns=self.columns)
        require(self.bins >= 2, "bins must be >= 2", bins=self.bins)

    def rests_on_proxy(self, setting: Setting) -> bool:
        return True

    def play(self, setting: Setting, work: Work) -> Played:
        self._values(setting.parts.reference if len(setting.parts.reference) else None)
        return super().play(setting, work)

    def proxy_task(self, examples: Examples, reference: Examples | None) -> Examples:
        """The record without the protected columns, its label among the features, its attribute as the label."""
        values = self._values(reference)
        table = as_table(examples.features)
        codes = np.zeros(len(examples), np.int64)
        for column in values:
            codes = codes * column.size + column.codes(table[column.name])
        public = table.drop_columns(list(self.columns)).append_column(LABEL, pa.array(examples.labels.astype(str)))
        categorical = (*(name for name in examples.categorical if name not in self.columns), LABEL)
        return Examples(public, codes, math.prod(column.size for column in values), examples.name, categorical)

    def model_answers(self, predict: Predictor, examples: Examples, reference: Examples | None) -> NDArray[np.float64]:
        """The probability the model gives each record's label, with each value of the attribute; shape (n, values)."""
        values = self._values(reference)
        answers = [
            predict(self._with(examples, values, code))[np.arange(len(examples)), examples.labels]
            for code in range(math.prod(column.size for column in values))
        ]
        return np.stack(answers, axis=1)

    def _with(self, examples: Examples, values: tuple[ProtectedColumn, ...], code: int) -> Examples:
        table = as_table(examples.features)
        for column in reversed(values):
            code, digit = divmod(code, column.size)
            place = table.column_names.index(column.name)
            repeated = pa.repeat(column.inserted[digit], len(examples))
            table = table.set_column(
                place, column.name, repeated.cast(table.schema.field(column.name).type, safe=False)
            )
        return examples.with_(features=in_form_of(examples.features, table))

    def _values(self, reference: Examples | None) -> tuple[ProtectedColumn, ...]:
        if reference is None:
            raise SpecError(
                "attribute inference takes its values from the reference part; give `split.reference` a share"
            )
        table = as_table(reference.features)
        missing = [name for name in self.columns if name not in table.column_names]
        if missing:
            names = ", ".join(table.column_names[:20])
            raise SpecError(f"the data have no column {missing[0]!r} to protect; they have {names}")
        values = tuple(protected_column(name, table[name], self.bins) for name in self.columns)
        count = math.prod(column.size for column in values)
        if not 2 <= count <= MAX_VALUES:
            raise SpecError(
                f"the protected columns must have 2..{MAX_VALUES} values together, they have {count}; protect other "
                "columns, or take other `bins`"
            )
        return values


@dataclass(frozen=True, eq=False)
class ProtectedColumn:
    """The values of one protected column."""

    name: str  # the column
    inserted: pa.Array  # what is put into a record for each value: the category, or the middle of the bin
    edges: NDArray[np.float64]  # inner edges of the bins, ascending; empty for categories
    most_frequent: int  # the most frequent value, by its place

    @property
    def size(self) -> int:
        return len(self.inserted)

    def codes(self, column: pa.ChunkedArray) -> NDArray[np.int64]:
        """The place of each cell's value, shape (n,)."""
        if pa.types.is_string(self.inserted.type):
            places = {value: place for place, value in enumerate(self.inserted.to_pylist())}
            return np.array([places.get(value, self.most_frequent) for value in column.to_pylist()], np.int64)
        numbers = np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
        return np.searchsorted(self.edges, numbers, side="right").astype(np.int64)


def protected_column(name: str, column: pa.ChunkedArray, bins: int) -> ProtectedColumn:
    """The categories of a text column in order, or the bins of a number column."""
    if pa.types.is_string(column.type):
        texts, counts = np.unique(np.asarray(column.to_pylist(), dtype=np.str_), return_counts=True)
        return ProtectedColumn(name, pa.array(texts.tolist(), pa.string()), np.empty(0), int(counts.argmax()))
    numbers = np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
    edges = np.unique(np.quantile(numbers, np.arange(1, bins) / bins, method="higher"))
    edges = edges[edges > numbers.min()]  # each edge is a cell of the bin above it, so no bin is empty
    bin_of = np.searchsorted(edges, numbers, side="right")
    middles = [float(np.median(numbers[bin_of == place])) for place in range(len(edges) + 1)]
    return ProtectedColumn(name, pa.array(middles, pa.float64()), edges, int(np.bincount(bin_of).argmax()))


def as_table(features: Features) -> pa.Table:
    """Features as a table; the columns of an array are called by their numbers."""
    if isinstance(features, pa.Table):
        return features
    if features.ndim != 2:
        raise SpecError(f"attribute inference needs columns, the features have shape {features.shape}")
    return pa.table({str(place): np.ascontiguousarray(column) for place, column in enumerate(features.T)})


def in_form_of(features: Features, table: pa.Table) -> Features:
    """A table's columns in the form the features have."""
    if isinstance(features, pa.Table):
        return table
    return np.column_stack([np.asarray(table[name], np.float32) for name in table.column_names])
