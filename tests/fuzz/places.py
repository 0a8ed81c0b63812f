"""Cases of odd replies of HTTP servers, and of damaged checkpoints and votes of teachers."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from dpaudit.language_models.mechanisms.endpoint_log_probabilities import EndpointLogProbabilities
from dpaudit.mechanisms.compute import Compute, TrainingError, collected_notes
from dpaudit.mechanisms.predictors.endpoint import Endpoint
from dpaudit.mechanisms.predictors.transport import HttpService
from dpaudit.mechanisms.teachers import TeacherVotes, votes_by_groups
from dpaudit.mechanisms.training.checkpoint import TrainingCheckpoint
from tests.fuzz.cases import damaged
from tests.fuzz.outcome import Outcome, outcome

STATUS = (b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 100 Continue", b"HTTP/1.1 301 x", b"HTTP/1.1 503 x")
HEADERS = (
    *(b"Content-Length: 9", b"Content-Length: -1", b"Content-Length: 99999999999", b"Transfer-Encoding: chunked"),
    *(b"Location: http://127.0.0.1:1/", b"Content-Encoding: gzip", b"Retry-After: nan", b"Retry-After: 1e999"),
    *(b"Retry-After: Sun, 99 Nov 99999 99:99:99 GMT", b"X: " + b"y" * 200_000, b"\xff: \x00", b" folded", b":", b"X"),
    *(b"Connection: close", b"Upgrade: h2c", b"Content-Type: text/html; charset=utf-7", b"X: y\r\n" * 3000),
)
BODIES = (
    *(b"", b"{}", b"[" * 100_000, b'{"a":' * 50_000, b'{"choices": NaN}', b'{"error": {"code": [], "message": {}}}'),
    *(b"9" * 5_000, b"\xff\xfe{}", b"5\r\nhello\r\n0\r\n\r\n", b"fffffffffff\r\nx", b'{"choices": [{"index": 1e999}]}'),
    b'{"choices": [{"message": {"content": "\\ud800"}, "finish_reason": [[]]}], "usage": {"prompt_tokens": {}}}',
    b'{"choices": [{"index": true, "logprobs": {"token_logprobs": [null, -1e999]}}]}',
    b'{"choices": [{"index": 0, "logprobs": {"token_logprobs": [null, -0.5]}}]}',
)


@dataclass(frozen=True)
class Replies:
    """Cases of replies that end after odd heads and bodies, are cut, or continue until the time limit."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        reply = b"\r\n".join([rng.choice(STATUS), *rng.choices(HEADERS, k=rng.randint(0, 3)), b""])
        reply += rng.choice((b"\r\n", b"\r\n", b"", b"\n")) + rng.choice(BODIES)
        reply = damaged(reply, rng) if rng.random() < 0.4 else reply
        again = rng.choice((b"", b"", b"", b"X: y\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"1\r\nx\r\n"))
        listening = socket.create_server(("127.0.0.1", 0))  # of this case: a queue that is never emptied would fill
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        usual = {"url": url, "attempts": 1, "timeout_s": 0.2}
        endpoint = Endpoint(**usual, model_name="m", cache=str(self.folder / "answers"))
        echo = EndpointLogProbabilities(**usual, model_name="m")
        service = HttpService(**usual)
        prompt = str(rng.random())
        call = rng.choice(
            (
                lambda: str(endpoint.complete([prompt])),
                lambda: str(echo.token_log_probabilities([[1, 2]])),
                lambda: str(service.send(url, {}, key="a-secret-key")),
            )
        )
        closed = threading.Event()
        server = threading.Thread(target=self._answer, args=(listening, reply, again, closed))
        server.start()
        try:
            result = outcome(call)
        finally:
            closed.set()
            with listening, suppress(OSError), socket.create_connection(listening.getsockname()):
                server.join()
        return f"{reply[:300]!r} then {again!r}", result

    def _answer(self, listening: socket.socket, reply: bytes, again: bytes, closed: threading.Event) -> None:
        with listening.accept()[0] as connection, suppress(OSError):
            connection.settimeout(1.0)
            connection.recv(65536)
            connection.sendall(reply)
            while again and not closed.wait(0.01):
                connection.sendall(again)


@dataclass(frozen=True)
class Checkpoints:
    """Cases of damaged checkpoints and votes: what is read is right, or it is computed again with a note."""

    folder: Path

    def case(self, rng: random.Random) -> tuple[str, Outcome]:
        """Try one case and return its description and outcome."""
        compute = Compute(scratch=self.folder / "scratch")
        is_votes = rng.random() < 0.5
        load = self._votes if is_votes else self._finished
        with patch("dpaudit.mechanisms.teachers.KEEP_FROM_S", 0.0):
            right = load(compute)
            paths = sorted((self.folder / "scratch").glob("*.npy" if is_votes else "*.pt"))
            path = rng.choice(paths)
            before = path.read_bytes()
            content = rng.choice((damaged(before, rng), before[:-47], b"", rng.choice(paths).read_bytes()))
            path.write_bytes(content)
            result = outcome(lambda: self._checked(load, compute, right, content != before))
        for stored in paths:
            stored.unlink(missing_ok=True)
        return f"{path.name}, {len(before)} to {len(content)} bytes", result

    def _checked(self, load: Callable[[Compute], str], compute: Compute, right: str, changed: bool) -> str:
        with collected_notes() as notes:
            text = load(compute)
        if text != right or bool(notes) != changed:
            raise AssertionError(f"{text} instead of {right}, with the notes {notes}")
        return text

    @staticmethod
    def _votes(compute: Compute) -> str:
        def train(numbers: range) -> TeacherVotes:
            return TeacherVotes(np.array([[number, number + 1] for number in numbers]))

        return str(votes_by_groups(train, 4, 2, scratch=compute.scratch, identity=lambda: (1,)).votes.tolist())

    @staticmethod
    def _finished(compute: Compute) -> str:
        checkpoint = TrainingCheckpoint(compute, "digest")
        if not checkpoint.finished:
            checkpoint.finish([TrainingError("the loss is not finite"), TrainingError("x" * 50)])
        return str([str(error) for error in checkpoint.finished])
