"""A private predictor of one's own: a class that answers, or that votes and leaves the noise to us."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError, require
from dpaudit.given import check_fields
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, code_of, global_randomness
from dpaudit.mechanisms.compute import Compute
from dpaudit.mechanisms.examples import Examples, Features, own_features
from dpaudit.mechanisms.predictors.releases import GaussianArgmax
from dpaudit.mechanisms.seeds import spawned
from dpaudit.registry import register

Ints = NDArray[np.int64]


@register("mechanism", "own-predictor", source="one's own code")
@dataclass(frozen=True)
class OwnPredictor(ClaimedByUser):
    """A class with `answer(query, data, rng)`, or with `votes(queries, data, rng)` whose votes are given noise here.

    `data` is a pair (X, y); `query` is one row of the same kind, `queries` several. `answer` gives a class, or None
    where it refuses to answer; `votes` a count for each class, shape (queries, classes). All that is random must come
    from `rng`, a NumPy generator; the global generators of Python, NumPy and torch are seeded as well. Each call is a
    full run on the data it is given.

    Attributes:
        predictor: The class, or where it is: "module:Class".
        parameters: Keyword arguments it is made with.
        claimed: What one answer promises.
        sigma: Standard deviation of the Gaussian noise that is added to votes, > 0; None for a class that answers.
    """

    made_by = "from_predictor"

    predictor: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        code = code_of(self.predictor, field="predictor")
        object.__setattr__(self, "predictor", code)
        wanted = "answer" if self.sigma is None else "votes"
        require(
            callable(getattr(code, wanted, None)),
            f"predictor must have a method `{wanted}` (`votes` goes with `sigma`, `answer` without)",
            given=location(code),
        )
        require(self.sigma is None or self.sigma > 0, "sigma must be > 0", sigma=self.sigma)

    def answers(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> Ints:
        """One full run; its own exceptions pass.

        Raises: InputError when it gives something else than classes, or counts of votes.
        """
        running, noise = spawned(seed, 2)
        rng = np.random.default_rng(running)
        pair = (own_features(data.features), data.labels.copy())
        own = self.predictor(**self.parameters)
        with global_randomness(running):
            if self.sigma is None:
                given = [own.answer(row, pair, rng) for row in _rows(queries)]
                known = [answer is None or _is_class(answer, data.classes) for answer in given]
                must = f"`answer` must give a class, 0 to {data.classes - 1}, or None for no answer"
                require(all(known), must, given=given[:3])
                return np.array([data.classes if answer is None else int(answer) for answer in given], np.int64)
            votes = np.asarray(own.votes(own_features(queries), pair, rng))
        shape = (len(queries), data.classes)
        require(votes.shape == shape, f"`votes` must give an array of shape {shape}", shape=votes.shape)
        if not np.isfinite(votes).all():
            raise InputError("`votes` must give finite numbers")
        require(bool((votes >= 0).all()), "`votes` must give counts >= 0", least=votes.min())
        return GaussianArgmax(self.sigma).answers(votes, np.random.default_rng(noise))


def _is_class(answer: object, classes: int) -> bool:
    """Whether an answer is the number of a class."""
    one = np.asarray(answer)
    return one.shape == () and one.dtype.kind in "iub" and 0 <= int(one) < classes


def _rows(queries: Features) -> list[Any]:
    """Each query by itself: a row of the array, or of the table as a dictionary."""
    rows: list[Any] = queries.to_pylist() if isinstance(queries, pa.Table) else list(own_features(queries))
    return rows


def from_predictor(
    predictor: Callable[..., Any], claim: Claim | None = None, *, sigma: float | None = None, **parameters: Any
) -> OwnPredictor:
    """A private predictor of one's own for an audit; see `OwnPredictor`.

    Args:
        predictor: A class with `answer(query, data, rng)`, or with `votes(queries, data, rng)`.
        claim: What one answer promises.
        sigma: Noise that is added to votes.
        parameters: Keyword arguments it is made with.
    Raises: InputError when it has not the method, or cannot be sent to a worker.
    """
    return OwnPredictor(predictor, parameters, claim, sigma)
