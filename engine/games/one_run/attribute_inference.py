"""Attribute inference (Algorithm 2): guess if shown attributes are the true ones. Training data are unchanged."""

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
from dpaudit.engine.games.one_run.labelled import Prepared
from dpaudit.engine.games.protocol import LEARNERS, GameTraits, Setting, every_row
from dpaudit.engine.games.proxies import Predictor
from dpaudit.errors import SpecError, require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register

MAX_VALUES = 200
"""Largest number of value combinations of protected columns; the model is queried for each, for every record."""
LABEL = "label of the record"
"""Name of the feature column with the label, for a proxy that predicts the attribute."""


@register("game", "attribute-inference", source="arXiv:2511.14084, section 5, Algorithm 2")
@dataclass(frozen=True)
class AttributeInference(LabelInference):
    """Observational: shows training records with their true or a proxy's protected attributes; training is unchanged.

    The rest of a record is public, including its label; the proxy predicts the protected columns from it. The secret is
    the combined value of the columns, with numeric columns binned. The attacker queries the trained model's probability
    of the record's label for each value; a bin is represented by its median.

    Values and bins come from the reference part. A value that does not occur there counts as the most frequent one. The
    proxy is trained on the reference part with the attribute as label.

    Attributes:
        columns: Names of the protected columns of a table; for an array, their numbers from 0 as text.
        bins: Number of quantile bins of a numeric column on the reference part, >= 2.
    """

    traits: ClassVar[GameTraits] = GameTraits(
        relation=Relation.REPLACE,
        assumes="Given the rest of the record, the proxy's attributes must follow the same distribution as the true "
        "ones, as far as the attacker can tell before it sees the model. A proxy that differs adds its own shift tau "
        "to the bound.",
        views={LEARNERS: CanaryView},
        attack="attribute-inference",
        estimator="simultaneous-guess-count",
        curve_estimator="one-run",
        uses_proxy=True,
        run_on=every_row,
        helps="more rows in the target part, or columns that the rest of the record predicts less",
    )

    needs_reference: ClassVar[bool] = True  # it defines values and bins

    columns: tuple[str, ...] = ()
    bins: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.columns) > 0, "columns must name at least one protected column")
        require(len(set(self.columns)) == len(self.columns), "columns must differ", columns=self.columns)
        require(self.bins >= 2, "bins must be >= 2", bins=self.bins)

    def rests_on_proxy(self, setting: Setting) -> bool:
        return True

    def prepared(self, setting: Setting, work: Work) -> Prepared:
        self._values(setting.parts.reference if len(setting.parts.reference) else None)
        return super().prepared(setting, work)

    def proxy_task(self, examples: Examples, reference: Examples | None) -> Examples:
        """Return records without the protected columns, with the label as a feature and the attribute as label."""
        values = self._values(reference)
        table = as_table(examples.features)
        codes = np.zeros(len(examples), np.int64)
        for column in values:
            codes = codes * column.size + column.codes(table[column.name])
        public = table.drop_columns(list(self.columns)).append_column(LABEL, pa.array(examples.labels.astype(str)))
        categorical = (*(name for name in examples.categorical if name not in self.columns), LABEL)
        return Examples(public, codes, math.prod(column.size for column in values), examples.name, categorical)

    def model_answers(self, predict: Predictor, examples: Examples, reference: Examples | None) -> NDArray[np.float64]:
        """Return the model's probability of each record's label for each attribute value, shape (n, values)."""
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
                "attribute inference takes its values from the reference part, which is empty. Give `split.reference` "
                "a share above 0"
            )
        table = as_table(reference.features)
        missing = [name for name in self.columns if name not in table.column_names]
        if missing:
            names = ", ".join(table.column_names[:20])
            raise SpecError(f"columns must name columns of the data, {missing[0]!r} is none; there are {names}")
        values = tuple(protected_column(name, table[name], self.bins) for name in self.columns)
        count = math.prod(column.size for column in values)
        if not 2 <= count <= MAX_VALUES:
            raise SpecError(
                f"the protected columns must have 2..{MAX_VALUES} combined values, they have {count}. Choose other "
                "columns or another number of `bins`"
            )
        return values


@dataclass(frozen=True, eq=False)
class ProtectedColumn:
    """Values of a protected column."""

    name: str  # name of the column
    inserted: pa.Array  # cell inserted into a record for each value: the category, or the median of the bin
    edges: NDArray[np.float64]  # inner edges of the bins, ascending; empty for categories
    most_frequent: int  # position of the most frequent value

    @property
    def size(self) -> int:
        return len(self.inserted)

    def codes(self, column: pa.ChunkedArray) -> NDArray[np.int64]:
        """Return the position of each cell's value, shape (n,)."""
        if pa.types.is_string(self.inserted.type):
            places = {value: place for place, value in enumerate(self.inserted.to_pylist())}
            return np.array([places.get(value, self.most_frequent) for value in column.to_pylist()], np.int64)
        numbers = np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
        return np.searchsorted(self.edges, numbers, side="right").astype(np.int64)


def protected_column(name: str, column: pa.ChunkedArray, bins: int) -> ProtectedColumn:
    """Return the sorted categories of a text column, or the bins of a numeric column."""
    if pa.types.is_string(column.type):
        texts, counts = np.unique(np.asarray(column.to_pylist(), dtype=np.str_), return_counts=True)
        return ProtectedColumn(name, pa.array(texts.tolist(), pa.string()), np.empty(0), int(counts.argmax()))
    numbers = np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
    edges = np.unique(np.quantile(numbers, np.arange(1, bins) / bins, method="higher"))
    edges = edges[edges > numbers.min()]  # an edge belongs to the bin above it, so no bin is empty
    bin_of = np.searchsorted(edges, numbers, side="right")
    middles = [float(np.median(numbers[bin_of == place])) for place in range(len(edges) + 1)]
    return ProtectedColumn(name, pa.array(middles, pa.float64()), edges, int(np.bincount(bin_of).argmax()))


def as_table(features: Features) -> pa.Table:
    """Return features as a table; columns of an array are named by their numbers."""
    if isinstance(features, pa.Table):
        return features
    if features.ndim != 2:
        raise SpecError(
            f"attribute inference needs features with two dimensions (rows, columns), got shape {features.shape}"
        )
    return pa.table({str(place): np.ascontiguousarray(column) for place, column in enumerate(features.T)})


def in_form_of(features: Features, table: pa.Table) -> Features:
    """Return the columns of a table in the type of `features`."""
    if isinstance(features, pa.Table):
        return table
    return np.column_stack([np.asarray(table[name], np.float32) for name in table.column_names])
