"""Private predictors of one's own: a class that answers, or votes and leaves the noise to us; a service."""

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
from dpaudit.given import check_fields
from dpaudit.locations import location
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, code_of, global_randomness, whole_number
from dpaudit.mechanisms.compute import Compute, TrainingError, spawned
from dpaudit.mechanisms.examples import Examples, Features, own_features
from dpaudit.mechanisms.language_models.prompts import UNREAD, read_class
from dpaudit.mechanisms.language_models.transport import HttpService, RequestFailure
from dpaudit.mechanisms.predictors.releases import GaussianArgmax
from dpaudit.mechanisms.ranges import require_positive
from dpaudit.registry import register

SEND_DATA = 428  # Precondition Required: the server has not got these data


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
        require_positive(self, "sigma")

    def without_noise(self) -> OwnPredictor | None:
        """The same without the noise that is added here; None where its own code adds it."""
        return None if self.sigma is None else replace(self, sigma=1e-6)

    def answers(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> NDArray[np.int64]:
        """One full run; its own exceptions pass. Refuses what are no classes, or no counts of votes."""
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
    one = np.asarray(answer)
    return one.shape == () and one.dtype.kind in "iub" and 0 <= int(one) < classes


def _rows(queries: Features) -> list[Any]:
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


@register("mechanism", "prediction-endpoint", source="one's own service")
@dataclass(frozen=True, kw_only=True)
class PredictionEndpoint(HttpService, ClaimedByUser):
    """A service of one's own that answers privately; each run is a POST of JSON, its answers are read strictly.

    A request is `{"data": D, "seed": S, "queries": [...]}`: train on the data called D, with randomness of its own or
    by the number S, and answer each query once. A service that has no data called D answers with status 428 and is sent
    the same with `"records": [...], "labels": [...]`. Its answer is `{"answers": [...]}`: for each query the number or
    name of a class, or null where it refuses to answer. Records and queries are lists of numbers, texts, or objects
    with one value for each column.

    Attributes:
        claimed: What one answer promises.
        timeout_s: Of one run, > 0.
        attempts: Of one run, >= 1.
    """

    made_by = "prediction-endpoint"

    claimed: Claim | None = None
    timeout_s: float = 600.0
    attempts: int = 4

    def answers(self, data: Examples, queries: Features, *, seed: SeedSequence, compute: Compute) -> NDArray[np.int64]:
        """One full run; see `AnsweringPredictor`. K, the number of classes, stands for a refusal to answer.

        Raises: TrainingError when the service did not answer, or not with a class; InputError when it turns every
            request away.
        """
        asked = {"data": data.digest, "seed": whole_number(seed), "queries": _plain_rows(queries)}
        reply = self._sent(asked)
        if isinstance(reply, RequestFailure) and reply.status == SEND_DATA:
            reply = self._sent({**asked, "records": _plain_rows(data.features), "labels": data.labels.tolist()})
        if isinstance(reply, RequestFailure):
            what = f"the predictor at {self.url} gave no answer: {reply.reason}"
            raise InputError(what) if reply.fatal else TrainingError(what)
        given = reply.get("answers")
        if not isinstance(given, list) or len(given) != len(queries):
            raise TrainingError(f"the predictor at {self.url} must give a list `answers` of {len(queries)}")
        return np.array([self._class(answer, data) for answer in given], np.int64)

    def _sent(self, body: Mapping[str, Any]) -> Mapping[str, Any] | RequestFailure:
        key = self.key()
        return self.retry(lambda: self.send(self.url, body, key=key))

    def _class(self, answer: object, data: Examples) -> int:
        if answer is None:
            return data.classes
        text = str(answer) if isinstance(answer, str | int) and not isinstance(answer, bool) else ""
        found = read_class(text, [str(number) for number in range(data.classes)], data.class_names)
        if found == UNREAD:
            raise TrainingError(f"the predictor at {self.url} gave an answer that names no class")
        return found


def _plain_rows(features: Features) -> list[Any]:
    if not isinstance(features, pa.Table):
        return np.asarray(features).tolist()  # type: ignore[no-any-return]
    if features.num_columns == 1:
        return features.column(0).to_pylist()  # type: ignore[no-any-return]
    return features.to_pylist()  # type: ignore[no-any-return]
