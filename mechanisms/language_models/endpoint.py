"""A language model behind an HTTP address that speaks as OpenAI's does: hosted ones, vLLM, llama.cpp, Ollama, TGI.

All processes that ask one server share on disk the answers there are, and the pace the server allows. Answers lie under
a hash of what was asked: what was answered once is never asked again. Every process appends whole lines to a file of
its own, so many can write side by side and one that is killed loses nothing but a line it was writing. What was asked
is not kept: prompts hold training examples.
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

from dpaudit.consent import PATH
from dpaudit.errors import InputError, printable, require, shortened
from dpaudit.mechanisms.language_models.protocol import CHARACTERS_PER_TOKEN, Completion, Expected
from dpaudit.mechanisms.language_models.transport import HttpService, RequestFailure
from dpaudit.registry import register
from dpaudit.variables import expand_path

_FARTHEST_S = 86_400.0  # A moment farther away than this was not written by a request that waited for its turn
_MAX_BYTES = 1 << 30  # Of a file that one process has written: more than all answers of a large audit


@register("language-model", "endpoint", source="OpenAI's HTTP interface, chat/completions and completions")
@dataclass(frozen=True, kw_only=True)
class Endpoint(HttpService):
    """A language model behind an OpenAI-compatible HTTP address, asked at temperature 0.

    Requests that time out, are turned away for now (429, 5xx) or come back broken are sent again, later each time.
    Answers are kept on disk: one that is there is never asked for again, by any run. The key is read from the
    environment where a request is made, and stands nowhere else.

    Attributes:
        url: Where `/chat/completions` is found: "https://api.openai.com/v1", written out.
        model_name: What the server calls the model.
        style: "chat" sends each prompt as one message of a user, "completions" as a text to go on with.
        max_tokens: Of an answer, >= 1.
        prompts_per_request: Prompts sent together, >= 1; more than 1 with style "completions" only.
        parallel: Requests under way at once, >= 1, in each process that asks.
        attempts: Of one request, >= 1; after the last one its prompts have no answer.
        requests_per_minute: Of all processes of this machine together, > 0; None: no limit.
        tokens_per_minute: Likewise, of prompts and answers, estimated from the prompt's length.
        cache: Folder of the answers; left out: `dpaudit/answers` where this user's caches are.
        extra: What else each request holds, such as `seed`; it takes the place of what has the same name.
        price_in: Of a million tokens read, for the estimate; None: not known.
        price_out: Of a million tokens written.
        most_cost: Asks nothing that is estimated to cost more; needs both prices.
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
        """See `LanguageModel`.

        Raises: InputError when the key is missing, the estimate exceeds `most_cost`, or the server turns everything
            away (a wrong key, address or model); what was answered until then is kept.
        """
        keys = {prompt: self._key(prompt) for prompt in prompts}
        store = AnswerStore(self._folder())
        known = store.known(keys.values())
        asked = [prompt for prompt, key in keys.items() if key not in known]
        found = {prompt: Completion(known[key]["text"]) for prompt, key in keys.items() if key in known}
        if asked:
            expected = self._expected(asked, known=len(known))
            require(
                self.most_cost is None or expected.cost is None or expected.cost <= self.most_cost,
                f"this would ask {expected}; most_cost is {self.most_cost}",
                do="raise most_cost, or ask with fewer teachers or queries",
            )
            moments = answers_folder(self.cache) / f"pace-{_content_key([self.url, self.key_variable])[:16]}.json"
            pace = Pace(moments, self.requests_per_minute, self.tokens_per_minute)
            found |= _Asking(self, store, pace).ask(asked, keys)
        return [found[prompt] for prompt in prompts]

    def expected(self, prompts: Sequence[str]) -> Expected:
        keys = {prompt: self._key(prompt) for prompt in prompts}
        folder = self._folder()
        known = AnswerStore(folder).known(keys.values()) if folder.is_dir() else {}
        return self._expected([prompt for prompt, key in keys.items() if key not in known], known=len(known))

    def tokens(self, prompt: str) -> int:
        """Tokens that one prompt and its answer take, estimated."""
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
        parts = urlsplit(self.url)  # what stands behind a question mark stays behind
        last = "/chat/completions" if self.style == "chat" else "/completions"
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") + last))

    def _key(self, prompt: str) -> str:
        return _content_key({"url": self.url, "style": self.style, "body": self.body([prompt])})

    def _folder(self) -> Path:
        # One folder for each model: its answers are read as a whole.
        return answers_folder(self.cache) / _content_key([self.url, self.model_name])[:16]

    def _expected(self, asked: Sequence[str], *, known: int) -> Expected:
        written = len(asked) * self.max_tokens
        tokens = sum(map(self.tokens, asked))
        requests = -(-len(asked) // self.prompts_per_request)
        cost = None
        if self.price_in is not None and self.price_out is not None:
            cost = ((tokens - written) * self.price_in + written * self.price_out) / 1e6
        minutes = max(
            requests / self.requests_per_minute if self.requests_per_minute else 0.0,
            tokens / self.tokens_per_minute if self.tokens_per_minute else 0.0,
        )
        return Expected(len(asked) + known, known, requests, tokens - written, written, cost, minutes)


def answers_folder(cache: str) -> Path:
    """The folder that a field `cache` means; "" is `dpaudit/answers` where this user's caches are."""
    return expand_path(cache or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/dpaudit/answers")


@dataclass
class _Asking:
    """Requests under way: several at once, each tried until it is answered or given up."""

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
                self._ended.set()  # nobody goes on waiting for a pool that is given up
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
            reply = self.endpoint.send(self._address, self.endpoint.body(prompts), key=self._key)
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
        records[index] = {"text": text or "", "finish": str(choice.get("finish_reason", ""))}
    if sorted(records) != list(range(count)):
        return broken
    usage = reply.get("usage")
    if isinstance(usage, dict) and count == 1:
        records[0]["tokens"] = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    return [records[index] for index in range(count)]


def _content_key(asked: object) -> str:
    """SHA-256 of what is asked of whom: every setting that can change an answer is in it."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class AnswerStore:
    """The answers in one folder, by key, and a journal of what went wrong on the way to them.

    Lines that are no answers are not used, which is noted in a file beside them and said by whoever finds them first. A
    folder that others can write in is refused: their answers would be taken for the model's.
    """

    def __init__(self, folder: Path) -> None:
        _require_private(folder)
        self._folder = folder
        self._own = f"{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._known: dict[str, dict[str, Any]] = {}
        self._read_to: dict[Path, int] = {}
        self._lock = threading.Lock()

    def known(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The answers there are to these questions, other processes' included."""
        with self._lock:
            unused = [one for path in sorted(self._folder.glob("answers-*.jsonl")) for one in self._catch_up(path)]
            if unused:
                self._say(unused)
            return {key: self._known[key] for key in keys if key in self._known}

    def keep(self, key: str, answer: Mapping[str, Any]) -> None:
        """Writes an answer down before anybody uses it."""
        self._append("answers", {"key": key, **answer})
        with self._lock:
            self._known[key] = dict(answer)

    def note(self, key: str, what: str, attempt: int) -> None:
        self._append("trouble", {"key": key, "what": what, "attempt": attempt})

    def _append(self, kind: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({**record, "at": round(time.time(), 3)}).encode() + b"\n"
        file = _open_regular(self._folder / f"{kind}-{self._own}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def _catch_up(self, path: Path) -> list[dict[str, Any]]:
        """Takes up what is new in a file; what of it is not used, and why."""
        unused = []
        start = self._read_to.get(path, 0)
        try:
            for begin, line in _lines(path, start):
                self._read_to[path] = begin + len(line)
                record = _record(line, text=str)
                if record is None:
                    unused.append({"file": path.name, "byte": begin, "why": "no answer"})
                elif self._known.setdefault(record.pop("key"), record)["text"] != record["text"]:
                    unused.append({"file": path.name, "byte": begin, "why": "another answer was kept before"})
        except OSError as err:
            unused.append({"file": path.name, "byte": start, "why": err.strerror})
        return unused

    def _say(self, unused: Sequence[Mapping[str, Any]]) -> None:
        """Notes and says what is not used, where nobody has before."""
        noted = {
            (record["file"], record["byte"])
            for path in self._folder.glob("unused-*.jsonl")
            for _, line in _lines(path, 0)
            if (record := _record(line, file=str, byte=int)) is not None
        }
        new = [one for one in unused if (one["file"], one["byte"]) not in noted]
        with contextlib.suppress(OSError):  # a cache that is read only
            for one in new:
                self._append("unused", {"key": "", **one})
        if new:
            warnings.warn(
                f"{len(new):,} lines of the answers kept in {printable(str(self._folder))} are not used, since they "
                f"are no answers, or differ from one that was kept before; {self._folder.name}/unused-{self._own} says "
                "which, and what is not answered otherwise is asked again",
                RuntimeWarning,
                stacklevel=2,
            )


def _require_private(folder: Path) -> None:
    """Makes a folder for its owner alone where there is none, and refuses one that others can write in."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError as err:
        raise InputError(f"the folder of answers must be one, {shortened(folder)} is not: {err.strerror}") from err
    private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    require(
        private,
        f"the folder of answers must be yours, and nobody else may write in it, {shortened(folder)} is not",
        do="take it away or set `cache` to another one, or `chmod go-w` it where you know what is in it",
    )


def _open_regular(path: Path, flags: int) -> int:
    """Opens a file that is one: no link is followed, and no pipe waited for."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a file", str(path))


def _lines(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Where each whole line from a byte on begins, and the line; OSError for what is no file, or too large."""
    with open(_open_regular(path, os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        file.seek(start)
        begin = start
        # A last line without its end is still being written, or never will be.
        while (line := file.readline()).endswith(b"\n"):
            yield begin, line
            begin += len(line)


def _record(line: bytes, **kinds: type) -> dict[str, Any] | None:
    """The record in a line; None where it holds none, or a field of another kind than given here."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kinds = {"key": str, **kinds}
    fits = isinstance(record, dict) and all(type(record.get(name)) is kind for name, kind in kinds.items())
    return record if fits else None


@dataclass(frozen=True)
class Pace:
    """The limits of one server: no more requests and tokens a minute than it allows, over all processes of a machine.

    Each request takes the next free moment and moves it on by its share of a minute: requests are evenly spaced.
    """

    file: Path  # where the next free moments are kept; shared by whoever shares the limit
    requests: float | None = None  # A minute; None: no limit
    tokens: float | None = None  # A minute; None: no limit
    clock: Callable[[], float] = time.time  # seconds, the same for all processes of a machine

    def reserve(self, tokens: int) -> float:
        """Takes the next free moment for one request of so many tokens; the seconds until then."""
        now = self.clock()
        with self._moments() as moments:
            start = max(now, *moments.values())
            if self.requests is not None:
                moments["requests"] = start + 60 / self.requests
            if self.tokens is not None:
                moments["tokens"] = start + 60 * tokens / self.tokens
        return start - now

    def hold(self, seconds: float) -> None:
        """Nobody starts a request within so many seconds: the server asked for that."""
        with self._moments() as moments:
            moments["held"] = max(moments["held"], self.clock() + seconds)

    @contextmanager
    def _moments(self) -> Iterator[dict[str, float]]:
        file = _open_regular(self.file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            moments = {"requests": 0.0, "tokens": 0.0, "held": 0.0}
            try:
                kept = json.loads(os.pread(file, 4096, 0))
                found = {name: float(kept[name]) for name in moments}
                if all(moment <= self.clock() + _FARTHEST_S for moment in found.values()):
                    moments |= found
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                pass  # new, or cut while it was written: nobody has waited for anything yet
            yield moments
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(moments).encode(), 0)
        finally:
            os.close(file)  # which lets go of the lock
