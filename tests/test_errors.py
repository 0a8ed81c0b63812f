"""Escaping of untrusted text in messages."""

from __future__ import annotations

import json
import pickle
import sys
import unicodedata

import pytest

from dpaudit.errors import AuditError, DataError, RunError, UnknownNameError, printable, printable_lines


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain, with spaces  and $signs{}", "plain, with spaces  and $signs{}"),
        ("naïve Größe ≥ ε 数据 тест नमस्ते 👍", "naïve Größe ≥ ε 数据 тест नमस्ते 👍"),
        ("two\nlines\r\tand\x0b\x0c", r"two\nlines\r\tand\x0b\x0c"),
        ("\x00\x07\x08\x1b[31m\x7f\x85\x9b", r"\x00\x07\x08\x1b[31m\u007f\u0085\u009b"),
        ("\u200e\u200f\u061c\u202a\u202e\u2066\u2069", r"\u200e\u200f\u061c\u202a\u202e\u2066\u2069"),
        ("\u2028\u2029\xa0\u3000\xad\u200b\u200d\ufeff", r"\u2028\u2029\u00a0\u3000\u00ad\u200b\u200d\ufeff"),
        ("\ud800 \udfff \ue000 \U000e0041 \U000f0000", r"\ud800 \udfff \ue000 \U000e0041 \U000f0000"),
        ("\u3164\u115f\u2800\u034f\ufe0f\U000e0100", r"\u3164\u115f\u2800\u034f\ufe0f\U000e0100"),
        ("e\u0301\u0302\u0303\u0304", "e\u0301\u0302\u0303\u0304"),
        ("e" + "\u0301" * 6, "e" + "\u0301" * 4 + r"\u0301\u0301"),
    ],
)
def test_controls_and_invisible_characters_are_escaped(text: str, escaped: str) -> None:
    assert printable(text) == escaped
    assert printable(escaped) == escaped


def test_every_character_is_kept_or_escaped_as_printable_ascii() -> None:
    for character in map(chr, range(sys.maxunicode + 1)):
        escaped = printable(character)
        if escaped == character:
            assert unicodedata.category(character)[0] not in "CZ" or character == " ", hex(ord(character))
        else:
            assert escaped.isascii()
            assert escaped.isprintable()


def test_escaped_lines_stay_lines_and_json_stays_json() -> None:
    assert printable_lines("a\x1b\n\tb\r\n\u2028") == "a\\x1b\n\tb\\r\n\\u2028"
    values = {"a": "".join(map(chr, range(0x3000))), "b": ["\ud800", "\U000e0041"]}
    for indent in (None, 1):
        assert json.loads(printable_lines(json.dumps(values, indent=indent))) == values


@pytest.mark.parametrize("kind", [AuditError, DataError, RunError, UnknownNameError])
def test_an_error_message_is_one_line(kind: type[AuditError]) -> None:
    error = kind("a name\nVIOLATION \x1b[2J\u202e")
    assert str(error) == r"a name\nVIOLATION \x1b[2J\u202e"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
