"""Generators of SmartNoise Synth, tested with 1.0.8.

Without `domain`, a synthesizer infers the columns from the rows, as in the first example of its documentation. Half of
the budget is offered to the inference; only the bounds of columns of many numbers spend it. With `domain`, the columns
are public, and nothing is inferred.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from snsynth import Synthesizer
from snsynth.transform import BinTransformer, LabelTransformer, MinMaxTransformer, OneHotEncoder, TableTransformer
from snsynth.transform.chain import ChainTransformer

warnings.simplefilter("ignore")


class _SmartNoise:
    """A synthesizer with the options of its constructor.

    Args:
        epsilon: Privacy budget, inference of bounds included.
        domain: Values of each column: words or whole numbers, or `{"lower": 0, "upper": 1}`; None to infer all columns.
        seed: Seed of NumPy and torch; the noise of OpenDP cannot be seeded.
    """

    synthesizer: ClassVar[str]
    one_hot: ClassVar[bool] = False

    def __init__(
        self, epsilon: float = 1.0, domain: Mapping[str, Any] | None = None, seed: int = 0, **options: Any
    ) -> None:
        self._seed_all(seed)
        self.epsilon, self.domain = epsilon, domain
        self.model = Synthesizer.create(self.synthesizer, epsilon=float(epsilon), **options)

    def fit(self, frame: pd.DataFrame) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            if self.domain is None:
                self.model.fit(frame, preprocessor_eps=self.epsilon / 2)
            else:
                self.model.fit(frame, transformer=self._public_transformer(frame.columns))

    def sample(self, count: int) -> pd.DataFrame:
        return self.model.sample(count)

    def _public_transformer(self, names: Sequence[str]) -> Any:
        """Return a transformer that was fitted on one row for each public value."""
        assert self.domain is not None
        columns = [self._column(self.domain[name]) for name in names]
        values = [ends(self.domain[name]) for name in names]
        rows = [[column[min(row, len(column) - 1)] for column in values] for row in range(max(map(len, values)))]
        transformer = TableTransformer(columns)
        transformer.fit(pd.DataFrame(rows, columns=list(names)))
        return transformer

    def _column(self, values: Any) -> Any:
        if isinstance(values, Mapping):
            return (MinMaxTransformer if self.one_hot else BinTransformer)(**values, nullable=False)
        labels = LabelTransformer(nullable=False)
        return ChainTransformer([labels, OneHotEncoder()]) if self.one_hot else labels

    def _seed_all(self, seed: int) -> None:
        np.random.seed(seed % 2**32)


def ends(values: Any) -> list[Any]:
    """Return the values of a column, or both bounds."""
    return [values["lower"], values["upper"]] if isinstance(values, Mapping) else list(values)


class MWEM(_SmartNoise):
    synthesizer = "mwem"


class MST(_SmartNoise):
    synthesizer = "mst"


class AIM(_SmartNoise):
    synthesizer = "aim"


class PATECTGAN(_SmartNoise):
    """The seed of torch is left alone: the library sets it to 0 whenever it builds a discriminator."""

    synthesizer = "patectgan"
    one_hot = True
