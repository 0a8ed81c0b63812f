"""A predictor behind an HTTP address: requests, valid answers and failures."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import SeedSequence

from dpaudit.claims import Claim
from dpaudit.errors import InputError
from dpaudit.mechanisms.adapters.own_predictor import PredictionEndpoint
from dpaudit.mechanisms.compute import Compute, TrainingError
from dpaudit.mechanisms.examples import Examples
from dpaudit.mechanisms.predictors.protocol import AnsweringPredictor
from tests.http_servers import Does, Server, serving

DATA = Examples(pa.table({"text": ["a", "b"]}), np.array([0, 1]), 2, "t", ("text",), ("low", "high"))
QUERIES = pa.table({"text": ["x", "y", "z"]})
NUMBERS = Examples(np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1]), 2)


def predictor(server: Server, **settings: Any) -> PredictionEndpoint:
    return PredictionEndpoint(url=server.url, claimed=Claim(1.0), first_wait_s=0.01, **settings)


def answers_of(service: PredictionEndpoint, data: Examples = DATA, queries: Any = QUERIES, seed: int = 3) -> list[int]:
    return service.answers(data, queries, seed=SeedSequence(seed), compute=Compute()).tolist()


def test_data_are_sent_on_request_and_answers_are_read() -> None:
    with serving(lambda body: {"answers": [1, "low", None]}, Does(status=428)) as server:
        service = predictor(server)
        assert isinstance(service, AnsweringPredictor)
        assert answers_of(service) == [1, 0, 2]
        first, second = server.bodies
        assert first["queries"] == ["x", "y", "z"]
        assert first["data"] == DATA.digest
        assert "records" not in first
        assert second == {**first, "records": ["a", "b"], "labels": [0, 1]}
        answers_of(service, seed=4)
        assert server.bodies[2]["seed"] != first["seed"], "each run has a different seed"


def test_numbers_are_sent_as_lists() -> None:
    with serving(lambda body: {"answers": [0, 1]}) as server:
        assert answers_of(predictor(server), NUMBERS, NUMBERS.features) == [0, 1]
        assert server.bodies[0]["queries"] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("answers", [[1, 0], [1, 0, 2], [1, 0, "maybe"], [1, 0, 0.7], [1, 0, True], "101", None])
def test_answers_that_name_no_class_are_refused(answers: object) -> None:
    with (
        serving(lambda body: {"answers": answers}) as server,
        pytest.raises(TrainingError, match=r"names no class|a list"),
    ):
        answers_of(predictor(server))


def test_requests_are_retried_and_finally_fail() -> None:
    with serving(lambda body: {"answers": [1, 1, 1]}, Does(status=503), Does(drops="at once")) as server:
        assert answers_of(predictor(server)) == [1, 1, 1]
        assert len({str(body) for body in server.bodies}) == 1, "the same run"
        server.faults = [Does(body=b"?")] * 2
        with pytest.raises(TrainingError, match="gave no answer: answer is no JSON"):
            answers_of(predictor(server, attempts=2))


def test_the_key_is_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREDICTOR_KEY", "a-key-of-some-length")
    error_body = {"error": {"message": "a-key-of-some-length is wrong"}}
    with serving(lambda body: {"answers": [1, 1, 1]}) as server:
        service = predictor(server, key_variable="PREDICTOR_KEY")
        answers_of(service)
        assert server.headers[0]["Authorization"] == "Bearer a-key-of-some-length"
        for status, error in ((404, InputError), (400, TrainingError)):
            server.faults = [Does(status=status, body=error_body)]
            with pytest.raises(error, match=r"\$PREDICTOR_KEY is wrong"):
                answers_of(service)
        assert b"a-key-of" not in pickle.dumps(service)


def test_a_claim_is_required() -> None:
    with pytest.raises(InputError, match="prediction-endpoint needs a claim"):
        PredictionEndpoint(url="https://example.com").claim()
    with pytest.raises(InputError, match="https only"):
        PredictionEndpoint(url="http://example.com", key_variable="KEY")
