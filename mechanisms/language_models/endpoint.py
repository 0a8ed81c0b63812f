"""A language model behind an HTTP address that speaks as OpenAI's does: hosted ones, vLLM, llama.cpp, Ollama, TGI."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from dpaudit.consent import PATH
from dpaudit.errors import InputError, require
from dpaudit.mechanisms.language_models.answer_store import AnswerStore, Pace
from dpaudit.mechanisms.language_models.protocol import CHARACTERS_PER_TOKEN, Completion, Expected
from dpaudit.mechanisms.language_models.transport import LONGEST_ASKED_S, HttpService, Trouble
from dpaudit.registry import register
from dpaudit.variables import expanded


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
    return expanded(cache or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/dpaudit/answers")


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
        self._useless = ""

    def ask(self, prompts: Sequence[str], keys: Mapping[str, str]) -> dict[str, Completion]:
        size = self.endpoint.prompts_per_request
        batches = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        with ThreadPoolExecutor(min(self.endpoint.parallel, len(batches))) as pool:
            try:
                answers = list(pool.map(lambda batch: self._batch(batch, keys), batches))
            finally:
                self._ended.set()  # nobody goes on waiting for a pool that is given up
        if self._useless:
            raise InputError(f"the language model at {self.endpoint.url} answers no request: {self._useless}")
        return {prompt: answer for answered in answers for prompt, answer in answered.items()}

    def _batch(self, prompts: Sequence[str], keys: Mapping[str, str]) -> dict[str, Completion]:
        tokens = sum(map(self.endpoint.tokens, prompts))
        wait, what = self.endpoint.first_wait_s, "not asked"
        for attempt in range(1, self.endpoint.attempts + 1):
            if self._ended.wait(self.pace.reserve(tokens)):
                break
            reply = self.endpoint.send(self._address, self.endpoint.body(prompts), key=self._key)
            answers = reply if isinstance(reply, Trouble) else _answers(reply, len(prompts))
            if not isinstance(answers, Trouble):
                for prompt, answer in zip(prompts, answers, strict=True):
                    self.store.keep(keys[prompt], answer)
                return {prompt: Completion(answer["text"]) for prompt, answer in zip(prompts, answers, strict=True)}
            what = answers.what
            for prompt in prompts:
                self.store.note(keys[prompt], what, attempt)
            if answers.useless:
                self._useless = what
                self._ended.set()
            if not answers.again or attempt == self.endpoint.attempts:
                break
            if answers.wait_s is not None:
                self.pace.hold(min(answers.wait_s, LONGEST_ASKED_S))
            # Not all at the same moment again; no result depends on when it was asked for.
            self._ended.wait(min(wait, self.endpoint.longest_wait_s) * random.uniform(0.5, 1))
            wait *= 2
        return {prompt: Completion(None, what) for prompt in prompts}


def _answers(reply: Mapping[str, Any], count: int) -> list[dict[str, Any]] | Trouble:
    """What is kept of each of the answers in a reply, in the order of the prompts."""
    broken = Trouble("answer is not of the form that was agreed")
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != count:
        return broken
    found: dict[int, dict[str, Any]] = {}
    for place, choice in enumerate(choices):
        if not isinstance(choice, dict):
            return broken
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        index = choice.get("index", place)
        # A model that was made to stop, by a filter say, has said nothing: that is an answer, and not a class.
        if not isinstance(index, int) or not (isinstance(text, str) or (message is not None and text is None)):
            return broken
        found[index] = {"text": text or "", "finish": str(choice.get("finish_reason", ""))}
    if sorted(found) != list(range(count)):
        return broken
    usage = reply.get("usage")
    if isinstance(usage, dict) and count == 1:
        found[0]["tokens"] = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    return [found[index] for index in range(count)]


def _content_key(asked: object) -> str:
    """SHA-256 of what is asked of whom: every setting that can change an answer is in it."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
