"""Chats as text. A chat template is a program of the model's author, so it runs in a child process with limits."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Sequence
from typing import Any

from dpaudit.errors import InputError, printable, require, shortened

LIMIT_S = 10  # processor seconds of the template, and one more for each hundred chats
LIMIT_BYTES = 1 << 30  # memory of the template, beyond what the process has; also of the texts


def written_chats(tokenizer: Any, chats: Sequence[Sequence[dict[str, str]]], **settings: Any) -> list[str]:
    """Return each chat as text in the tokenizer's chat template; `settings` are those of `apply_chat_template`.

    Raises: InputError if the template fails or exceeds a limit.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _limit_process(LIMIT_S + len(chats) // 100)
            with os.fdopen(sending, "wb") as file:
                file.write(_answer(tokenizer, chats, settings))
        finally:
            os._exit(0)
    os.close(sending)
    try:
        with os.fdopen(receiving, "rb") as file:
            content = file.read(LIMIT_BYTES)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    require(
        content.endswith((b"]", b'"')),  # else the child was killed
        f"the chat template of the tokenizer takes more than {LIMIT_S} s of processor, or {LIMIT_BYTES >> 20} MiB",
        do="read the template before you use this model",
    )
    texts: list[str] | str = json.loads(content)
    if isinstance(texts, str):
        raise InputError(f"the chat template of the tokenizer fails: {texts}")
    return texts


def _answer(tokenizer: Any, chats: Sequence[Sequence[dict[str, str]]], settings: dict[str, Any]) -> bytes:
    """Return the texts as a JSON list, or the error of the template as a JSON string."""
    try:
        return json.dumps([tokenizer.apply_chat_template(chat, tokenize=False, **settings) for chat in chats]).encode()
    except MemoryError:
        return b""
    except Exception as err:
        return json.dumps(printable(shortened(err))).encode()


def _limit_process(limit_s: int) -> None:
    """Limit processor time, memory and core dumps of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    with contextlib.suppress(OSError, ValueError):  # no such file but on Linux
        with open("/proc/self/statm", encoding="ascii") as file:
            memory = int(file.read().split()[0]) * resource.getpagesize() + LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
