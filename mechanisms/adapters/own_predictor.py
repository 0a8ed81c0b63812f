"""Private predictors of the user: a class that answers, a class that votes (noise is added here), or a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError, require
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, global_randomness, take_code, whole_number
from dpaudit.mechanisms.compute import Compute, TrainingError, spawned
from dpaudit.mechanisms.examples import Examples, Features, writable_features
from dpaudit.mechanisms.predictors.language_model import UNREAD, read_class
from dpaudit.mechanisms.predictors.transport import HttpService, RequestFailure
from dpaudit.mechanisms.predictors.vote_laws import GaussianArgmax
from dpaudit.mechanisms.ranges import require_positive
from dpaudit.registry import register
from dpaudit.tensors import numpy_of

_SEND_DATA = 428  # Precondition Required: the server lacks these data


@register("mechanism", "own-predictor", source="your own code")
@dataclass(frozen=True)
class OwnPredictor(ClaimedByUser):
    """A class with `answer(query, data, rng)`, or with `votes(queries, data, rng)`, to whose votes noise is added here.

    `data` is a pair (X, y), `query` one row like those of X, `queries` several. `answer` returns a class, or None to
    refuse. `votes` returns a count for each class, shape (queries, classes). All randomness must come from `rng`, a
    NumPy generator; the global generators of Python, NumPy and torch are seeded as well. Each call is a full run on
    its data.

    Attributes:
        predictor: The class, or its import path "module:Class".
        parameters: Keyword arguments of the class.
        claimed: The claim of one answer.
        sigma: Standard deviation of the Gaussian noise on votes, > 0; None for a class that answers.
    """

    made_by = "from_predictor"

    predictor: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claimed: Claim | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        take_code(self, "predictor")
        method = "answer" if self.sigma is None else "votes"
        require(
            callable(getattr(self.predictor, method, None)),
            f"predictor must have a method `{method}` (`votes` goes with `sigma`, `answer` without)",
            given=location(self.predictor),
        )
        require_positive(self, "sigma")

    def without_noise(self) -> OwnPredictor | None:
        """Return the predictor almost without noise, or None if the user's code adds the noise."""
        return None if self.sigma is None else replace(self, sigma=1e-6)

    def answers(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> NDArray[np.int64]:
        """Return the answers of one full run. Raises: InputError for invalid answers; user exceptions pass."""
        running, noise = spawned(seed, 2)
        rng = np.random.default_rng(running)
        pair = (writable_features(data.features), data.labels.copy())
        predictor = self.predictor(**self.parameters)
        with global_randomness(running):
            if self.sigma is None:
                rows = queries.to_pylist() if isinstance(queries, pa.Table) else writable_features(queries)
                answers = [predictor.answer(row, pair, rng) for row in rows]
                valid = [answer is None or _is_class(answer, data.classes) for answer in answers]
                must = f"`answer` must return a class, 0 to {data.classes - 1}, or None for no answer"
                require(all(valid), must, given=answers[:3])
                return np.array([data.classes if answer is None else int(answer) for answer in answers], np.int64)
            votes = numpy_of(predictor.votes(writable_features(queries), pair, rng))
        shape = (len(queries), data.classes)
        require(votes.shape == shape, f"`votes` must return an array of shape {shape}", shape=votes.shape)
        if not np.isfinite(votes).all():
            raise InputError("`votes` must return finite numbers")
        require(bool((votes >= 0).all()), "`votes` must return counts >= 0", least=votes.min())
        return GaussianArgmax(self.sigma).answers(votes, np.random.default_rng(noise))


def _is_class(answer: object, classes: int) -> bool:
    array = numpy_of(answer)
    return array.shape == () and array.dtype.kind in "iub" and 0 <= int(array) < classes


def from_predictor(
    predictor: Callable[..., Any], claim: Claim | None = None, *, sigma: float | None = None, **parameters: Any
) -> OwnPredictor:
    """Return a mechanism for a user's private predictor; see `OwnPredictor`.

    Args:
        predictor: A class with `answer(query, data, rng)`, or with `votes(queries, data, rng)`.
        claim: The claim of one answer.
        sigma: Standard deviation of the noise on votes.
        parameters: Keyword arguments of the class.
    Raises: InputError if it lacks the method, or cannot be pickled for a worker.
    """
    return OwnPredictor(predictor, parameters, claim, sigma)


@register("mechanism", "prediction-endpoint", source="your own service")
@dataclass(frozen=True, kw_only=True)
class PredictionEndpoint(HttpService, ClaimedByUser):
    """A user's HTTP service that answers privately; each run is a POST of JSON (extra `endpoint`).

    A request is `{"data": D, "seed": S, "queries": [...]}`: train on the data with digest D, with fresh randomness or
    seed S, and answer each query once. A service that lacks these data answers with status 428, and gets the same
    request with `"records": [...], "labels": [...]`. The answer is `{"answers": [...]}`: for each query the number or
    name of a class, or null for a refusal. Records and queries are lists of numbers, texts, or objects with one value
    for each column.

    Attributes:
        claimed: The claim of one answer.
        timeout_s: Time limit of one run, > 0.
        attempts: Most attempts of one run, >= 1.
    """

    made_by = "prediction-endpoint"

    claimed: Claim | None = None
    timeout_s: float = 600.0
    attempts: int = 4

    def answers(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> NDArray[np.int64]:
        """Return the answers of one full run; see `AnsweringPredictor`.

        Raises: TrainingError if the service did not answer, or not with classes; InputError if it refuses every
            request.
        """
        body = {"data": data.digest, "seed": whole_number(seed), "queries": _plain_rows(queries)}
        reply = self._sent(body)
        if isinstance(reply, RequestFailure) and reply.status == _SEND_DATA:
            reply = self._sent({**body, "records": _plain_rows(data.features), "labels": data.labels.tolist()})
        if isinstance(reply, RequestFailure):
            message = f"the predictor at {self.url} gave no answer: {reply.reason}"
            raise InputError(message) if reply.fatal else TrainingError(message)
        answers = reply.get("answers")
        if not isinstance(answers, list) or len(answers) != len(queries):
            raise TrainingError(f"the predictor at {self.url} must return a list `answers` of {len(queries)}")
        return np.array([self._class(answer, data) for answer in answers], np.int64)

    def _sent(self, body: Mapping[str, Any]) -> Mapping[str, Any] | RequestFailure:
        key = self.key()
        return self.retry(lambda: self.send(self.url, body, key=key))

    def _class(self, answer: object, data: Examples) -> int:
        if answer is None:
            return data.classes
        text = str(answer) if isinstance(answer, str | int) and not isinstance(answer, bool) else ""
        number = read_class(text, [str(number) for number in range(data.classes)], data.class_names)
        if number == UNREAD:
            raise TrainingError(f"the predictor at {self.url} gave an answer that names no class")
        return number


def _plain_rows(features: Features) -> list[Any]:
    if not isinstance(features, pa.Table):
        return np.asarray(features).tolist()  # type: ignore[no-any-return]
    if features.num_columns == 1:
        return features.column(0).to_pylist()  # type: ignore[no-any-return]
    return features.to_pylist()  # type: ignore[no-any-return]
