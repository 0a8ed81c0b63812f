"""Stored answers: damaged lines are skipped with one warning, and links are not followed."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest

from dpaudit.errors import InputError
from dpaudit.mechanisms.predictors.endpoint import AnswerStore, Pace

GOOD = [json.dumps({"key": key, "text": f"text of {key}", "at": 1.0}).encode() for key in ("a", "b")]
BAD = [
    b"{",
    b'{"key": "c", "te',
    b"[]",
    b"null",
    b"NaN",
    b'"c"',
    b'{"key": "c"}',
    b'{"text": "no key"}',
    b'{"key": ["c"], "text": "x"}',
    b'{"key": "c", "text": NaN}',
    b'{"key": "c", "text": {"a": 1}}',
    b'{"key": "c", "text": null}',
    b'{"key": "c", "text": "\xff"}',
    b"\x00\x00",
    b"[" * 100_000,
    b"9" * 5000,
    b"",
]


def written(folder: Path, *lines: bytes) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "answers-1-stranger.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@pytest.mark.parametrize("bad", BAD)
def test_a_damaged_line_is_ignored_with_one_warning(tmp_path: Path, bad: bytes) -> None:
    path = written(tmp_path / "answers", GOOD[0], bad, GOOD[1])
    before = path.read_bytes()
    with pytest.warns(RuntimeWarning, match="1 lines of the answers in .* are not used"):
        answers = AnswerStore(tmp_path / "answers").answers("abc")
    assert {key: answer["text"] for key, answer in answers.items()} == {"a": "text of a", "b": "text of b"}
    assert path.read_bytes() == before, "the file is not changed"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = AnswerStore(tmp_path / "answers")
        store.answers("abc")
        store.keep("c", {"text": "asked again"})
        assert AnswerStore(tmp_path / "answers").answers("c")["c"]["text"] == "asked again"


def test_conflicting_answers_warn_and_the_first_is_used(tmp_path: Path) -> None:
    written(tmp_path / "answers", GOOD[0], GOOD[0], b'{"key": "a", "text": "planted"}')
    with pytest.warns(RuntimeWarning, match="1 lines .* differ from an earlier answer"):
        assert AnswerStore(tmp_path / "answers").answers("a")["a"]["text"] == "text of a"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "sparse"])
def test_irregular_files_of_answers_are_ignored(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / "answers", *GOOD)
    other = path.with_name("answers-0-other.jsonl")
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(b'{"key": "c", "text": "from elsewhere"}\n')
        other.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(other)
    elif kind == "folder":
        other.mkdir()
    else:
        other.touch()
        os.truncate(other, 1 << 40)
    with pytest.warns(RuntimeWarning, match="1 lines"):
        assert {*AnswerStore(tmp_path / "answers").answers("abc")} == {"a", "b"}


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    written(tmp_path / "answers", *GOOD)
    (tmp_path / "answers").chmod(mode)
    with pytest.raises(InputError, match=r"must be yours, and nobody else may write to it; remove it, set"):
        AnswerStore(tmp_path / "answers")


def test_a_file_or_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"cannot use .* as the folder of answers"):
            AnswerStore(path)
    monkeypatch.setattr("os.geteuid", lambda: 4321)
    with pytest.raises(InputError, match="must be yours"):
        AnswerStore(tmp_path)


@pytest.mark.parametrize("moment", ["1e300", "NaN", "Infinity", "9e15", '"soon"', "[]", "9" * 400])
def test_damaged_reservations_delay_no_request(tmp_path: Path, moment: str) -> None:
    (tmp_path / "pace").write_text('{"requests": 0, "tokens": 0, "held": ' + moment + "}")
    assert Pace(tmp_path / "pace", requests=60.0).reserve(1) == 0


def test_reservations_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "bashrc").write_text("export EDITOR=vi\n")
    (tmp_path / "pace").symlink_to(tmp_path / "bashrc")
    with pytest.raises(OSError, match="pace"):
        Pace(tmp_path / "pace", requests=60.0).reserve(1)
    assert (tmp_path / "bashrc").read_text() == "export EDITOR=vi\n"
