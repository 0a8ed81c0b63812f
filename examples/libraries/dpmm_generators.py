"""Generators of dpmm, tested with 0.1.9.

A tenth of the budget goes to the bins of columns of numbers, as in its documentation, where that tenth comes on top.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from dpmm.models import mst, priv_bayes
from dpmm.models.base.mechanisms import mechanism
from dpmm.pipelines import AIMPipeline, MSTPipeline, PrivBayesPipeline

# Most of the time of a fit on a small table goes into rho, which depends on nothing but epsilon and delta.
for module in (mst, priv_bayes, mechanism):
    module.cdp_rho = functools.cache(module.cdp_rho)
warnings.simplefilter("ignore")
logging.getLogger("dpmm").setLevel(logging.ERROR)


class _Pipeline:
    """A pipeline of bins and a marginal model.

    Args:
        epsilon: Privacy budget of bins and model together.
        domain: Public values of each column: words, or `{"lower": 0, "upper": 1}`; None to take them from the rows.
        iterations: Steps of the fit to the noisy marginals, which cost no privacy; None for the library's number.
        public_rows: True to add public rows with all values of `domain`, so that no column has a single value.
        seed: Seed of NumPy; the noise of OpenDP cannot be seeded.
    """

    pipeline: ClassVar[Any]

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        domain: Mapping[str, Any] | None = None,
        iterations: int | None = None,
        public_rows: bool = False,
        seed: int = 0,
    ) -> None:
        self.random_state = np.random.RandomState(seed % 2**32)
        self.public_rows = public_rows
        self.domain = {} if domain is None else {name: _described(values) for name, values in domain.items()}
        self.model = self.pipeline(
            epsilon=0.9 * epsilon,
            proc_epsilon=0.1 * epsilon,
            delta=delta,
            n_jobs=1,
            gen_kwargs={} if iterations is None else {"n_iters": iterations},
        )

    def fit(self, frame: pd.DataFrame) -> None:
        if self.public_rows:
            values = [column.get("categories") or [column["lower"], column["upper"]] for column in self.domain.values()]
            count = max(map(len, values))
            public = {name: (list(column) * count)[:count] for name, column in zip(self.domain, values, strict=True)}
            frame = pd.concat([frame, pd.DataFrame(public)[list(frame.columns)]], ignore_index=True)
        words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
        # The library returns the type of a column, so a categorical type of the rows' own words would tell them.
        types = {name: pd.CategoricalDtype(self.domain.get(name, {}).get("categories")) for name in words}
        self.model.fit(frame.astype(types), domain=dict(self.domain), random_state=self.random_state)

    def sample(self, count: int) -> pd.DataFrame:
        return self.model.generate(n_records=count, random_state=self.random_state)


def _described(values: Any) -> dict[str, Any]:
    return dict(values) if isinstance(values, Mapping) else {"categories": list(values)}


class MST(_Pipeline):
    pipeline = MSTPipeline


class AIM(_Pipeline):
    pipeline = AIMPipeline


class PrivBayes(_Pipeline):
    pipeline = PrivBayesPipeline
