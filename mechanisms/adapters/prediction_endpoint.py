"""A private predictor behind an HTTP address: it is asked and answers, and nothing else is seen of it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.random import SeedSequence
from numpy.typing import NDArray

from dpaudit.claims import Claim
from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters.user_code import ClaimedByUser, whole_number
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples, Features
from dpaudit.mechanisms.language_models.prompts import UNREAD, read_class
from dpaudit.mechanisms.language_models.transport import LONGEST_ASKED_S, HttpService, Trouble
from dpaudit.registry import register

SEND_DATA = 428
"""Precondition Required: the server has not got these data."""


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
        asked = {"data": data.digest, "seed": whole_number(seed), "queries": _rows(queries)}
        reply = self._sent(asked)
        if isinstance(reply, Trouble) and reply.status == SEND_DATA:
            reply = self._sent({**asked, "records": _rows(data.features), "labels": data.labels.tolist()})
        if isinstance(reply, Trouble):
            what = f"the predictor at {self.url} gave no answer: {reply.what}"
            raise InputError(what) if reply.useless else TrainingError(what)
        given = reply.get("answers")
        if not isinstance(given, list) or len(given) != len(queries):
            raise TrainingError(f"the predictor at {self.url} must give a list `answers` of {len(queries)}")
        return np.array([self._class(answer, data) for answer in given], np.int64)

    def _sent(self, body: Mapping[str, Any]) -> Mapping[str, Any] | Trouble:
        key, wait = self.key(), self.first_wait_s
        for attempt in range(1, self.attempts + 1):
            reply = self.send(self.url, body, key=key)
            if not isinstance(reply, Trouble) or not reply.again or attempt == self.attempts:
                return reply
            pause = min(wait, self.longest_wait_s) * random.uniform(0.5, 1)
            time.sleep(max(pause, min(reply.wait_s or 0.0, LONGEST_ASKED_S)))
            wait *= 2
        raise AssertionError

    def _class(self, answer: object, data: Examples) -> int:
        if answer is None:
            return data.classes
        text = str(answer) if isinstance(answer, str | int) and not isinstance(answer, bool) else ""
        found = read_class(text, [str(number) for number in range(data.classes)], data.class_names)
        if found == UNREAD:
            raise TrainingError(f"the predictor at {self.url} gave an answer that names no class")
        return found


def _rows(features: Features) -> list[Any]:
    if not isinstance(features, pa.Table):
        return np.asarray(features).tolist()  # type: ignore[no-any-return]
    if features.num_columns == 1:
        return features.column(0).to_pylist()  # type: ignore[no-any-return]
    return features.to_pylist()  # type: ignore[no-any-return]
