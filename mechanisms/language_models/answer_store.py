"""Answers on disk under a hash of what was asked: what was answered once is never asked again.

Every process appends whole lines to a file of its own, so many can write side by side and one that is killed loses
nothing but a line it was writing. What was asked is not kept: prompts hold training examples.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def content_key(asked: object) -> str:
    """SHA-256 of what is asked of whom: every setting that can change an answer is in it."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


class AnswerStore:
    """The answers in one folder, by key, and a journal of what went wrong on the way to them.

    Args:
        folder: Made when it is not there, for its owner alone.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._own = f"{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._known: dict[str, dict[str, Any]] = {}
        self._read_to: dict[Path, int] = {}
        self._lock = threading.Lock()

    def known(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The answers there are to these questions, other processes' included."""
        with self._lock:
            for path in sorted(self._folder.glob("answers-*.jsonl")):
                self._catch_up(path)
            return {key: self._known[key] for key in keys if key in self._known}

    def keep(self, key: str, answer: Mapping[str, Any]) -> None:
        """Writes an answer down before anybody uses it."""
        self._append("answers", {"key": key, **answer})
        with self._lock:
            self._known[key] = dict(answer)

    def note(self, key: str, what: str, attempt: int) -> None:
        """Writes down what went wrong with a question at its so-manieth attempt."""
        self._append("trouble", {"key": key, "what": what, "attempt": attempt})

    def troubles(self) -> list[dict[str, Any]]:
        """All that went wrong, in the order of each process."""
        return [
            json.loads(line)
            for path in sorted(self._folder.glob("trouble-*.jsonl"))
            for line in path.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n")
        ]

    def _append(self, kind: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({**record, "at": round(time.time(), 3)}).encode() + b"\n"
        file = os.open(
            self._folder / f"{kind}-{self._own}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def _catch_up(self, path: Path) -> None:
        start = self._read_to.get(path, 0)
        if path.stat().st_size <= start:
            return
        with path.open("rb") as file:
            file.seek(start)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]  # a last line without its end is still being written, or never will be
        self._read_to[path] = start + len(whole)
        for line in whole.splitlines():
            record = json.loads(line)
            self._known.setdefault(record.pop("key"), record)
