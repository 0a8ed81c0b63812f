"""Log-probabilities of texts from a server with OpenAI's interface that echoes prompts, such as vLLM."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from dpaudit.errors import InputError, require
from dpaudit.mechanisms.predictors.transport import HttpService, RequestFailure

_MAX_LOSS = 1e9  # of a token, in nats; servers write -9999 for a probability of 0


@dataclass(frozen=True, kw_only=True)
class EndpointLogProbabilities(HttpService):
    """A language model behind an address `/completions` that echoes a prompt of tokens with their log-probabilities.

    Further fields of `HttpService` state the key, retries and time limits.

    Attributes:
        url: Address above `/completions`, such as "http://localhost:8000/v1", written out.
        model_name: The server's name of the model.
        texts_per_request: Texts in one request, >= 1.
        parallel: Simultaneous requests, >= 1.
    """

    model_name: str
    texts_per_request: int = 16
    parallel: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.model_name), "model_name must not be empty")
        for name in ("texts_per_request", "parallel"):
            require(getattr(self, name) >= 1, f"{name} must be >= 1", given=getattr(self, name))

    def token_log_probabilities(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of each text; NaN for the first one.

        Raises: InputError if the key is missing, or a request gets no usable answer after all attempts.
        """
        key, size, ended = self.key(), self.texts_per_request, threading.Event()
        batches = [texts[first : first + size] for first in range(0, len(texts), size)]
        with ThreadPoolExecutor(max(1, min(self.parallel, len(batches)))) as pool:
            try:
                answers = list(
                    pool.map(lambda batch: self.retry(lambda: self._ask(batch, key, ended), stop=ended), batches)
                )
            finally:
                ended.set()  # ends the requests of threads that are left after an exception
        for answer in answers:
            if isinstance(answer, RequestFailure):
                raise InputError(f"the language model at {self.url} gives no log-probabilities: {answer.reason}")
        return [row for answer in answers if not isinstance(answer, RequestFailure) for row in answer]

    def _ask(
        self, texts: Sequence[Sequence[int]], key: str, stop: threading.Event
    ) -> list[list[float]] | RequestFailure:
        parts = urlsplit(self.url)
        address = urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/completions"))
        # Some servers write one token at least; what follows the prompt is cut off below.
        body = {"model": self.model_name, "prompt": [list(text) for text in texts], "temperature": 0}
        answer = self.send(address, {**body, "max_tokens": 1, "echo": True, "logprobs": 1}, key=key, stop=stop)
        if isinstance(answer, RequestFailure):
            return answer
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != len(texts):
            return RequestFailure("the answer has no choice for each text")
        rows: list[list[float]] = [[] for _ in texts]
        for place, choice in enumerate(choices):
            values = _log_probabilities(choice)
            number = choice.get("index", place) if isinstance(choice, dict) else place
            is_place = isinstance(number, int) and number in range(len(texts))
            if values is None or not is_place or len(values) < len(texts[number]):
                return RequestFailure("the server does not echo the prompt with its log-probabilities", retryable=False)
            rows[number] = values[: len(texts[number])]
        return rows if all(rows) else RequestFailure("the answer has no choice for each text")


def _log_probabilities(choice: Any) -> list[float] | None:
    """Return the log-probabilities in a choice, NaN for the first token; None if the answer has another form."""
    record = choice.get("logprobs") if isinstance(choice, dict) else None
    values = record.get("token_logprobs") if isinstance(record, dict) else None
    if not isinstance(values, list) or not values:
        return None
    later = values[1:]
    if not all(isinstance(value, int | float) and -_MAX_LOSS <= value <= 1e-6 for value in later):
        return None
    return [math.nan, *map(float, later)]
