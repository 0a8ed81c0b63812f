"""Labels drawn from priors that are known: a Beta law, one probability for all, or one's own column of priors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from dpaudit.consent import PATH
from dpaudit.engine.data.files import existing_file, fault, reading
from dpaudit.engine.data.size import require_size
from dpaudit.errors import require
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.registry import register


class PriorData(ABC):
    """Examples whose one feature is P[label = 1]; the label is drawn from it."""

    name: str

    @abstractmethod
    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """P[label = 1] of each example, in [0, 1], shape (n,)."""

    def load(self, *, seed: int = 0) -> Examples:
        """Priors as features of shape (n, 1), labels drawn from them; decided by `seed`."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        features = self.priors(rng).astype(np.float32)[:, None]
        # Drawn from what the features say, rounding included: the posterior below is then exact.
        labels = (rng.random(len(features)) < features[:, 0].astype(np.float64)).astype(np.int64)
        return Examples(features, labels, 2, str(self))

    def posterior(self, features: Features) -> NDArray[np.float64]:
        """The exact P(y | x), shape (n, 1) to (n, 2)."""
        require(isinstance(features, np.ndarray), "features must be an array of numbers", features=type(features))
        positive = cast("NDArray[np.float64]", features)[:, 0].astype(np.float64)
        return np.stack([1 - positive, positive], axis=1)


@register("data", "beta-priors", source="Busa-Fekete et al. (2024), section 4: Beta(2, 30) and a balanced Beta")
@dataclass(frozen=True)
class BetaPriors(PriorData):
    """Generated: P[label = 1] from Beta(a, b), the label from it. Beta(1, 1) is uniform.

    Attributes:
        a: > 0.
        b: > 0.
        rows: Number of examples, >= 1.
    """

    a: float = 2.0
    b: float = 30.0
    rows: int = 100_000

    def __post_init__(self) -> None:
        require(self.a > 0, "a must be > 0", a=self.a)
        require(self.b > 0, "b must be > 0", b=self.b)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require_size(self.rows, 1)

    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Independent draws."""
        return rng.beta(self.a, self.b, self.rows)

    def __str__(self) -> str:
        return f"Beta({self.a:g}, {self.b:g}) priors"


@register("data", "one-prior", source="Busa-Fekete et al. (2024), Theorem 3.2: labels independent of features")
@dataclass(frozen=True)
class OnePrior(PriorData):
    """Generated: labels independent of the features, each 1 with the same probability.

    Attributes:
        positives: P[label = 1], in [0, 1].
        rows: Number of examples, >= 1.
    """

    positives: float = 0.03
    rows: int = 100_000

    def __post_init__(self) -> None:
        require(0 <= self.positives <= 1, "positives must be in [0, 1]", positives=self.positives)
        require(self.rows >= 1, "rows must be >= 1", rows=self.rows)
        require_size(self.rows, 1)

    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """The same for all."""
        return np.full(self.rows, self.positives)

    def __str__(self) -> str:
        return f"labels that are 1 with probability {self.positives:g}"


@register("data", "own-priors", source="one's own prior, say of a model that is no secret")
@dataclass(frozen=True)
class OwnPriors(PriorData):
    """P[label = 1] of one's own examples from a column of a CSV file; labels are drawn from it.

    Attributes:
        path: The file.
        column: The column of priors, each in [0, 1].
    """

    path: str = field(metadata=PATH)
    column: str = "prior"

    def priors(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Those of the file, in their order."""
        path = existing_file(self.path)
        try:
            with reading(path) as file:
                table = pyarrow.csv.read_csv(file)
            found = np.asarray(table[self.column].cast(pa.float64()).to_numpy(), np.float64)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
            raise fault(
                path, "must hold a column of numbers", column=self.column, do="set the option `column`"
            ) from err
        if not ((found >= 0) & (found <= 1)).all():  # refuses missing ones as well
            raise fault(path, "must hold probabilities in [0, 1]", column=self.column)
        return found

    def __str__(self) -> str:
        return "own priors"
