"""A language model behind an OpenAI-compatible HTTP address: hosted services, vLLM, llama.cpp, Ollama, TGI.

All processes that use one server share a store of answers and a rate limit on disk. Answers are stored under a hash of
the request, and no request is sent twice. Each process appends whole lines to a separate file, so processes do not
block each other, and a killed process loses at most its last line. Prompts are not stored: they hold training examples.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import stat
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from dpaudit.consent import PATH, expand_path
from dpaudit.errors import InputError, printable, require, shortened
from dpaudit.mechanisms.predictors.language_model import CHARACTERS_PER_TOKEN, Completion, Expected
from dpaudit.mechanisms.predictors.transport import HttpService, RequestFailure
from dpaudit.plain_files import user_folder
from dpaudit.registry import register

_MAX_WAIT_S = 86_400.0  # a reserved time farther in the future is damage: no request waits that long
_MAX_BYTES = 1 << 30  # of a file of answers: more than all answers of a large audit


@register("language-model", "endpoint", source="OpenAI's HTTP interface, chat/completions and completions")
@dataclass(frozen=True, kw_only=True)
class Endpoint(HttpService):
    """A language model behind an OpenAI-compatible HTTP address, at temperature 0 (extra `endpoint`).

    Requests that time out, are refused for now (429, 5xx) or return a malformed answer are retried with growing waits.
    Answers are stored on disk, and no run repeats an answered request. The key is read from the environment for each
    request and never stored.

    Attributes:
        url: Address above `/chat/completions`, such as "https://api.openai.com/v1", written out.
        model_name: The server's name of the model.
        style: "chat" sends each prompt as one user message, "completions" as a text to continue.
        max_tokens: Most tokens of an answer, >= 1.
        prompts_per_request: Prompts in one request, >= 1; more than 1 needs style "completions".
        parallel: Simultaneous requests of each process, >= 1.
        attempts: Most attempts of one request, >= 1; after the last one its prompts have no answer.
        requests_per_minute: Limit for all processes of this machine together, > 0; None: no limit.
        tokens_per_minute: Likewise for tokens of prompts and answers, estimated from the prompt's length.
        cache: Folder of the answers; "" is `dpaudit/answers` in the user's cache folder.
        extra: Further fields of each request, such as `seed`; they replace fields of the same name.
        price_in: Price of a million prompt tokens, for the cost estimate; None: unknown.
        price_out: Price of a million answer tokens.
        most_cost: Refuse requests with a higher cost estimate; needs both prices.
    """

    model_name: str
    style: Literal["chat", "completions"] = "chat"
    max_tokens: int = 8
    prompts_per_request: int = 1
    parallel: int = 4
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    cache: str = field(default="", metadata=PATH)
    extra: Mapping[str, Any] = field(default_factory=dict)
    price_in: float | None = None
    price_out: float | None = None
    most_cost: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.model_name), "model_name must not be empty")
        require(self.style in ("chat", "completions"), "style must be 'chat' or 'completions'", style=self.style)
        for name in ("max_tokens", "prompts_per_request", "parallel"):
            require(getattr(self, name) >= 1, f"{name} must be >= 1", given=getattr(self, name))
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, f"{name} must be > 0", given=value)
        for name in ("price_in", "price_out", "most_cost"):
            value = getattr(self, name)
            require(value is None or 0 <= value < math.inf, f"{name} must be >= 0", given=value)
        alone = self.prompts_per_request == 1 or self.style == "completions"
        require(alone, "a chat request holds one prompt", do="set style: completions or prompts_per_request: 1")
        priced = self.price_in is not None and self.price_out is not None
        require(self.most_cost is None or priced, "most_cost needs price_in and price_out")
        try:
            _content_key(dict(self.extra))
        except (TypeError, ValueError):
            raise InputError("extra must hold plain values, as JSON has them") from None

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        """Return one completion for each prompt; see `LanguageModel`.

        Raises: InputError if the key is missing, the cost estimate exceeds `most_cost`, or the server refuses every
            request (a wrong key, address or model). Answers received before that stay stored.
        """
        keys = {prompt: self._key(prompt) for prompt in prompts}
        store = AnswerStore(self._folder())
        stored = store.answers(keys.values())
        unanswered = [prompt for prompt, key in keys.items() if key not in stored]
        completions = {prompt: Completion(stored[key]["text"]) for prompt, key in keys.items() if key in stored}
        if unanswered:
            expected = self._expected(unanswered, answered=len(stored))
            require(
                self.most_cost is None or expected.cost is None or expected.cost <= self.most_cost,
                f"this would ask {expected}; most_cost is {self.most_cost}",
                do="raise most_cost, or ask with fewer teachers or queries",
            )
            moments = answers_folder(self.cache) / f"pace-{_content_key([self.url, self.key_variable])[:16]}.json"
            pace = Pace(moments, self.requests_per_minute, self.tokens_per_minute)
            completions |= _Asking(self, store, pace).ask(unanswered, keys)
        return [completions[prompt] for prompt in prompts]

    def expected(self, prompts: Sequence[str]) -> Expected:
        keys = {prompt: self._key(prompt) for prompt in prompts}
        folder = self._folder()
        stored = AnswerStore(folder).answers(keys.values()) if folder.is_dir() else {}
        return self._expected([prompt for prompt, key in keys.items() if key not in stored], answered=len(stored))

    def tokens(self, prompt: str) -> int:
        """Return the estimated tokens of one prompt and its answer."""
        return math.ceil(len(prompt) / CHARACTERS_PER_TOKEN) + self.max_tokens

    def body(self, prompts: Sequence[str]) -> dict[str, Any]:
        if self.style == "chat":
            content: dict[str, Any] = {"messages": [{"role": "user", "content": prompts[0]}]}
        else:
            content = {"prompt": prompts[0] if len(prompts) == 1 else list(prompts)}
        settings = {"model": self.model_name, "temperature": 0, "max_tokens": self.max_tokens}
        return {**content, **settings, **self.extra}

    @property
    def address(self) -> str:
        parts = urlsplit(self.url)  # a query (`?...`) stays at the end
        last = "/chat/completions" if self.style == "chat" else "/completions"
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") + last))

    def _key(self, prompt: str) -> str:
        return _content_key({"url": self.url, "style": self.style, "body": self.body([prompt])})

    def _folder(self) -> Path:
        # One folder for each model, because all of its answers are loaded at once.
        return answers_folder(self.cache) / _content_key([self.url, self.model_name])[:16]

    def _expected(self, prompts: Sequence[str], *, answered: int) -> Expected:
        written = len(prompts) * self.max_tokens
        tokens = sum(map(self.tokens, prompts))
        requests = -(-len(prompts) // self.prompts_per_request)
        cost = None
        if self.price_in is not None and self.price_out is not None:
            cost = ((tokens - written) * self.price_in + written * self.price_out) / 1e6
        minutes = max(
            requests / self.requests_per_minute if self.requests_per_minute else 0.0,
            tokens / self.tokens_per_minute if self.tokens_per_minute else 0.0,
        )
        return Expected(len(prompts) + answered, answered, requests, tokens - written, written, cost, minutes)


def answers_folder(cache: str) -> Path:
    """Return the folder for the field `cache`; "" is `dpaudit/answers` in the user's cache folder."""
    return expand_path(cache) if cache else user_folder("XDG_CACHE_HOME", ".cache") / "dpaudit" / "answers"


