"""The class that a language model's words name, or none: nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence

UNREAD = -1
"""In place of a class where the words name none, or more than one."""

_WRAPPING = " \t*_`'\"“”‘’"
_ENDS = ".,;:!)]"


def read_class(text: str | None, labels: Sequence[str], names: Sequence[str] = ()) -> int:
    """The position of the one label that the first line of an answer consists of; `UNREAD` for anything else.

    A line may begin with "Answer:" and end with a full stop, be in quotes, and give label and name together where they
    agree: "1", "Answer: 1.", "Sports", "1 (Sports)". What follows the first line, a base model's own next question, is
    not looked at. "0 or 1", "class 1", "10" for "1" and an empty line are unread.

    Args:
        text: The answer; None where there was none.
        labels: What the model was told to write, one for each class.
        names: Names of the classes, optional; case does not matter.
    """
    lines = (text or "").strip().splitlines()
    if not lines:
        return UNREAD
    line = re.sub(r"^answer\s*:", "", lines[0].strip(), flags=re.IGNORECASE)
    named = _matches(line, labels) or _matches(line, names)
    if not named:
        pair = re.fullmatch(r"(.+?)\s*[(:=,-]\s*([^()]+)\)?", _bare(line))
        named = _matches(pair[1], labels) & _matches(pair[2], names) if pair else set()
    return named.pop() if len(named) == 1 else UNREAD


def _bare(text: str) -> str:
    return text.strip(_WRAPPING).rstrip(_ENDS).strip(_WRAPPING)


def _matches(text: str, words: Sequence[str]) -> set[int]:
    wanted = _bare(text).casefold()
    return {place for place, word in enumerate(words) if wanted == word.casefold()} if wanted else set()
