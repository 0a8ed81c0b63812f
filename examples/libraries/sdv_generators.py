"""Generators of SDV, tested with 2.0.0. They claim no differential privacy."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from sdv.metadata import Metadata
from sdv.single_table import CTGANSynthesizer, GaussianCopulaSynthesizer, TVAESynthesizer

warnings.simplefilter("ignore")


class _SDV:
    """A synthesizer with the options of its constructor; metadata are detected from the rows, as is the default."""

    synthesizer: ClassVar[Any]

    def __init__(self, seed: int = 0, **options: Any) -> None:
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self.options = options

    def fit(self, frame: pd.DataFrame) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            tables = {"rows": frame}
            self.model = self.synthesizer(Metadata.detect_from_dataframes(tables), **self.options)
            self.model.fit(tables)

    def sample(self, count: int) -> pd.DataFrame:
        return self.model.sample(count)["rows"]


class GaussianCopula(_SDV):
    synthesizer = GaussianCopulaSynthesizer


class CTGAN(_SDV):
    synthesizer = CTGANSynthesizer


class TVAE(_SDV):
    synthesizer = TVAESynthesizer