@dataclass
class _Asking:
    """Sends requests in parallel threads, each with retries."""

    endpoint: Endpoint
    store: AnswerStore
    pace: Pace

    def __post_init__(self) -> None:
        self._key = self.endpoint.key()
        self._address = self.endpoint.address
        self._ended = threading.Event()
        self._fatal = ""

    def ask(self, prompts: Sequence[str], keys: Mapping[str, str]) -> dict[str, Completion]:
        size = self.endpoint.prompts_per_request
        batches = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        with ThreadPoolExecutor(min(self.endpoint.parallel, len(batches))) as pool:
            try:
                answers = list(pool.map(lambda batch: self._batch(batch, keys), batches))
            finally:
                self._ended.set()  # ends the requests and waits of threads that are left after an exception
        if self._fatal:
            raise InputError(f"the language model at {self.endpoint.url} answers no request: {self._fatal}")
        return {prompt: answer for answered in answers for prompt, answer in answered.items()}

    def _batch(self, prompts: Sequence[str], keys: Mapping[str, str]) -> dict[str, Completion]:
        tokens = sum(map(self.endpoint.tokens, prompts))
        numbers = itertools.count(1)

        def attempt() -> list[dict[str, Any]] | RequestFailure:
            if self._ended.wait(self.pace.reserve(tokens)):
                return RequestFailure("not asked", retryable=False)
            number = next(numbers)
            reply = self.endpoint.send(self._address, self.endpoint.body(prompts), key=self._key, stop=self._ended)
            answers = reply if isinstance(reply, RequestFailure) else _answers(reply, len(prompts))
            if not isinstance(answers, RequestFailure):
                return answers
            for prompt in prompts:
                self.store.note(keys[prompt], answers.reason, number)
            if answers.fatal:
                self._fatal = answers.reason
                self._ended.set()
            if answers.retryable and number < self.endpoint.attempts and answers.retry_after_s:
                self.pace.hold(answers.retry_after_s)  # for all processes, so the retry itself need not wait
            return replace(answers, retry_after_s=0.0)

        answers = self.endpoint.retry(attempt, stop=self._ended)
        if isinstance(answers, RequestFailure):
            return {prompt: Completion(None, answers.reason) for prompt in prompts}
        for prompt, answer in zip(prompts, answers, strict=True):
            self.store.keep(keys[prompt], answer)
        return {prompt: Completion(answer["text"]) for prompt, answer in zip(prompts, answers, strict=True)}


