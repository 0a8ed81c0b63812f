"""A language model over HTTP, against a local server that times out, disconnects, refuses and sends garbage."""

from __future__ import annotations

import gzip
import json
import logging
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from dpaudit.engine.request.build import build, describe
from dpaudit.errors import AuditError, InputError, SpecError
from dpaudit.language_models.mechanisms.endpoint_log_probabilities import EndpointLogProbabilities
from dpaudit.mechanisms.predictors import endpoint as endpoints
from dpaudit.mechanisms.predictors import transport
from dpaudit.mechanisms.predictors.endpoint import AnswerStore, Endpoint, Pace
from dpaudit.mechanisms.predictors.language_model import LanguageModel
from dpaudit.mechanisms.predictors.transport import retry_after
from tests import waiting
from tests.http_servers import Does, Server, chat, prompt_of, serving

KEY = "sk-7Qd/zeta+0123456789 ab"
KEY_VARIABLE = "DPAUDIT_TEST_KEY"


def echo(body: dict[str, Any]) -> dict[str, Any]:
    return chat(f"about {prompt_of(body)}")


MakeEndpoint = Callable[..., Endpoint]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(echo) as running:
        yield running


@pytest.fixture
def endpoint(server: Server, tmp_path: Path) -> MakeEndpoint:
    def make(**settings: Any) -> Endpoint:
        usual = {"first_wait_s": 0.01, "timeout_s": 60.0, "attempts": 4, "cache": str(tmp_path / "answers")}
        return Endpoint(url=server.url, model_name="m", **{**usual, **settings})

    return make


def troubles(model: Endpoint) -> list[dict[str, Any]]:
    """Return the log of failed attempts."""
    journals = sorted(Path(model.cache).glob("*/trouble-*.jsonl"))
    return [json.loads(line) for journal in journals for line in journal.read_text().splitlines()]


