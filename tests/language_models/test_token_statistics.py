"""Log-probabilities of tokens: equal to a plain loop for every kind of model, batch and length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.errors import InputError
from dpaudit.language_models.mechanisms.endpoint_log_probabilities import EndpointLogProbabilities
from dpaudit.language_models.mechanisms.token_statistics import TokenSpan, sampled_tokens, token_statistics
from tests.http_servers import Does, serving
from tests.language_models.small_language_models import small_model, small_tokenizer

MODEL = small_model(small_tokenizer(), hidden=32, layers=2).train()
RNG = np.random.default_rng(0)
SPANS = [
    TokenSpan(tuple(RNG.integers(0, 200, length).tolist()), start, length - end)
    for length, start, end in [(9, 4, 0), (3, 1, 0), (12, 11, 0), (9, 1, 3), (5, 2, 1), (20, 15, 2)]
]


def after_each(tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the log-probabilities after each place, shape (tokens, vocabulary), by one call a text."""
    MODEL.eval()
    with torch.no_grad():
        logits = MODEL(torch.tensor([tokens])).logits[0]
    MODEL.train()
    return np.asarray(torch.log_softmax(logits, -1).double().numpy())


def test_batches_equal_one_text_at_a_time() -> None:
    for batch_tokens in (1, 30, 4096):
        statistics = token_statistics(MODEL, SPANS, batch_tokens=batch_tokens)
        assert statistics.log_probability.shape == (len(SPANS), 5)
        for row, span in enumerate(SPANS):
            after = after_each(list(span.tokens))
            size = span.stop - span.start
            for place in range(size):
                law = after[span.start + place - 1]
                mean = (np.exp(law) * law).sum()
                deviation = math.sqrt((np.exp(law) * (law - mean) ** 2).sum())
                values = [statistics.log_probability, statistics.mean, statistics.deviation]
                expected = [law[span.tokens[span.start + place]], mean, deviation]
                assert np.allclose([value[row, place] for value in values], expected, atol=1e-4)
            assert np.isnan(statistics.log_probability[row, size:]).all()
    assert MODEL.training  # its mode is restored


def test_functions_give_the_same_numbers() -> None:
    whole = token_statistics(after_each, SPANS)
    expected = token_statistics(MODEL, SPANS)
    for name in ("log_probability", "mean", "deviation"):
        assert np.allclose(getattr(whole, name), getattr(expected, name), atol=1e-4, equal_nan=True)

    def own_tokens(tokens: list[int]) -> list[float]:
        after = after_each(tokens)
        return [0.0, *(after[place - 1, tokens[place]] for place in range(1, len(tokens)))]

    only = token_statistics(own_tokens, SPANS)
    assert np.allclose(only.log_probability, expected.log_probability, atol=1e-4, equal_nan=True)
    assert expected.has_moments
    assert not only.has_moments


def echo(body: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for number, tokens in enumerate(body["prompt"]):
        after = after_each(tokens)
        values = [None, *(after[place - 1, tokens[place]] for place in range(1, len(tokens))), -1.0]
        choices.append({"index": number, "text": "", "logprobs": {"token_logprobs": values}})
    return {"choices": choices[::-1]}  # in another order


def test_an_endpoint_that_echoes_gives_the_same_numbers() -> None:
    with serving(echo) as server:
        server.faults.append(Does(503))
        model = EndpointLogProbabilities(
            url=server.url, model_name="m", texts_per_request=4, first_wait_s=0.01, longest_wait_s=0.02
        )
        statistics = token_statistics(model, SPANS)
        assert np.allclose(
            statistics.log_probability, token_statistics(MODEL, SPANS).log_probability, atol=1e-4, equal_nan=True
        )
        assert len(server.bodies) == 3  # two batches, one of them again
        assert all(body["echo"] and body["logprobs"] == 1 for body in server.bodies)


def test_an_endpoint_without_echo_is_named() -> None:
    with (
        serving(lambda body: {"choices": [{"text": "a", "logprobs": None} for _ in body["prompt"]]}) as server,
        pytest.raises(InputError, match="does not echo the prompt"),
    ):
        EndpointLogProbabilities(url=server.url, model_name="m").token_log_probabilities([[1, 2]])


@pytest.mark.parametrize("odd", [[None, -1e400], [None, -(10**400)], [None, math.nan], [None, "x"], [None], {"a": 1}])
def test_odd_log_probabilities_of_a_server_are_refused(odd: Any) -> None:
    answer = {"choices": [{"index": 0, "logprobs": {"token_logprobs": odd}}]}
    with serving(lambda body: answer) as server, pytest.raises(InputError, match="does not echo the prompt"):
        EndpointLogProbabilities(url=server.url, model_name="m").token_log_probabilities([[1, 2]])
    answer = {"choices": [{"index": 0.0, "logprobs": {"token_logprobs": [None, -1.0]}}]}
    with serving(lambda body: answer) as server, pytest.raises(InputError, match="does not echo the prompt"):
        EndpointLogProbabilities(url=server.url, model_name="m").token_log_probabilities([[1, 2]])


def test_wrong_models_and_values_are_explained() -> None:
    vocabulary = 5
    for message, model in [
        ("must be a torch module, a function", object()),
        ("return log-probabilities, not logits", lambda tokens: np.ones((len(tokens), vocabulary * 100))),
        ("must return an array of shape", lambda tokens: np.zeros(1)),
        ("log-probabilities must be finite", lambda tokens: np.full(len(tokens), -np.inf)),
    ]:
        with pytest.raises(InputError, match=message):
            token_statistics(model, SPANS)
    with pytest.raises(InputError, match="a span must begin at token 1"):
        TokenSpan((1, 2), 0, 1)


def test_samples_follow_the_model() -> None:
    """False failure < 1e-6 for each token: frequencies of 4,000 draws lie within 5.5 standard errors."""
    allowed = list(range(2, 12))
    samples = sampled_tokens(MODEL, [[3, 4]] * 4000, 1, temperature=0.7, seed=0, allowed=allowed)
    law = np.exp(after_each([3, 4])[-1][allowed] / 0.7)
    law /= law.sum()
    counts = np.bincount(np.array(samples)[:, 0], minlength=12)[allowed]
    assert counts.sum() == 4000
    assert (np.abs(counts - 4000 * law) < 5.5 * np.sqrt(4000 * law * (1 - law))).all()
    assert sampled_tokens(MODEL, [[3, 4]] * 5, 3, temperature=0.7, seed=0, allowed=allowed) == sampled_tokens(
        MODEL, [[3, 4]] * 5, 3, temperature=0.7, seed=0, allowed=allowed
    )
