"""Generators of DataSynthesizer, tested with 0.1.13: modes with independent and with correlated columns."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from DataSynthesizer.DataDescriber import DataDescriber
from DataSynthesizer.DataGenerator import DataGenerator


class _Mode:
    """A mode of DataSynthesizer.

    Args:
        domain: Public values of each column: words, or `{"lower": 0, "upper": 1}`; None to take them from the rows.
        seed: Seed of description and rows; the library's default is 0 for both.
    """

    describe: ClassVar[str]
    generate: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, epsilon: float = 1.0, domain: Mapping[str, Any] | None = None, seed: int = 0, **options: Any
    ) -> None:
        self.epsilon, self.domain, self.seed, self.options = epsilon, domain, seed % 2**32, options
        self.describer = DataDescriber()

    def fit(self, frame: pd.DataFrame) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            path = Path(folder) / "rows.csv"
            frame.to_csv(path, index=False)
            known = {} if self.domain is None else _public(self.domain, Path(folder) / "domain.json")
            options = self.defaults | known | self.options
            getattr(self.describer, self.describe)(str(path), epsilon=self.epsilon, seed=self.seed, **options)

    def sample(self, count: int) -> pd.DataFrame:
        generator = DataGenerator()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file, contextlib.redirect_stdout(io.StringIO()):
            self.describer.save_dataset_description_to_file(file.name)
            getattr(generator, self.generate)(count, file.name, seed=(self.seed + 1) % 2**32)
        return generator.synthetic_dataset


def _public(domain: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the arguments that state types and values of all columns."""
    numbers = {name: values for name, values in domain.items() if isinstance(values, Mapping)}
    words = {name: list(values) for name, values in domain.items() if name not in numbers}
    path.write_text(json.dumps(words))
    return {
        "attribute_to_datatype": {name: "Float" if name in numbers else "String" for name in domain},
        "attribute_to_is_categorical": {name: name in words for name in domain},
        "attribute_to_is_candidate_key": dict.fromkeys(domain, False),
        "numerical_attribute_ranges": {name: [ends["lower"], ends["upper"]] for name, ends in numbers.items()},
        "categorical_attribute_domain_file": str(path),
    }


class Independent(_Mode):
    describe = "describe_dataset_in_independent_attribute_mode"
    generate = "generate_dataset_in_independent_mode"


class Correlated(_Mode):
    """PrivBayes, with two parents of a column as in the library's example."""

    defaults: ClassVar[dict[str, Any]] = {"k": 2}

    describe = "describe_dataset_in_correlated_attribute_mode"
    generate = "generate_dataset_in_correlated_attribute_mode"