def test_prompts_are_answered_in_order_and_equal_ones_sent_once(server: Server, endpoint: MakeEndpoint) -> None:
    prompts = ["b", "a", "b", "c"]
    model = endpoint(parallel=3)
    assert isinstance(model, LanguageModel)
    assert [answer.text for answer in model.complete(prompts)] == [f"about {prompt}" for prompt in prompts]
    assert sorted(map(prompt_of, server.bodies)) == ["a", "b", "c"]
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in server.bodies} == {("m", 0, 8)}
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (Does(drops="at once"), "connection lost"),
        (Does(body=b'{"choices"', drops="in the middle"), "connection lost"),
        (Does(status=429, body={"error": {"message": "slow down"}}), "HTTP 429: slow down"),
        (Does(status=500, body=b"<html>oops"), "HTTP 500"),
        (Does(status=503), "HTTP 503"),
        (Does(body=b"garbage \xff"), "no JSON"),
        (Does(body=[1, 2]), "no JSON object"),
        (Does(body={"choices": []}), "not of the form"),
        (Does(body={"choices": [{"message": {"content": 7}}]}), "not of the form"),
        (Does(body=b"[" * 200_000), "no JSON"),
        (Does(body=b'{"choices":' * 600_000), "no JSON"),
        (Does(body=b'{"choices": ' + b"9" * 7_000_000 + b"}"), "no JSON"),
        (Does(body=b'{"choices": NaN}'), "not of the form"),
        (Does(body=b" " * (9 << 20)), "larger than 8 MiB"),
        (Does(body=gzip.compress(b"0" * 10**7), headers={"Content-Encoding": "gzip"}), "no JSON"),
        (Does(headers={"X": "y" * 10_000_000}), "header of the answer is larger than 100 KB"),
        (Does(raw=b"garbage\r\n\r\n"), "connection lost"),
        (Does(status=500, body=b'{"error":' + b"[" * 200_000), "HTTP 500"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failures_are_logged_and_retried(server: Server, endpoint: MakeEndpoint, fault: Does, what: str) -> None:
    server.faults = [fault]
    model = endpoint()
    assert model.complete(["x"])[0].text == "about x"
    assert len(server.bodies) == 2
    (noted,) = troubles(model)
    assert what in noted["what"]
    assert noted["attempt"] == 1


HEAD = b"HTTP/1.1 200 OK\r\n"
ENDLESS = {
    "silent": Does(silent=True),
    "body": Does(drips=b"x"),
    "chunks": Does(raw=HEAD + b"Transfer-Encoding: chunked\r\n\r\n", drips=b"1\r\nx\r\n"),
    "header": Does(raw=HEAD, drips=b"X: y\r\n"),
    "continue": Does(raw=b"", drips=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "flood": Does(raw=b"", drips=b"HTTP/1.1 100 Continue\r\n\r\n" * 100, every_s=0.001),
    "refusal": Does(raw=b"HTTP/1.1 500 Oops\r\nContent-Length: 99999\r\n\r\n", drips=b"x"),
}


@pytest.mark.parametrize("fault", ENDLESS.values(), ids=ENDLESS)
def test_endless_responses_time_out_and_are_retried(server: Server, endpoint: MakeEndpoint, fault: Does) -> None:
    """The limit holds for the whole response, not only for each byte. On a busy machine more attempts may time out."""
    server.faults = [fault]
    model = endpoint(timeout_s=0.4, attempts=50)
    assert model.complete(["x"])[0].text == "about x"
    assert len(server.bodies) > 1
    assert "timed out after 0.4 s" in troubles(model)[0]["what"]


def test_a_signal_ends_requests_that_a_server_prolongs(server: Server, tmp_path: Path) -> None:
    """With `timeout_s` of ten minutes, the time limit of a test."""
    server.faults = [ENDLESS["header"]] * 2
    code = f"""
import threading
from dpaudit.actors.audited.signals import signals_interrupt
from dpaudit.mechanisms.predictors.endpoint import Endpoint
with signals_interrupt():
    Endpoint(url={server.url!r}, model_name="m", timeout_s=600.0, cache={str(tmp_path / "a")!r}).complete(["x", "y"])
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        waiting.until(lambda: len(server.bodies) == 2, "two requests")
        process.terminate()
        assert "Terminated: SIGTERM" in process.communicate(timeout=60)[1]


def test_requests_of_log_probabilities_end_with_their_caller(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.faults = [ENDLESS["header"]]
    model = EndpointLogProbabilities(url=server.url, model_name="m", timeout_s=600.0, texts_per_request=1)
    real = EndpointLogProbabilities._ask

    def failing(*arguments: Any) -> Any:
        if arguments[1] == [[7]]:
            waiting.until(lambda: len(server.bodies) == 1, "the other request")
            raise ZeroDivisionError
        return real(*arguments)

    monkeypatch.setattr(EndpointLogProbabilities, "_ask", failing)
    with pytest.raises(ZeroDivisionError):
        model.token_log_probabilities([[7], [8]])


def test_after_the_last_attempt_other_answers_are_kept(server: Server, endpoint: MakeEndpoint) -> None:
    model = endpoint(attempts=2, parallel=1)
    server.faults = [Does(status=503), Does(status=502)]
    first, second = model.complete(["x", "y"])
    assert (first.text, first.missing) == (None, "HTTP 502")
    assert second.text == "about y"
    server.bodies.clear()
    assert [answer.text for answer in model.complete(["x", "y"])] == ["about x", "about y"]
    assert list(map(prompt_of, server.bodies)) == ["x"], "what was answered is not asked again"


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_fatal_statuses_stop_all_requests(server: Server, endpoint: MakeEndpoint, status: int) -> None:
    server.faults = [Does(status=status, headers={"Location": server.url}) for _ in range(50)]
    with pytest.raises(InputError, match=f"answers no request: HTTP {status}"):
        endpoint(parallel=1).complete([f"x{number}" for number in range(50)])
    assert len(server.bodies) == 1


def test_a_spent_quota_is_fatal(server: Server, endpoint: MakeEndpoint) -> None:
    server.faults = [Does(status=429, body={"error": {"code": "insufficient_quota", "message": "pay"}})]
    with pytest.raises(InputError, match="insufficient_quota pay"):
        endpoint().complete(["x"])


def test_a_refused_prompt_has_no_answer(server: Server, endpoint: MakeEndpoint) -> None:
    server.faults = [Does(status=400, body={"error": {"message": "too long"}})]
    first, second = endpoint(parallel=1).complete(["x", "y"])
    assert (first.text, first.missing, second.text) == (None, "HTTP 400: too long", "about y")
    assert len(server.bodies) == 2


def test_a_filtered_answer_is_empty_and_stored(server: Server, endpoint: MakeEndpoint) -> None:
    server.faults = [Does(body=chat(None))]
    assert [endpoint().complete(["x"])[0].text for _ in range(2)] == ["", ""]
    assert len(server.bodies) == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waits before requests, with a stopped clock and without waiting."""
    waited: list[float] = []

    class RecordingEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return self.is_set()

    monkeypatch.setattr(endpoints, "Pace", partial(Pace, clock=lambda: 1000.0))
    monkeypatch.setattr(endpoints, "threading", SimpleNamespace(Event=RecordingEvent, Lock=threading.Lock))
    return waited


def test_retry_after_delays_all_requests(server: Server, endpoint: MakeEndpoint, waits: list[float]) -> None:
    server.faults = [Does(status=429, headers={"Retry-After": "0.6"})]
    endpoint(parallel=1).complete(["x", "y"])
    first, between, second, other = waits
    assert first == 0.0
    assert between <= 0.01, "its own, before the second attempt"
    assert second == other == pytest.approx(0.6), "nobody asks before that"


def test_retry_after_is_seconds_or_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    monkeypatch.setattr(transport, "datetime", SimpleNamespace(now=lambda zone: now.astimezone(zone)))
    assert retry_after("2.5") == 2.5
    assert retry_after("-3") == 0
    assert retry_after(format_datetime(now + timedelta(seconds=30), usegmt=True)) == 30
    assert retry_after("soon") == 0
    assert retry_after(None) == 0


def test_the_rate_limit_spaces_requests_of_all_processes(endpoint: MakeEndpoint, waits: list[float]) -> None:
    """Two models in parallel, like two workers: 6 requests at 1,200 per minute take 5 gaps of 50 ms."""
    models = [endpoint(requests_per_minute=1200.0) for _ in range(2)]
    threads = [
        threading.Thread(target=model.complete, args=([f"{place} {number}" for number in range(3)],))
        for place, model in enumerate(models)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.25])


def test_reserved_times_are_exact(tmp_path: Path) -> None:
    now = [1000.0]
    pace = Pace(tmp_path / "pace.json", requests=60.0, tokens=600.0, clock=lambda: now[0])
    assert [round(pace.reserve(tokens), 6) for tokens in (5, 30, 5)] == [0, 1, 4]  # 30 tokens take 3 s
    now[0] += 100
    assert pace.reserve(1) == 0
    pace.hold(7)
    assert pace.reserve(1) == 7
    (tmp_path / "pace.json").write_text('{"requ')
    assert pace.reserve(1) == 0


def test_several_prompts_in_one_request_are_matched_by_index(endpoint: MakeEndpoint, server: Server) -> None:
    def backwards(body: dict[str, Any]) -> dict[str, Any]:
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = [{"index": place, "text": f"about {prompt}"} for place, prompt in enumerate(prompts)]
        return {"choices": choices[::-1]}

    server.answer = backwards
    server.faults = [Does(body={"choices": [{"index": 0, "text": "one for both"}]})]
    model = endpoint(style="completions", prompts_per_request=2, parallel=1)
    assert [answer.text for answer in model.complete(["a", "b", "c"])] == ["about a", "about b", "about c"]
    assert [body["prompt"] for body in server.bodies] == [["a", "b"], ["a", "b"], "c"]


def test_settings_that_change_answers_change_the_stored_key(server: Server, endpoint: MakeEndpoint) -> None:
    for settings in ({}, {"max_tokens": 4}, {"extra": {"seed": 3}}, {"style": "completions"}, {"timeout_s": 3.0}):
        server.answer = lambda body: {"choices": [{"text": "t"}]} if "prompt" in body else chat("c")
        endpoint(**settings).complete(["x"])
    assert len(server.bodies) == 4, "the time limit changes nothing"


def test_a_cut_line_is_ignored_and_other_processes_lines_are_read(tmp_path: Path) -> None:
    first = AnswerStore(tmp_path)
    first.keep("a", {"text": "1"})
    (file,) = tmp_path.glob("answers-*")
    with file.open("ab") as half:
        half.write(b'{"key": "b", "te')
    second = AnswerStore(tmp_path)
    assert set(second.answers(["a", "b"])) == {"a"}
    second.keep("b", {"text": "2"})
    assert first.answers(["a", "b"])["b"]["text"] == "2"


def test_stored_answers_hold_no_prompt(server: Server, endpoint: MakeEndpoint, tmp_path: Path) -> None:
    server.answer = lambda body: chat("1")
    server.faults = [Does(status=500)]
    endpoint().complete(["Ms Smith has the flu"])
    for path in everything_in(tmp_path):
        assert "Smith" not in path.read_text()
        assert path.stat().st_mode & 0o077 == 0


def test_the_cost_is_estimated_before_any_request(server: Server, endpoint: MakeEndpoint) -> None:
    model = endpoint(price_in=2.0, price_out=10.0, requests_per_minute=1.0)
    expected = model.expected(["x" * 35, "y" * 70, "x" * 35])
    assert (expected.prompts, expected.answered, expected.requests) == (2, 0, 2)
    assert (expected.tokens_in, expected.tokens_out) == (30, 16)
    assert expected.cost == pytest.approx((30 * 2 + 16 * 10) / 1e6)
    assert expected.minutes == 2
    assert "2 different prompts, 0 of them answered before: 2 requests, about 30 tokens" in str(expected)
    with pytest.raises(InputError, match=r"cost about .*most_cost is 0.0001; raise most_cost, or ask with fewer"):
        endpoint(price_in=2.0, price_out=10.0, most_cost=1e-4).complete(["x" * 350])
    assert not server.bodies
    endpoint(price_in=2.0, price_out=10.0, most_cost=1.0).complete(["x"])
    assert endpoint().expected(["x"]).requests == 0


def everything_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_key_is_sent_and_appears_nowhere_else(
    server: Server,
    endpoint: MakeEndpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The server repeats the key in answers, error messages and error codes."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    error_body = {"error": {"message": f"no {KEY} here", "code": json.dumps(KEY)}}
    server.answer = lambda body: chat(f"1 {KEY} {json.dumps(KEY)}")
    server.faults = [Does(status=500, body=error_body), Does(status=400, body=error_body), Does(body=KEY.encode())]
    model = endpoint(key_variable=KEY_VARIABLE, parallel=1)
    outputs: list[object] = [model, model.complete(["x", "y", "z"]), troubles(model), describe(model)]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    server.faults = [Does(status=401, body=error_body)]
    with pytest.raises(AuditError) as refused:
        model.complete(["w"])
    outputs += ["".join(traceback.format_exception(refused.value)), caplog.text, *capfd.readouterr()]
    for value in outputs:
        assert KEY not in str(value)
    assert KEY.encode() not in pickle.dumps(model) + cloudpickle.dumps(model)
    assert everything_in(tmp_path)
    for path in everything_in(tmp_path):
        assert KEY.encode() not in path.read_bytes(), path
        assert KEY.encode() not in str(path).encode()
    (answer,) = [answer for answer in model.complete(["z"]) if answer.text]
    assert answer.text == f'1 ${KEY_VARIABLE} "${KEY_VARIABLE}"'


@pytest.mark.parametrize("key", ["two\nlines-of-a-key", "schlüssel-geheim", ""])
def test_an_invalid_key_is_not_shown(endpoint: MakeEndpoint, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(InputError, match=KEY_VARIABLE) as refused:
        endpoint(key_variable=KEY_VARIABLE).complete(["x"])
    output = "".join(traceback.format_exception(refused.value))
    assert not key or key not in output


def test_a_key_instead_of_its_variable_is_refused_and_not_shown(server: Server) -> None:
    for key in ("sk-proj-abcdef123456", "abcdefabcdef", "A" * 41):
        spec = {"name": "endpoint", "url": server.url, "model_name": "m", "key_variable": key}
        with pytest.raises(SpecError, match="must be the name of an environment variable") as refused:
            build("language-model", spec)
        assert key not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "api.example.com/v1"}, "url must be an address that begins with https"),
        ({"url": "https://me:secret@example.com"}, "url must hold no user and password"),
        ({"url": "http://example.com", "key_variable": "K"}, "a key is sent over https only"),
        ({"prompts_per_request": 2}, "a chat request holds one prompt"),
        ({"attempts": 0}, "attempts must be >= 1"),
        ({"timeout_s": 0.0}, "timeout_s must be > 0"),
        ({"requests_per_minute": 0.0}, "requests_per_minute must be > 0"),
        ({"most_cost": 1.0}, "most_cost needs price_in and price_out"),
        ({"extra": {"stop": {1, 2}}}, "extra must hold plain values"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        Endpoint(**{"url": "https://example.com/v1", "model_name": "m", **settings})
    assert "secret" not in str(refused.value)


def test_a_query_string_stays_at_the_end(server: Server, tmp_path: Path) -> None:
    model = Endpoint(url=f"{server.url}/?version=2", model_name="m", cache=str(tmp_path))
    assert model.address == f"{server.url}/chat/completions?version=2"
    assert model.complete(["x"])[0].text == "about x"


def test_variables_are_not_expanded_in_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPAUDIT_TEST_URL", "https://example.com/v1")
    for url in ("$DPAUDIT_TEST_URL", "https://example.com/${DPAUDIT_TEST_URL}"):
        with pytest.raises(InputError, match="url must be written out"):
            Endpoint(url=url, model_name="m")