def _answers(reply: Mapping[str, Any], count: int) -> list[dict[str, Any]] | RequestFailure:
    """Return the record to store for each prompt, in the order of the prompts."""
    broken = RequestFailure("answer is not of the form that was agreed")
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != count:
        return broken
    records: dict[int, dict[str, Any]] = {}
    for place, choice in enumerate(choices):
        if not isinstance(choice, dict):
            return broken
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        index = choice.get("index", place)
        # A filter that stops the model leaves content null. That is an answer, though it names no class.
        if not isinstance(index, int) or not (isinstance(text, str) or (message is not None and text is None)):
            return broken
        finish = choice.get("finish_reason")
        records[index] = {"text": text or "", "finish": finish if isinstance(finish, str) else ""}
    if sorted(records) != list(range(count)):
        return broken
    usage = reply.get("usage")
    if isinstance(usage, dict) and count == 1:
        counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
        records[0]["tokens"] = [count if isinstance(count, int) else None for count in counts]
    return [records[index] for index in range(count)]


def _content_key(content: object) -> str:
    """Return the SHA-256 of a request with its address: every setting that can change an answer."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class AnswerStore:
    """The answers in one folder, by key, and a log of failed attempts.

    Damaged lines are skipped. The first process that finds one logs it in the folder and warns. A folder that other
    users can write to is refused, because they could plant answers.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = folder.stat()
        except OSError as err:
            raise InputError(f"cannot use {shortened(folder)} as the folder of answers: {err.strerror}") from err
        require(
            status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH),
            f"the folder of answers {shortened(folder)} must be yours, and nobody else may write to it",
            do="remove it, set `cache` to another folder, or run `chmod go-w` on it if you trust its content",
        )
        self._folder = folder
        self._file_name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._known: dict[str, dict[str, Any]] = {}
        self._read_to: dict[Path, int] = {}
        self._lock = threading.Lock()

    def answers(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the stored answers under `keys`, including those of other processes."""
        with self._lock:
            unused = [
                line for path in sorted(self._folder.glob("answers-*.jsonl")) for line in self._read_new_lines(path)
            ]
            if unused:
                self._warn_once(unused)
            return {key: self._known[key] for key in keys if key in self._known}

    def keep(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer on disk, then in memory."""
        self._append("answers", {"key": key, **answer})
        with self._lock:
            self._known[key] = dict(answer)

    def note(self, key: str, what: str, attempt: int) -> None:
        self._append("trouble", {"key": key, "what": what, "attempt": attempt})

    def _append(self, kind: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({**record, "at": round(time.time(), 3)}).encode() + b"\n"
        file = _open_regular(self._folder / f"{kind}-{self._file_name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def _read_new_lines(self, path: Path) -> list[dict[str, Any]]:
        """Load new lines of a file and return a record of each line that is not used, with the reason."""
        unused = []
        start = self._read_to.get(path, 0)
        try:
            for begin, line in _lines(path, start):
                self._read_to[path] = begin + len(line)
                record = _record(line, text=str)
                if record is None:
                    unused.append({"file": path.name, "byte": begin, "why": "damaged"})
                elif self._known.setdefault(record.pop("key"), record)["text"] != record["text"]:
                    unused.append({"file": path.name, "byte": begin, "why": "differs from an earlier answer"})
        except OSError as err:
            unused.append({"file": path.name, "byte": start, "why": err.strerror})
        return unused

    def _warn_once(self, unused: Sequence[Mapping[str, Any]]) -> None:
        """Log and warn of unused lines that no process has logged before."""
        logged = {
            (record["file"], record["byte"])
            for path in self._folder.glob("unused-*.jsonl")
            for _, line in _lines(path, 0)
            if (record := _record(line, file=str, byte=int)) is not None
        }
        new = [line for line in unused if (line["file"], line["byte"]) not in logged]
        with contextlib.suppress(OSError):  # a read-only cache
            for line in new:
                self._append("unused", {"key": "", **line})
        if new:
            warnings.warn(
                f"{len(new):,} lines of the answers in {printable(str(self._folder))} are not used: they are damaged, "
                f"or differ from an earlier answer. {self._folder.name}/unused-{self._file_name} lists them; prompts "
                "without another answer are sent again",
                RuntimeWarning,
                stacklevel=2,
            )


def _open_regular(path: Path, flags: int) -> int:
    """Open a regular file; refuse links, and do not wait for pipes."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a file", str(path))


def _lines(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and content of each complete line from byte `start`; OSError if irregular or too large."""
    with open(_open_regular(path, os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        file.seek(start)
        begin = start
        # A last line without a line break is being written, or was cut off.
        while (line := file.readline()).endswith(b"\n"):
            yield begin, line
            begin += len(line)


def _record(line: bytes, **kinds: type) -> dict[str, Any] | None:
    """Return the JSON record in a line, or None if it is damaged or a field is not of its type in `kinds`."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kinds = {"key": str, **kinds}
    fits = isinstance(record, dict) and all(type(record.get(name)) is kind for name, kind in kinds.items())
    return record if fits else None


@dataclass(frozen=True)
class Pace:
    """Rate limit of one server, shared by all processes of a machine.

    Each request reserves the next free time and moves it on by its share of a minute, so requests are evenly spaced.
    """

    file: Path  # holds the next free times; processes that share the limit share the file
    requests: float | None = None  # per minute; None: no limit
    tokens: float | None = None  # per minute; None: no limit
    clock: Callable[[], float] = time.time  # seconds, the same for all processes of a machine

    def reserve(self, tokens: int) -> float:
        """Reserve the next free time for a request of `tokens` tokens and return the seconds until then."""
        now = self.clock()
        with self._moments() as moments:
            start = max(now, *moments.values())
            if self.requests is not None:
                moments["requests"] = start + 60 / self.requests
            if self.tokens is not None:
                moments["tokens"] = start + 60 * tokens / self.tokens
        return start - now

    def hold(self, seconds: float) -> None:
        """Delay all requests by `seconds`, as the server asked."""
        with self._moments() as moments:
            moments["held"] = max(moments["held"], self.clock() + seconds)

    @contextmanager
    def _moments(self) -> Iterator[dict[str, float]]:
        file = _open_regular(self.file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            moments = {"requests": 0.0, "tokens": 0.0, "held": 0.0}
            try:
                content = json.loads(os.pread(file, 4096, 0))
                saved = {name: float(content[name]) for name in moments}
                if all(moment <= self.clock() + _MAX_WAIT_S for moment in saved.values()):
                    moments |= saved
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                pass  # new or cut off: no request has reserved a time
            yield moments
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(moments).encode(), 0)
        finally:
            os.close(file)  # releases the lock
